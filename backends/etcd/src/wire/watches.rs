//! Watches of all kinds of a client over one stream, opened anew after a loss.
//!
//! A key is watched once, however many care: a waiter watches the entry just ahead, and an owner
//! its own entry. An entry of this client that is young or about to leave is not watched at the
//! server at all: waiters for its end hear of it from the request that leaves.
//!
//! A watch begins at now, and what may have happened between the read that it follows and its own
//! beginning is looked at once. A watch that begins in the past would not: etcd puts those into a
//! loop that looks at them ten times a second. After a loss of the stream a watch does begin at the
//! revision that was read, so nothing is missed, and a thousand of them cost no thousand looks.
//!
//! A new watch that has waiters is asked for twice in a row. etcd reads which revision is now, and
//! then adds the watch: if a write ends in between, the watch begins in the past after all, and its
//! event comes up to 100 ms late. Two answers with one revision prove that no write ended around
//! the first watch, and the second is cancelled; else the first is, and the second began just after
//! that write.
//!
//! All this goes by spots, key and create revision, because a key serves one request after the
//! other: news of an earlier entry do not concern the entry that is there now.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use distlock_core::queue::Spot;
use distlock_core::{BootInstant, Error, Mutex, ReqId, engine};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use super::link::{Link, OpenStream};
use super::proto::{
    Event, RangeResponse, TxnRequest, WatchCancel, WatchCreate, WatchRequest, WatchResponse,
    Watching,
};
use crate::{keys, txn};

const PAUSE: Duration = Duration::from_millis(50);
/// Between two streams whose watches are refused, at most.
const REFUSED: Duration = Duration::from_secs(2);
/// Max looks in one transaction: etcd accepts 128 operations.
const AT_ONCE: usize = 64;
/// An entry that is this old is watched by its owner. Most locks are given back sooner, and need
/// no watch at all.
const YOUNG: Duration = Duration::from_millis(50);

/// Those that have grown up meanwhile are asked for together.
const STEP: Duration = Duration::from_millis(20);
/// Max entries that are gone and remembered, until the waiters that were told have looked.
const RUNG: usize = 128;

/// What is told.
pub(crate) enum News {
    /// Of an entry of one's own.
    Of(ReqId, EntryNews),
    /// The stream was lost. Until another is open nobody hears who joins.
    Lost,
}

/// News of an entry of one's own.
pub(crate) enum EntryNews {
    /// It was written: marked as taken away, that is.
    Put(Vec<u8>),
    /// It is gone.
    Deleted,
    /// Somebody joined its queue, which had been empty but for it.
    Joined,
    /// What happened to it since is not known any more.
    Missed,
}

/// Where news goes.
pub(crate) type Listener = Box<dyn Fn(News) + Send + Sync>;

/// The watches of a client.
pub(crate) struct Watches {
    link: Arc<Link>,
    state: Mutex<State>,
    poke: Notify,
    closed: watch::Sender<bool>,
    /// The stream was lost, and no other is open yet.
    lost: AtomicBool,
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
    own: HashMap<Spot, (ReqId, Own)>,
    /// Own entries that are alone in the queue, and for each the watch for joins.
    alone: HashMap<Spot, JoinWatch>,
    /// Watches that began, and what may have happened before is not looked at yet.
    looks: VecDeque<(Spot, i64)>,
    looking: bool,
    /// The last entries that waiters were told to be gone.
    rung: VecDeque<Spot>,
    running: bool,
}

/// What is to be watched unless it is over soon.
struct Young {
    at: BootInstant,
    spot: Spot,
    from: i64,
    /// Not the entry, but joins of its queue.
    joins: bool,
}

/// When joins behind an own entry are watched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joins {
    /// Not at all: it is not known to be alone in its queue.
    No,
    /// When it is old enough.
    Soon,
    /// At once: its lock is handed on inside this process, so that others may have to wait long.
    Now,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Stands,
    Leaves,
}

struct Watched {
    /// `None` while the server is not asked, because the entry is our own.
    asked: Option<Asked>,
    /// The first revision that is news.
    from: i64,
    wakeups: Vec<Arc<Notify>>,
}

