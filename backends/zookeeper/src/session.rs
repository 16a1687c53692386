//! One session with the ensemble: its connection, what it has in the queue, and how long it lasts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{BootInstant, ClockReading, Error, FullName, Key, Lease, Mutex, ReqId, Token};
use tokio::sync::{Notify, watch};
use zookeeper_client::{Client, CreateMode, Error as Zk, StateWatcher};

use crate::errors::{is_over, trouble};
use crate::own_entry::OwnEntry;
use crate::session_deadline::Pulse;
use crate::store::Shared;

/// A session. It ends, with all it has in the queue, when the leader has not heard of it for its
/// timeout.
pub(crate) struct Session {
    /// `None` once it is let go: the connection ends then, and the session when its time is over.
    client: Mutex<Option<Arc<Client>>>,
    state: StateWatcher,
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    /// The node it writes to, to show that it is there.
    pub(crate) beat: String,
    pulse: Mutex<Pulse>,
    entries: Mutex<Entries>,
    /// No new entries: another took its place.
    pub(crate) retired: AtomicBool,
    over: watch::Sender<bool>,
    /// Until when an entry may appear that is not on record here.
    doubt: AtomicU64,
    used: AtomicU64,
    /// Rung when it should look after itself sooner.
    pub(crate) hurry: Notify,
}

#[derive(Default)]
struct Entries {
    by_req: HashMap<ReqId, Entry>,
    queues: HashMap<FullName, Ours>,
}

/// What a session has in one queue.
#[derive(Default)]
struct Ours {
    /// How many, with those whose join is unanswered.
    all: usize,
    /// Those whose place is known, in the order of the queue.
    seated: VecDeque<(Token, ReqId)>,
}

/// A request that has, or may have, an entry in the queue.
struct Entry {
    key: Key,
    /// `None` while its join is unanswered.
    place: Option<OwnEntry>,
}

impl Session {
    /// Makes its node, and looks after it from then on.
    pub(crate) async fn begin(
        shared: &Arc<Shared>,
        client: Client,
        asked: ClockReading,
        tick: Duration,
    ) -> Result<Arc<Self>, Error> {
        let ttl = client.session_timeout();
        let session = Arc::new(Self {
            beat: format!("{}/{}", shared.clients(), ReqId::random()),
            pulse: Mutex::new(Pulse::new(asked, ttl, tick)),
            entries: Mutex::default(),
            retired: AtomicBool::new(false),
            over: watch::Sender::new(false),
            doubt: AtomicU64::new(0),
            used: AtomicU64::new(asked.boot.as_nanos()),
            hurry: Notify::new(),
            state: client.state_watcher(),
            id: client.session_id().0,
            client: Mutex::new(Some(Arc::new(client))),
            ttl,
        });
        session.show(shared).await?;
        Ok(session)
    }

    /// Its connection.
    pub(crate) fn client(&self) -> Result<Arc<Client>, Zk> {
        self.client.lock().clone().ok_or(Zk::ClientClosed)
    }

    pub(crate) fn state(&self) -> StateWatcher {
        self.state.clone()
    }

    /// Writes its node, which only most of the servers together can acknowledge.
    pub(crate) async fn show(&self, shared: &Shared) -> Result<(), Error> {
        let sent = shared.reading();
        let client = self.client().map_err(trouble)?;
        match client.set_data(&self.beat, &[], None).await {
            Ok(_) => {}
            // At first, and when another client has swept too well.
            Err(Zk::NoNode) => self.make_beat(shared, &client).await?,
            Err(e) => return Err(self.failed(e)),
        }
        self.heard(sent, shared.reading());
        Ok(())
    }

