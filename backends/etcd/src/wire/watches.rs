//! Watches of all kinds of a client over one stream, opened anew after a loss.
//!
//! A key is watched once, however many care: a waiter watches the one just ahead, and whoever has an
//! entry watches that. An entry of this client that is young or about to leave is not watched at the
//! server at all: whoever waits for its end hears of it from the one who leaves. Each watch starts at the revision that was read, so nothing is missed in
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
use super::proto::{Event, WatchCancel, WatchCreate, WatchRequest, WatchResponse, Watching};
use crate::keys;

const PATH: &str = "/etcdserverpb.Watch/Watch";
const PAUSE: Duration = Duration::from_millis(50);
/// An entry that is this old is watched by its owner. Most locks are given back sooner, and need
/// no watch at all.
const YOUNG: Duration = Duration::from_millis(50);

/// Those that have grown up meanwhile are asked for together.
const STEP: Duration = Duration::from_millis(20);
/// So many that are gone are remembered, until those who were told have looked.
const RUNG: usize = 128;

/// News of an entry of one's own.
pub(crate) enum News {
    /// It was written: marked as taken away, that is.
    Put(Vec<u8>),
    /// It is gone.
    Deleted,
    /// Somebody joined its line, which had been empty but for it.
    Joined,
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
    young: VecDeque<Young>,
    /// Own entries, watched or about to be, or about to be given back.
    own: HashMap<Spot, Own>,
    /// Own entries that are alone in line: for each the watch for who joins, and from where on.
    alone: HashMap<Spot, (i64, i64)>,
    /// What somebody was told to be gone, the last ones.
    rung: VecDeque<Spot>,
    running: bool,
}

/// What is to be watched unless it is over soon.
struct Young {
    at: BootInstant,
    spot: Spot,
    from: i64,
    /// Not the entry, but who joins its line.
    company: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Stands,
    Leaves,
}