struct JoinWatch {
    asked: Asked,
    from: i64,
}

/// A watch that the server was asked for.
struct Asked {
    id: i64,
    /// The same watch once more, until the server has begun both.
    twin: Option<i64>,
    /// The revision at which the first of the two began.
    at: i64,
    begun: bool,
}

impl Asked {
    fn is(&self, id: i64) -> bool {
        self.id == id || self.twin == Some(id)
    }

    /// What a new stream asks for: a watch that has begun before goes on from `from`.
    fn again(&self, from: i64) -> impl Iterator<Item = (i64, i64)> {
        let start = if self.begun { from } else { NOW };
        [Some(self.id), self.twin].into_iter().flatten().map(move |id| (id, start))
    }

    /// A watch begins at a revision: whether all have by now, for the first time, and which of two
    /// is not needed then.
    fn begins(&mut self, id: i64, now: i64) -> (bool, Option<i64>) {
        if self.twin.is_some() && id == self.id {
            self.at = now;
            return (false, None);
        }
        let first = !std::mem::replace(&mut self.begun, true);
        let spare = self.twin.take().map(|twin| match self.at == now {
            true => twin,
            false => std::mem::replace(&mut self.id, twin),
        });
        (first, spare)
    }
}

impl Watches {
    pub(crate) fn new(link: Arc<Link>, listener: Listener) -> Arc<Self> {
        let (state, poke, closed) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Arc::new(Self { link, state, poke, closed, lost: AtomicBool::new(false), listener })
    }

    /// Completes when the key is deleted after a revision, or that cannot be told any more.
    pub(crate) async fn gone(self: &Arc<Self>, spots: &[Spot], seen: i64) {
        let wakeup = Arc::new(Notify::new());
        let _watching = Wakeups { watches: self, spots, wakeup: &wakeup };
        {
            let mut state = self.state.lock();
            for spot in spots {
                state.care(spot, seen + 1).wakeups.push(wakeup.clone());
            }
            self.run(&mut state);
            self.tell(state);
        }
        wakeup.notified().await;
    }

    /// An entry of one's own is to be watched, unless it is gone again soon; and if it is alone in
    /// its queue, joins of that too.
    pub(crate) fn own(self: &Arc<Self>, spot: &Spot, req: ReqId, created: i64, joins: Joins) {
        let mut state = self.state.lock();
        state.own.insert(spot.clone(), (req, Own::Stands));
        let (idle, at) = (state.young.is_empty(), self.link.clock.now().plus(YOUNG));
        state.young.push_back(Young { at, spot: spot.clone(), from: created + 1, joins: false });
        state.hear_joins(spot, created + 1, joins, at);
        self.stir(state, idle);
    }

    /// An entry of one's own that was proven is alone in the queue.
    pub(crate) fn alone(self: &Arc<Self>, spot: &Spot, seen: i64, joins: Joins) {
        let mut state = self.state.lock();
        let (idle, at) = (state.young.is_empty(), self.link.clock.now().plus(YOUNG));
        state.hear_joins(spot, seen + 1, joins, at);
        self.stir(state, idle);
    }

    /// Whether joins of a queue are heard of, as far as is known.
    pub(crate) fn hear_joins(&self) -> bool {
        !self.lost.load(Ordering::Acquire)
    }

    /// Something is to be watched, now or soon; nothing was to be watched soon if it was `idle`.
    fn stir(self: &Arc<Self>, mut state: MutexGuard<'_, State>, idle: bool) {
        self.run(&mut state);
        let poke = (idle && !state.young.is_empty()) || !state.changes.is_empty();
        drop(state);
        if poke {
            self.poke.notify_one();
        }
    }

    /// An entry of one's own is about to be given back.
    pub(crate) fn expect_leave(&self, spot: &Spot) {
        let mut state = self.state.lock();
        if let Some((_, own)) = state.own.get_mut(spot) {
            *own = Own::Leaves;
        }
        state.accompany(spot);
        state.tidy(spot);
        self.tell(state);
    }

