//! Watches of all kinds of a client over one stream, opened anew after a loss.
//!
//! A key is watched once, however many care: a waiter watches the one just ahead, and whoever has an
//! entry watches that. Each watch starts at the revision that was read, so nothing is missed in
//! between, and after a loss of the stream it starts there again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::line::Spot;
use distlock_core::{BootInstant, engine};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tonic::Streaming;

use super::link::Link;
use super::nodes::Pick;
use super::proto::{WatchCancel, WatchCreate, WatchRequest, WatchResponse, Watching};

const PATH: &str = "/etcdserverpb.Watch/Watch";
const PAUSE: Duration = Duration::from_millis(50);
/// An entry that is this old is watched by its owner. Most locks are given back sooner, and need
/// no watch at all.
const YOUNG: Duration = Duration::from_millis(50);

/// News of an entry of one's own.
pub(crate) enum News {
    /// It was written: marked as taken away, that is.
    Put(Vec<u8>),
    /// It is gone.
    Deleted,
    /// What happened to it since is not known any more.
    Missed,
}

/// Where news of one's own entries goes.
pub(crate) type Listener = Box<dyn Fn(&Spot, News) + Send + Sync>;

/// The watches of a client.
pub(crate) struct Watches {
    link: Arc<Link>,
    state: Mutex<State>,
    poke: Notify,
    closed: watch::Sender<bool>,
    listener: Listener,
}

#[derive(Default)]
struct State {
    keys: HashMap<Spot, Watched>,
    by_id: HashMap<i64, Spot>,
    last_id: i64,
    /// What the stream is to be told.
    changes: Vec<WatchRequest>,
    /// Own entries that are not watched yet, oldest first.
    young: VecDeque<(BootInstant, Spot, i64)>,
    /// Own entries, watched or about to be.
    own: HashMap<Spot, ()>,
    running: bool,
}

struct Watched {
    id: i64,
    /// The first revision that is news.
    from: i64,
    bells: Vec<Arc<Notify>>,
}

impl Watches {
    pub(crate) fn new(link: Arc<Link>, listener: Listener) -> Arc<Self> {
        let (state, poke, closed) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Arc::new(Self { link, state, poke, closed, listener })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when the key is deleted after a revision, or that cannot be told any more.
    pub(crate) async fn gone(self: &Arc<Self>, spots: &[Spot], seen: i64) {
        let bell = Arc::new(Notify::new());
        let _watching = Bells { watches: self, spots, bell: &bell };
        {
            let mut state = self.state();
            for spot in spots {
                state.watch(spot, seen + 1).bells.push(bell.clone());
            }
            self.run(&mut state);
        }
        self.poke.notify_one();
        bell.notified().await;
    }

    /// An entry of one's own is to be watched, unless it is gone again soon.
    pub(crate) fn own(self: &Arc<Self>, spot: &Spot, created: i64) {
        let mut state = self.state();
        let at = self.link.clock.now().plus(YOUNG);
        state.young.push_back((at, spot.clone(), created + 1));
        state.own.insert(spot.clone(), ());
        let first = state.young.len() == 1;
        self.run(&mut state);
        drop(state);
        if first {
            self.poke.notify_one();
        }
    }

    /// An entry is not one's own any more, or about to be given back.
    pub(crate) fn disown(&self, spot: &Spot) {
        let mut state = self.state();
        state.own.remove(spot);
        state.tidy(spot);
        let told = !state.changes.is_empty();
        drop(state);
        if told {
            self.poke.notify_one();
        }
    }

    /// Ends the stream. Takes effect in the background.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    fn run(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.running, true) {
            let (all, mut closed) = (self.clone(), self.closed.subscribe());
            engine::spawn(async move {
                tokio::select! {
                    biased;
                    _ = closed.wait_for(|closed| *closed) => {}
                    () = all.serve() => {}
                }
            });
        }
    }

    async fn serve(&self) {
        loop {
            let pick = self.link.nodes.pick();
            let (tx, rx) = unbounded_channel();
            if !self.ask_all(&tx) {
                // Nothing to watch yet: somebody young may grow up meanwhile.
                self.nap().await;
                continue;
            }
            let questions = stream::unfold(rx, async |mut rx: UnboundedReceiver<_>| {
                rx.recv().await.map(|q| (q, rx))
            });
            match self.link.stream(&pick, PATH, Box::pin(questions)).await {
                Ok(answers) => self.listen(&pick, &tx, answers).await,
                Err(e) => tracing::debug!(store = %self.link.site, error = %e, "no watches"),
            }
            self.link.clock.sleep(PAUSE).await;
        }
    }

    /// Until somebody pokes, or the oldest of the young is old enough.
    async fn nap(&self) {
        let next = self.state().young.front().map_or(BootInstant::FAR, |(at, ..)| *at);
        tokio::select! {
            biased;
            () = self.poke.notified() => {}
            () = self.link.clock.sleep_until(next) => {}
        }
        self.state().grow_up(self.link.clock.now());
    }

    /// Asks for everything that is watched, on a new stream.
    fn ask_all(&self, tx: &UnboundedSender<WatchRequest>) -> bool {
        let mut state = self.state();
        state.changes.clear();
        state.keys.iter().for_each(|(spot, w)| drop(tx.send(create(spot, w))));
        !state.keys.is_empty()
    }

    async fn listen(
        &self,
        pick: &Pick,
        tx: &UnboundedSender<WatchRequest>,
        mut answers: Streaming<WatchResponse>,
    ) {
        let mut moves = self.link.nodes.moves();
        loop {
            let changes = std::mem::take(&mut self.state().changes);
            changes.into_iter().for_each(|c| drop(tx.send(c)));
            tokio::select! {
                biased;
                _ = moves.wait_for(|n| *n != pick.number) => return,
                answer = answers.message() => match answer {
                    Ok(Some(said)) => {
                        if !self.hear(said) {
                            return;
                        }
                    }
                    Ok(None) => return self.link.nodes.failed(pick, false),
                    Err(status) => {
                        let e = self.link.broke(pick, status);
                        tracing::debug!(store = %self.link.site, error = %e, "watches lost");
                        return;
                    }
                },
                () = self.nap() => {}
            }
        }
    }

    /// What the stream tells; false when it must be opened anew.
    fn hear(&self, said: WatchResponse) -> bool {
        let mut news = Vec::new();
        let mut state = self.state();
        let spot = state.by_id.get(&said.watch_id).cloned();
        if said.canceled {
            if said.compact_revision == 0 {
                // By us, or by a member that takes the token for old.
                return spot.is_none() && !said.cancel_reason.contains("token");
            }
            // What happened since it was read is forgotten: everybody looks for himself.
            if let Some(spot) = spot {
                news.push((spot.clone(), News::Missed));
                state.ring(&spot);
                state.tidy(&spot);
                if state.own.contains_key(&spot) {
                    state.watch(&spot, said.compact_revision);
                }
            }
        }
        for event in said.events {
            let Some(kv) = event.kv else { continue };
            let Some(spot) = std::str::from_utf8(&kv.key).ok().map(Spot::from) else { continue };
            let own = state.own.contains_key(&spot);
            if event.kind == 1 {
                state.ring(&spot);
                state.own.remove(&spot);
                state.tidy(&spot);
            } else if let Some(watched) = state.keys.get_mut(&spot) {
                watched.from = watched.from.max(kv.mod_revision + 1);
            }
            if own {
                let put = event.kind == 0;
                news.push((spot, if put { News::Put(kv.value) } else { News::Deleted }));
            }
        }
        drop(state);
        news.into_iter().for_each(|(spot, news)| (self.listener)(&spot, news));
        true
    }
}