    async fn make_beat(&self, shared: &Shared, client: &Client) -> Result<(), Error> {
        let options = CreateMode::Ephemeral.with_acls(shared.options.acls());
        loop {
            match client.create(&self.beat, &[], &options).await {
                Ok(_) | Err(Zk::NodeExists) => return Ok(()),
                Err(Zk::NoNode) => {
                    shared.make_container(client, &shared.clients()).await.map_err(trouble)?;
                }
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// What became of a call; notes when the session is over.
    pub(crate) fn failed(&self, e: Zk) -> Error {
        if is_over(&e) {
            self.end();
        }
        trouble(e)
    }

    /// A write was acknowledged.
    pub(crate) fn heard(&self, sent: ClockReading, now: ClockReading) {
        self.pulse.lock().acknowledged(sent, now);
    }

    pub(crate) fn lease(&self) -> Lease {
        self.pulse.lock().lease()
    }

    /// Whether it is known to have ended.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow() || self.state.peek_state().is_terminated()
    }

    /// Lets go of the connection.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
        self.client.lock().take();
        self.hurry.notify_one();
    }

    /// Completes when it has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Something sent may arrive later than was thought: for a while it is looked for.
    pub(crate) fn doubt(&self, now: BootInstant) {
        let until = now.plus(self.ttl).as_nanos();
        self.doubt.fetch_max(until, Ordering::AcqRel);
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubt.load(Ordering::Acquire) > 0
    }

    /// Looked for, and nothing is left.
    pub(crate) fn swept(&self, now: BootInstant) {
        let until = self.doubt.load(Ordering::Acquire);
        if until <= now.as_nanos() {
            let _ = self.doubt.compare_exchange(until, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether a new entry may stand in it: there must be time to keep it.
    pub(crate) fn serves(&self, now: ClockReading) -> bool {
        !self.is_over()
            && !self.retired.load(Ordering::Acquire)
            && self.lease().left(now) > self.ttl / 10
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.hurry.notify_one();
    }

    pub(crate) fn touch(&self, now: BootInstant) {
        self.used.store(now.as_nanos(), Ordering::Release);
    }

    pub(crate) fn used(&self) -> BootInstant {
        BootInstant::from_nanos(self.used.load(Ordering::Acquire))
    }

    /// A request is about to be put in the queue; true when others of this session are there.
    pub(crate) fn expect(&self, key: Key) -> bool {
        let mut entries = self.entries.lock();
        if entries.by_req.contains_key(&key.req) {
            return true;
        }
        let lock = key.lock.clone();
        entries.by_req.insert(key.req, Entry { key, place: None });
        let ours = entries.queues.entry(lock).or_default();
        ours.all += 1;
        ours.all > 1
    }

    /// How many of this session stand in a queue.
    pub(crate) fn count_in(&self, lock: &FullName) -> usize {
        self.entries.lock().queues.get(lock).map_or(0, |ours| ours.all)
    }

    /// It is in the queue.
    pub(crate) fn note_entry(&self, req: &ReqId, place: &OwnEntry) {
        let mut entries = self.entries.lock();
        let entries = &mut *entries;
        let Some(entry) = entries.by_req.get_mut(req) else { return };
        entry.place = Some(place.clone());
        if let Some(ours) = entries.queues.get_mut(&entry.key.lock) {
            let token = place.0.token;
            let at = ours.seated.partition_point(|(other, _)| *other < token);
            ours.seated.insert(at, (token, *req));
        }
    }

    /// The first entry once this one has left, if it is a waiter of this session.
    pub(crate) fn next(&self, key: &Key, leaving: &OwnEntry) -> Option<OwnEntry> {
        let entries = self.entries.lock();
        let seated = &entries.queues.get(&key.lock)?.seated;
        let (first, next) = (seated.front()?, seated.get(1)?);
        let next = entries.by_req.get(&next.1)?.place.as_ref()?;
        // Only these two are left of all that were ahead of it.
        (first.0 == leaving.0.token && next.is_clear() && next.waits()).then(|| next.clone())
    }

    /// A place of this session, by its name.
    pub(crate) fn seated(&self, name: &str) -> Option<OwnEntry> {
        let place = self.place(&crate::node_names::request(name)?)?;
        (place.name() == name).then_some(place)
    }

    /// Whether all of these are places of this session.
    pub(crate) fn all_seated<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let entries = self.entries.lock();
        names.into_iter().all(|name| {
            let entry = crate::node_names::request(name).and_then(|req| entries.by_req.get(&req));
            entry.and_then(|e| e.place.as_ref()).is_some_and(|place| place.name() == name)
        })
    }

    /// Where it stands, if that is known.
    pub(crate) fn place(&self, req: &ReqId) -> Option<OwnEntry> {
        self.entries.lock().by_req.get(req)?.place.clone()
    }

    /// It is not in the queue any more, and never comes: entries behind it may count on that.
    pub(crate) fn forget(&self, req: &ReqId) {
        let mut entries = self.entries.lock();
        let Some(gone) = entries.by_req.remove(req) else { return };
        let Some(ours) = entries.queues.get_mut(&gone.key.lock) else { return };
        ours.all -= 1;
        if ours.all == 0 {
            entries.queues.remove(&gone.key.lock);
        } else if let Some(at) = ours.seated.iter().position(|(_, r)| r == req) {
            ours.seated.remove(at);
        }
    }

    pub(crate) fn knows(&self, req: &ReqId) -> bool {
        self.entries.lock().by_req.contains_key(req)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.lock().by_req.is_empty()
    }

    /// All it has in the queue, taken: the session is over.
    pub(crate) fn take(&self) -> Vec<Key> {
        let entries = std::mem::take(&mut *self.entries.lock());
        entries.by_req.into_values().map(|e| e.key).collect()
    }

    /// What is held and not yet watched.
    pub(crate) fn unwatched(&self) -> Vec<(Key, OwnEntry)> {
        let entries = self.entries.lock();
        let seats = entries.by_req.values().filter_map(|e| Some((&e.key, e.place.as_ref()?)));
        let held = seats.filter(|(_, place)| place.to_watch());
        held.map(|(key, place)| (key.clone(), place.clone())).collect()
    }

    /// Whether an entry of this name is known, or of a request whose answer is still to come.
    pub(crate) fn accounts_for(&self, req: &ReqId, name: &str) -> bool {
        let entries = self.entries.lock();
        let place = entries.by_req.get(req).map(|e| e.place.as_ref());
        place.is_some_and(|place| place.is_none_or(|place| place.name() == name))
    }
}