    /// An entry of one's own is gone, and waiters for that hear of it.
    pub(crate) fn left(&self, spot: &Spot) {
        let mut state = self.state.lock();
        state.own.remove(spot);
        state.accompany(spot);
        state.ring(spot);
        state.tidy(spot);
        self.tell(state);
    }

    /// No request here will tell when this entry is gone: the server must.
    pub(crate) fn insist(self: &Arc<Self>, spot: &Spot) {
        let mut state = self.state.lock();
        state.own.remove(spot);
        state.accompany(spot);
        state.tidy(spot);
        if let Some(from) = state.keys.get(spot).map(|w| w.from) {
            state.watch(spot, from, true);
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
        self.state.lock().rung.contains(spot)
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

    async fn serve(self: &Arc<Self>) {
        let mut pause = PAUSE;
        loop {
            let (tx, rx) = unbounded_channel();
            if !self.ask_all(&tx) {
                // Nothing to watch yet: somebody young may grow up meanwhile.
                self.nap().await;
                continue;
            }
            let stream = self.link.stream(rx).await;
            if stream.is_ok() {
                self.lost.store(false, Ordering::Release);
            }
            let end = async { self.listen(&tx, stream?).await }.await;
            // Told after it is known: whoever is granted between the two knows.
            if !self.lost.swap(true, Ordering::AcqRel) {
                (self.listener)(News::Lost);
            }
            pause = match end {
                Ok(()) => (pause * 2).min(REFUSED),
                Err(e) => {
                    tracing::debug!(store = %self.link.site, error = %e, "watches lost");
                    PAUSE
                }
            };
            self.link.clock.sleep(pause).await;
        }
    }

    /// Until somebody pokes, or the oldest of the young is old enough.
    async fn nap(&self) {
        let next =
            self.state.lock().young.front().map_or(BootInstant::FAR, |young| young.at.plus(STEP));
        tokio::select! {
            biased;
            () = self.poke.notified() => {}
            () = self.link.clock.sleep_until(next) => {}
        }
        self.state.lock().grow_up(self.link.clock.now());
    }

    /// Asks for everything that is watched, on a new stream.
    fn ask_all(&self, tx: &UnboundedSender<WatchRequest>) -> bool {
        let mut state = self.state.lock();
        state.changes.clear();
        let mut any = false;
        for (spot, watched) in &state.keys {
            for (id, from) in watched.asked.iter().flat_map(|asked| asked.again(watched.from)) {
                let _ = tx.send(create(spot, id, from));
                any = true;
            }
        }
        for (spot, JoinWatch { asked, from }) in &state.alone {
            for (id, from) in asked.again(*from) {
                let _ = tx.send(joins_of_queue(spot, id, from));
                any = true;
            }
        }
        any
    }

    /// Hears what is watched until the stream is lost, or until a watch is refused: then the stream
    /// must be opened anew, with another login.
    async fn listen(
        self: &Arc<Self>,
        tx: &UnboundedSender<WatchRequest>,
        mut stream: OpenStream<'_, WatchResponse>,
    ) -> Result<(), Error> {
        loop {
            let changes = std::mem::take(&mut self.state.lock().changes);
            changes.into_iter().for_each(|c| drop(tx.send(c)));
            tokio::select! {
                biased;
                said = stream.next() => if !self.hear(said?) {
                    stream.is_refused();
                    return Ok(());
                },
                () = self.nap() => {}
            }
        }
    }

    /// What the stream tells; false when a watch was refused.
    fn hear(self: &Arc<Self>, said: WatchResponse) -> bool {
        let mut news = Vec::new();
        let mut state = self.state.lock();
        let spot = state.by_id.get(&said.watch_id).cloned();
        if is_refusal(&said, spot.is_some()) {
            drop(state);
            let (store, reason) = (&self.link.site, &said.cancel_reason);
            tracing::warn!(store = %store, reason, "a watch was refused: logging in again");
            return false;
        }
        let Some(spot) = spot else { return true };
        if said.created && !said.canceled {
            let now = said.header.map_or(i64::MAX, |h| h.revision);
            if let Some(id) = state.begins(&spot, said.watch_id, now) {
                state.looks.push_back((spot, id));
                self.look(state);
            }
            return true;
        }
        if state.is_company(&spot, said.watch_id) {
            let key = keys::of_spot(&spot).as_bytes();
            let other = |e: &Event| e.kv.as_ref().is_some_and(|kv| kv.key != key);
            // What was forgotten may have been somebody who joined.
            if said.canceled || said.events.iter().any(other) {
                state.joined(&spot, &mut news);
            }
            self.tell_news(state, news);
            return true;
        }
        if said.canceled {
            // What happened since it was read is forgotten: everybody looks for himself.
            state.missed(&spot, &mut news);
            state.unwatch(&spot);
            if state.stands(&spot).is_some() {
                state.watch(&spot, said.compact_revision, false);
            }
        }
        for event in said.events {
            let Some(kv) = event.kv else { continue };
            if event.kind == 1 {
                state.deleted(&spot, &mut news);
                continue;
            }
            if let Some(watched) = state.keys.get_mut(&spot) {
                watched.from = watched.from.max(kv.mod_revision + 1);
            }
            if let Some(req) = state.stands(&spot) {
                news.push((req, EntryNews::Put(kv.value)));
            }
        }
        self.tell_news(state, news);
        true
    }

    fn tell_news(&self, state: MutexGuard<'_, State>, news: Vec<(ReqId, EntryNews)>) {
        drop(state);
        news.into_iter().for_each(|(req, news)| (self.listener)(News::Of(req, news)));
    }

    /// Looks at what may have happened before watches began.
    fn look(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if !std::mem::replace(&mut state.looking, true) {
            let all = self.clone();
            engine::spawn(async move { while all.look_at_some().await {} });
        }
    }

    /// One look for many; false when there is nothing to look at. The member that is asked began
    /// the watches, so what it knows now is no older than that. If it is another one by now, the
    /// watches begin there in the past.
    async fn look_at_some(&self) -> bool {
        let some: Vec<(Spot, i64)> = {
            let mut state = self.state.lock();
            let n = state.looks.len().min(AT_ONCE);
            state.looking = n > 0;
            state.looks.drain(..n).collect()
        };
        if some.is_empty() {
            return false;
        }
        let ask = |(spot, id): &(Spot, i64)| match self.state.lock().is_company(spot, *id) {
            true => txn::crowd(keys::queue_of(keys::of_spot(spot))),
            false => txn::there(keys::of_spot(spot)),
        };
        let success = some.iter().map(ask).collect();
        let said = self.link.call(&TxnRequest { success, ..TxnRequest::default() }).await;
        let said = said.map(|answer| answer.said);
        let mut found = said.iter().flat_map(txn::ranges);
        let (mut state, mut news) = (self.state.lock(), Vec::new());
        for (spot, id) in &some {
            let range = found.next();
            if state.by_id.get(id) == Some(spot) {
                state.looked(spot, *id, range, &mut news);
            }
        }
        self.tell_news(state, news);
        true
    }
}

/// Whether a watch was refused: a token that ended since the stream was opened is taken for somebody
/// without permission. A cancel of our own is of a watch that is not known any more, and has no
/// reason. Servers before 3.5 name the watch that they refuse, later ones none.
fn is_refusal(said: &WatchResponse, known: bool) -> bool {
    said.canceled && said.compact_revision == 0 && (known || !said.cancel_reason.is_empty())
}

/// Where a watch begins that was never there before.
const NOW: i64 = 0;

fn create(spot: &Spot, watch_id: i64, start_revision: i64) -> WatchRequest {
    let key = keys::of_spot(spot).as_bytes().to_vec();
    let create = WatchCreate { key, start_revision, watch_id, ..WatchCreate::default() };
    WatchRequest { request: Some(Watching::Create(create)) }
}

/// Joins of the queue of an entry.
fn joins_of_queue(spot: &Spot, watch_id: i64, start_revision: i64) -> WatchRequest {
    let line = keys::queue_of(keys::of_spot(spot));
    let (key, range_end) = (line.as_bytes().to_vec(), keys::after(line));
    let create = WatchCreate { key, range_end, start_revision, watch_id, filters: vec![1] };
    WatchRequest { request: Some(Watching::Create(create)) }
}

impl State {
    /// The request at this spot, if it is an own entry that is there.
    fn stands(&self, spot: &Spot) -> Option<ReqId> {
        self.own.get(spot).filter(|(_, own)| *own == Own::Stands).map(|(req, _)| *req)
    }

    fn is_company(&self, spot: &Spot, id: i64) -> bool {
        self.alone.get(spot).is_some_and(|c| c.asked.is(id))
    }

    /// Asks the server for a watch; twice, if its news is urgent.
    fn ask(
        &mut self,
        spot: &Spot,
        what: fn(&Spot, i64, i64) -> WatchRequest,
        urgent: bool,
    ) -> Asked {
        let id = self.last_id + 1;
        let twin = urgent.then_some(id + 1);
        for id in [Some(id), twin].into_iter().flatten() {
            self.last_id = id;
            self.by_id.insert(id, spot.clone());
            self.changes.push(what(spot, id, NOW));
        }
        Asked { id, twin, at: NOW, begun: false }
    }

    fn cancel(&mut self, watch_id: i64) {
        self.by_id.remove(&watch_id);
        let cancel = Watching::Cancel(WatchCancel { watch_id });
        self.changes.push(WatchRequest { request: Some(cancel) });
    }

    fn cancel_all(&mut self, asked: &Asked) {
        self.cancel(asked.id);
        asked.twin.into_iter().for_each(|twin| self.cancel(twin));
    }

    /// An entry is alone in the queue no more, or gone.
    fn accompany(&mut self, spot: &Spot) {
        if let Some(JoinWatch { asked, .. }) = self.alone.remove(spot) {
            self.cancel_all(&asked);
        }
    }

    /// Somebody waits for the end of an entry. The end of an own entry is told here.
    fn care(&mut self, spot: &Spot, from: i64) -> &mut Watched {
        if !self.own.contains_key(spot) {
            return self.watch(spot, from, true);
        }
        self.unwatched(spot, from)
    }

    fn unwatched(&mut self, spot: &Spot, from: i64) -> &mut Watched {
        let unwatched = || Watched { asked: None, from, wakeups: Vec::new() };
        self.keys.entry(spot.clone()).or_insert_with(unwatched)
    }

    /// The server is to tell of an entry.
    fn watch(&mut self, spot: &Spot, from: i64, urgent: bool) -> &mut Watched {
        let asked = match self.keys.get(spot).is_some_and(|watched| watched.asked.is_some()) {
            true => None,
            false => Some(self.ask(spot, create, urgent)),
        };
        let watched = self.unwatched(spot, from);
        if asked.is_some() {
            watched.from = watched.from.min(from);
            watched.asked = asked;
        }
        watched
    }

    /// A watch begins at this revision; which one is to be looked at, because something may have
    /// happened before.
    fn begins(&mut self, spot: &Spot, id: i64, now: i64) -> Option<i64> {
        let (from, asked) = match self.alone.get_mut(spot).filter(|c| c.asked.is(id)) {
            Some(watch) => (watch.from, &mut watch.asked),
            None => {
                let watched = self.keys.get_mut(spot)?;
                (watched.from, watched.asked.as_mut().filter(|asked| asked.is(id))?)
            }
        };
        let (first, spare) = asked.begins(id, now);
        let kept = asked.id;
        spare.into_iter().for_each(|spare| self.cancel(spare));
        (first && now >= from).then_some(kept)
    }

    /// What the look after a watch began has found; `None` when that failed.
    fn looked(
        &mut self,
        spot: &Spot,
        id: i64,
        found: Option<&RangeResponse>,
        news: &mut Vec<(ReqId, EntryNews)>,
    ) {
        if self.is_company(spot, id) {
            if found.is_none_or(|range| range.count > 1) {
                self.joined(spot, news);
            }
            return;
        }
        let Some(range) = found else { return self.missed(spot, news) };
        let created = keys::created(spot);
        let Some(kv) = range.kvs.first().filter(|kv| kv.create_revision == created) else {
            return self.deleted(spot, news);
        };
        if kv.mod_revision > created
            && let Some(req) = self.stands(spot)
        {
            news.push((req, EntryNews::Put(kv.value.clone())));
        }
    }

    /// An entry is gone.
    fn deleted(&mut self, spot: &Spot, news: &mut Vec<(ReqId, EntryNews)>) {
        news.extend(self.stands(spot).map(|req| (req, EntryNews::Deleted)));
        self.ring(spot);
        self.own.remove(spot);
        self.accompany(spot);
        self.tidy(spot);
    }

    /// Somebody stands behind an entry of our own, or may.
    fn joined(&mut self, spot: &Spot, news: &mut Vec<(ReqId, EntryNews)>) {
        self.accompany(spot);
        news.extend(self.own.get(spot).map(|(req, _)| (*req, EntryNews::Joined)));
    }

    /// What happened to an entry is not known.
    fn missed(&mut self, spot: &Spot, news: &mut Vec<(ReqId, EntryNews)>) {
        self.ring(spot);
        news.extend(self.own.get(spot).map(|(req, _)| (*req, EntryNews::Missed)));
    }

    fn ring(&mut self, spot: &Spot) {
        let Some(watched) = self.keys.get_mut(spot).filter(|w| !w.wakeups.is_empty()) else {
            return;
        };
        watched.wakeups.drain(..).for_each(|wakeup| wakeup.notify_one());
        self.rung.truncate(RUNG - 1);
        self.rung.push_front(spot.clone());
    }

    /// Ends the watches of an entry.
    fn unwatch(&mut self, spot: &Spot) {
        if let Some(asked) = self.keys.remove(spot).and_then(|w| w.asked) {
            self.cancel_all(&asked);
        }
    }

    /// Ends a watch that nobody cares for.
    fn tidy(&mut self, spot: &Spot) {
        let own = self.stands(spot).is_some();
        if self.keys.get(spot).is_none_or(|w| !w.wakeups.is_empty() || own) {
            return;
        }
        self.unwatch(spot);
    }

    fn grow_up(&mut self, now: BootInstant) {
        while self.young.front().is_some_and(|young| young.at <= now) {
            let Some(Young { spot, from, joins, .. }) = self.young.pop_front() else {
                return;
            };
            if self.stands(&spot).is_none() {
                continue;
            }
            if joins {
                self.watch_joins(&spot, from);
            } else {
                self.watch(&spot, from, false);
            }
        }
    }

    /// Joins behind an own entry are to be heard of, at once or from this moment on.
    fn hear_joins(&mut self, spot: &Spot, from: i64, joins: Joins, at: BootInstant) {
        match joins {
            Joins::Now if self.stands(spot).is_some() => self.watch_joins(spot, from),
            Joins::Soon if !self.alone.contains_key(spot) => {
                self.young.push_back(Young { at, spot: spot.clone(), from, joins: true });
            }
            _ => {}
        }
    }

    fn watch_joins(&mut self, spot: &Spot, from: i64) {
        if !self.alone.contains_key(spot) {
            let asked = self.ask(spot, joins_of_queue, false);
            self.alone.insert(spot.clone(), JoinWatch { asked, from });
        }
    }
}

/// A waiter's wakeups at the keys it watches, taken down when it does not wait any more.
struct Wakeups<'a> {
    watches: &'a Arc<Watches>,
    spots: &'a [Spot],
    wakeup: &'a Arc<Notify>,
}

impl Drop for Wakeups<'_> {
    fn drop(&mut self) {
        let mut state = self.watches.state.lock();
        for spot in self.spots {
            if let Some(watched) = state.keys.get_mut(spot) {
                watched.wakeups.retain(|b| !Arc::ptr_eq(b, self.wakeup));
            }
            state.tidy(spot);
        }
        self.watches.tell(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As servers of different versions say it.
    #[test]
    fn a_refusal_is_told_from_a_cancel_of_our_own() {
        let said = |watch_id, reason: &str, compact_revision| WatchResponse {
            watch_id,
            canceled: true,
            cancel_reason: reason.to_owned(),
            compact_revision,
            ..WatchResponse::default()
        };
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert!(is_refusal(&said(7, denied, 0), true), "3.4");
        assert!(is_refusal(&said(-1, denied, 0), false), "3.5 and later");
        assert!(is_refusal(&said(-1, "etcdserver: invalid auth token", 0), false));
        assert!(!is_refusal(&said(7, "", 0), false), "our own cancel");
        assert!(!is_refusal(&said(7, "", 42), true), "compacted");
    }

    fn spot() -> Spot {
        keys::spot("distlock/locks/a/1", 7)
    }

    /// What the stream is told since the last time: ids asked for, and ids cancelled.
    fn told(state: &mut State) -> (Vec<i64>, Vec<i64>) {
        let (mut asked, mut cancelled) = (Vec::new(), Vec::new());
        for change in state.changes.drain(..) {
            match change.request {
                Some(Watching::Create(create)) => asked.push(create.watch_id),
                Some(Watching::Cancel(cancel)) => cancelled.push(cancel.watch_id),
                None => {}
            }
        }
        (asked, cancelled)
    }

    #[test]
    fn a_watch_that_no_write_came_across_is_kept() {
        let mut state = State::default();
        state.watch(&spot(), 10, true);
        assert_eq!(told(&mut state), (vec![1, 2], vec![]));
        assert_eq!(state.begins(&spot(), 1, 9), None);
        assert_eq!(state.begins(&spot(), 2, 9), None, "nothing happened since the read");
        assert_eq!(told(&mut state), (vec![], vec![2]));
        assert!(state.by_id.contains_key(&1) && !state.by_id.contains_key(&2));
    }

    /// The first may begin in the past, and then etcd tells of its event late.
    #[test]
    fn a_watch_that_a_write_came_across_is_replaced_by_its_twin() {
        let mut state = State::default();
        state.watch(&spot(), 10, true);
        let _ = told(&mut state);
        assert_eq!(state.begins(&spot(), 1, 9), None);
        assert_eq!(state.begins(&spot(), 2, 10), Some(2), "and looked at");
        assert_eq!(told(&mut state), (vec![], vec![1]));
        assert!(state.by_id.contains_key(&2) && !state.by_id.contains_key(&1));
    }

    #[test]
    fn a_watch_that_nobody_waits_for_is_asked_for_once() {
        let mut state = State::default();
        state.watch(&spot(), 10, false);
        assert_eq!(told(&mut state), (vec![1], vec![]));
        assert_eq!(state.begins(&spot(), 1, 12), Some(1));
        assert_eq!(state.begins(&spot(), 1, 14), None, "begun again on a new stream");
        assert_eq!(told(&mut state), (vec![], vec![]));
    }

    #[test]
    fn the_end_of_an_entry_cancels_both_watches_of_it() {
        let mut state = State::default();
        state.watch(&spot(), 10, true);
        let _ = told(&mut state);
        assert_eq!(state.begins(&spot(), 1, 9), None);
        state.deleted(&spot(), &mut Vec::new());
        assert_eq!(told(&mut state), (vec![], vec![1, 2]));
        assert!(state.by_id.is_empty());
    }

    #[test]
    fn a_new_stream_asks_for_both_unless_they_have_begun() {
        let mut state = State::default();
        let asks = |state: &State| {
            let watched = state.keys.get(&spot()).and_then(|w| Some((w.asked.as_ref()?, w.from)));
            watched.map(|(asked, from)| asked.again(from).collect::<Vec<_>>())
        };
        state.watch(&spot(), 10, true);
        let _ = state.begins(&spot(), 1, 9);
        assert_eq!(asks(&state), Some(vec![(1, NOW), (2, NOW)]));
        let _ = state.begins(&spot(), 2, 9);
        assert_eq!(asks(&state), Some(vec![(1, 10)]));
    }
}