struct Watched {
    /// `None` while the server is not asked, because the entry is our own.
    id: Option<i64>,
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
                state.care(spot, seen + 1).bells.push(bell.clone());
            }
            self.run(&mut state);
            self.tell(state);
        }
        bell.notified().await;
    }

    /// An entry of one's own is to be watched, unless it is gone again soon; and if it is alone in
    /// line, who joins that.
    pub(crate) fn own(self: &Arc<Self>, spot: &Spot, created: i64, alone: bool) {
        let mut state = self.state();
        state.own.insert(spot.clone(), Own::Stands);
        self.soon(state, spot, created + 1, &[false, true][..=usize::from(alone)]);
    }

    /// An entry of one's own that was proven is alone in line.
    pub(crate) fn alone(self: &Arc<Self>, spot: &Spot, seen: i64) {
        self.soon(self.state(), spot, seen + 1, &[true]);
    }

    fn soon(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        spot: &Spot,
        from: i64,
        what: &[bool],
    ) {
        let (first, at) = (state.young.is_empty(), self.link.clock.now().plus(YOUNG));
        for company in what.iter().copied() {
            state.young.push_back(Young { at, spot: spot.clone(), from, company });
        }
        self.run(&mut state);
        drop(state);
        if first {
            self.poke.notify_one();
        }
    }

    /// An entry of one's own is about to be given back.
    pub(crate) fn disown(&self, spot: &Spot) {
        let mut state = self.state();
        if let Some(own) = state.own.get_mut(spot) {
            *own = Own::Leaves;
        }
        state.accompany(spot);
        state.tidy(spot);
        self.tell(state);
    }

    /// An entry of one's own is gone, and who waited for that hears of it.
    pub(crate) fn left(&self, spot: &Spot) {
        let mut state = self.state();
        state.own.remove(spot);
        state.accompany(spot);
        state.ring(spot);
        state.tidy(spot);
        self.tell(state);
    }

    /// Nobody here will tell when this entry is gone: the server is to.
    pub(crate) fn insist(self: &Arc<Self>, spot: &Spot) {
        let mut state = self.state();
        state.own.remove(spot);
        state.accompany(spot);
        state.tidy(spot);
        if let Some(from) = state.keys.get(spot).map(|w| w.from) {
            state.watch(spot, from);
        }
        self.run(&mut state);
        self.tell(state);
    }

    /// Has the stream told what has changed.
    fn tell(&self, state: MutexGuard<'_, State>) {
        let told = !state.changes.is_empty();
        drop(state);
        if told {
            self.poke.notify_one();
        }
    }

    /// Whether somebody was told lately that this entry is gone.
    pub(crate) fn was_rung(&self, spot: &Spot) -> bool {
        self.state().rung.contains(spot)
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
        let next = self.state().young.front().map_or(BootInstant::FAR, |young| young.at.plus(STEP));
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
        let mut any = false;
        for (spot, watched) in &state.keys {
            if let Some(id) = watched.id {
                let _ = tx.send(create(spot, id, watched.from));
                any = true;
            }
        }
        for (spot, (id, from)) in &state.alone {
            let _ = tx.send(company(spot, *id, *from));
            any = true;
        }
        any
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
        if let Some(spot) = spot.as_ref().filter(|s| state.is_company(s, said.watch_id)) {
            let other = |e: &Event| e.kv.as_ref().is_some_and(|kv| kv.key != spot.as_bytes());
            // What was forgotten may have been somebody who joined.
            if said.canceled || said.events.iter().any(other) {
                state.accompany(spot);
                drop(state);
                (self.listener)(spot, News::Joined);
            }
            return true;
        }
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
                if state.own.get(&spot) == Some(&Own::Stands) {
                    state.watch(&spot, said.compact_revision);
                }
            }
        }
        for event in said.events {
            let Some(kv) = event.kv else { continue };
            let Some(spot) = std::str::from_utf8(&kv.key).ok().map(Spot::from) else { continue };
            let own = state.own.get(&spot) == Some(&Own::Stands);
            if event.kind == 1 {
                state.ring(&spot);
                state.own.remove(&spot);
                state.accompany(&spot);
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

fn create(spot: &Spot, watch_id: i64, start_revision: i64) -> WatchRequest {
    let key = spot.as_bytes().to_vec();
    let create = WatchCreate { key, start_revision, watch_id, ..WatchCreate::default() };
    WatchRequest { request: Some(Watching::Create(create)) }
}

/// Who joins the line of an entry.
fn company(spot: &Spot, watch_id: i64, start_revision: i64) -> WatchRequest {
    let line = keys::line_of(spot);
    let (key, range_end) = (line.as_bytes().to_vec(), keys::after(line));
    let create = WatchCreate { key, range_end, start_revision, watch_id, filters: vec![1] };
    WatchRequest { request: Some(Watching::Create(create)) }
}

impl State {
    fn is_company(&self, spot: &Spot, id: i64) -> bool {
        self.alone.get(spot).is_some_and(|(of, _)| *of == id)
    }

    /// An entry is alone in line no more, or gone.
    fn accompany(&mut self, spot: &Spot) {
        if let Some((watch_id, _)) = self.alone.remove(spot) {
            self.by_id.remove(&watch_id);
            let cancel = Watching::Cancel(WatchCancel { watch_id });
            self.changes.push(WatchRequest { request: Some(cancel) });
        }
    }

    /// Somebody waits for the end of an entry. Of one of our own he is told here.
    fn care(&mut self, spot: &Spot, from: i64) -> &mut Watched {
        if !self.own.contains_key(spot) {
            return self.watch(spot, from);
        }
        let unwatched = || Watched { id: None, from, bells: Vec::new() };
        self.keys.entry(spot.clone()).or_insert_with(unwatched)
    }

    /// The server is to tell of an entry.
    fn watch(&mut self, spot: &Spot, from: i64) -> &mut Watched {
        let unwatched = || Watched { id: None, from, bells: Vec::new() };
        let watched = self.keys.entry(spot.clone()).or_insert_with(unwatched);
        if watched.id.is_none() {
            watched.from = watched.from.min(from);
            self.last_id += 1;
            watched.id = Some(self.last_id);
            self.by_id.insert(self.last_id, spot.clone());
            self.changes.push(create(spot, self.last_id, watched.from));
        }
        watched
    }

    fn ring(&mut self, spot: &Spot) {
        let Some(watched) = self.keys.get_mut(spot).filter(|w| !w.bells.is_empty()) else { return };
        watched.bells.drain(..).for_each(|bell| bell.notify_one());
        self.rung.truncate(RUNG - 1);
        self.rung.push_front(spot.clone());
    }

    /// Ends a watch that nobody cares for.
    fn tidy(&mut self, spot: &Spot) {
        let own = self.own.get(spot) == Some(&Own::Stands);
        if self.keys.get(spot).is_none_or(|w| !w.bells.is_empty() || own) {
            return;
        }
        if let Some(Watched { id: Some(id), .. }) = self.keys.remove(spot) {
            self.by_id.remove(&id);
            let cancel = Watching::Cancel(WatchCancel { watch_id: id });
            self.changes.push(WatchRequest { request: Some(cancel) });
        }
    }

    fn grow_up(&mut self, now: BootInstant) {
        while self.young.front().is_some_and(|young| young.at <= now) {
            let Some(Young { spot, from, company: joins, .. }) = self.young.pop_front() else {
                return;
            };
            if self.own.get(&spot) != Some(&Own::Stands) {
                continue;
            }
            if !joins {
                self.watch(&spot, from);
            } else if !self.alone.contains_key(&spot) {
                self.last_id += 1;
                self.by_id.insert(self.last_id, spot.clone());
                self.changes.push(company(&spot, self.last_id, from));
                self.alone.insert(spot, (self.last_id, from));
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
        self.watches.tell(state);
    }
}