fn create(spot: &Spot, watched: &Watched) -> WatchRequest {
    let key = spot.as_bytes().to_vec();
    let create = WatchCreate { key, start_revision: watched.from, watch_id: watched.id };
    WatchRequest { request: Some(Watching::Create(create)) }
}

impl State {
    fn watch(&mut self, spot: &Spot, from: i64) -> &mut Watched {
        if !self.keys.contains_key(spot) {
            self.last_id += 1;
            let watched = Watched { id: self.last_id, from, bells: Vec::new() };
            self.by_id.insert(watched.id, spot.clone());
            self.changes.push(create(spot, &watched));
            self.keys.insert(spot.clone(), watched);
        }
        self.keys.get_mut(spot).expect("just put there")
    }

    fn ring(&mut self, spot: &Spot) {
        if let Some(watched) = self.keys.get_mut(spot) {
            watched.bells.drain(..).for_each(|bell| bell.notify_one());
        }
    }

    /// Ends a watch that nobody cares for.
    fn tidy(&mut self, spot: &Spot) {
        let cares = |w: &Watched| !w.bells.is_empty() || self.own.contains_key(spot);
        if self.keys.get(spot).is_none_or(cares) {
            return;
        }
        if let Some(Watched { id, .. }) = self.keys.remove(spot) {
            self.by_id.remove(&id);
            let cancel = Watching::Cancel(WatchCancel { watch_id: id });
            self.changes.push(WatchRequest { request: Some(cancel) });
        }
    }

    fn grow_up(&mut self, now: BootInstant) {
        while self.young.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, spot, from)) = self.young.pop_front() else { return };
            if self.own.contains_key(&spot) {
                self.watch(&spot, from);
            }
        }
    }
}

/// A waiter's bells at the keys it watches, taken down when it does not wait any more.
struct Bells<'a> {
    watches: &'a Arc<Watches>,
    spots: &'a [Spot],
    bell: &'a Arc<Notify>,
}

impl Drop for Bells<'_> {
    fn drop(&mut self) {
        let mut state = self.watches.state();
        for spot in self.spots {
            if let Some(watched) = state.keys.get_mut(spot) {
                watched.bells.retain(|b| !Arc::ptr_eq(b, self.bell));
            }
            state.tidy(spot);
        }
        let told = !state.changes.is_empty();
        drop(state);
        if told {
            self.watches.poke.notify_one();
        }
    }
}
