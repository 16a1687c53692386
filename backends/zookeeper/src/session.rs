//! One session with the ensemble: its connection, what it has in line, and how long it lasts.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::backend::Key;
use distlock_core::queue::Lease;
use distlock_core::{BootInstant, ClockReading, Error, FullName, ReqId, Token};
use tokio::sync::{Notify, watch};
use zookeeper_client::{Client, CreateMode, Error as Zk, StateWatcher};

use crate::errors::{is_over, trouble};
use crate::own_entry::OwnEntry;
use crate::session_deadline::Pulse;
use crate::store::Shared;

/// A session. It ends, with all it has in line, when the leader has not heard of it for its
/// timeout.
pub(crate) struct Session {
    /// `None` once it is let go: the connection ends then, and the session when its time is over.
    client: Mutex<Option<Arc<Client>>>,
    state: StateWatcher,
    id: i64,
    pub(crate) ttl: Duration,
    /// The node it writes to, to show that it is there.
    pub(crate) beat: String,
    pulse: Mutex<Pulse>,
    entries: Mutex<Entries>,
    /// No new entries: another took its place.
    pub(crate) retired: AtomicBool,
    over: watch::Sender<bool>,
    /// Until when something may come to stand in line that nobody here knows of.
    doubt: AtomicU64,
    used: AtomicU64,
    /// Rung when it should look after itself sooner.
    pub(crate) hurry: Notify,
}

#[derive(Default)]
struct Entries {
    by_req: HashMap<ReqId, Entry>,
    lines: HashMap<FullName, Ours>,
}

/// What a session has in one line.
#[derive(Default)]
struct Ours {
    /// How many, with those whose join is unanswered.
    all: usize,
    /// Those whose place is known, in the order of the line.
    seated: VecDeque<(Token, ReqId)>,
}

/// A request that has, or may have, an entry in line.
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
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.clone().ok_or(Zk::ClientClosed)
    }

    pub(crate) fn state(&self) -> StateWatcher {
        self.state.clone()
    }

    /// Writes its node, which only most of the servers together can acknowledge.
    pub(crate) async fn show(&self, shared: &Shared) -> Result<(), Error> {
        let sent = shared.moment();
        let client = self.client().map_err(trouble)?;
        match client.set_data(&self.beat, &[], None).await {
            Ok(_) => {}
            // At first, and when somebody has swept too well.
            Err(Zk::NoNode) => self.make_beat(shared, &client).await?,
            Err(e) => return Err(self.failed(e)),
        }
        self.heard(sent, shared.moment());
        Ok(())
    }

    async fn make_beat(&self, shared: &Shared, client: &Client) -> Result<(), Error> {
        let options = CreateMode::Ephemeral.with_acls(shared.options.acls());
        loop {
            match client.create(&self.beat, &[], &options).await {
                Ok(_) | Err(Zk::NodeExists) => return Ok(()),
                Err(Zk::NoNode) => shared.make(client, &shared.clients()).await?,
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

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// A write was acknowledged.
    pub(crate) fn heard(&self, sent: ClockReading, now: ClockReading) {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).acknowledged(sent, now);
    }

    pub(crate) fn lease(&self) -> Lease {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).lease()
    }

    /// Whether it is known to have ended.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow() || self.state.peek_state().is_terminated()
    }

    /// Lets go of the connection.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
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

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to be put in line; true when others of this session are there.
    pub(crate) fn expect(&self, key: Key) -> bool {
        let mut entries = self.entries();
        if entries.by_req.contains_key(&key.req) {
            return true;
        }
        let lock = key.lock.clone();
        entries.by_req.insert(key.req, Entry { key, place: None });
        let ours = entries.lines.entry(lock).or_default();
        ours.all += 1;
        ours.all > 1
    }

    /// How many of this session stand in a line.
    pub(crate) fn crowd(&self, lock: &FullName) -> usize {
        self.entries().lines.get(lock).map_or(0, |ours| ours.all)
    }

    /// It is in line.
    pub(crate) fn seat(&self, req: &ReqId, place: &OwnEntry) {
        let mut entries = self.entries();
        let entries = &mut *entries;
        let Some(entry) = entries.by_req.get_mut(req) else { return };
        entry.place = Some(place.clone());
        if let Some(ours) = entries.lines.get_mut(&entry.key.lock) {
            let token = place.token();
            let at = ours.seated.partition_point(|(other, _)| *other < token);
            ours.seated.insert(at, (token, *req));
        }
    }

    /// Who is first in line once a place has left, if that is one of this session who waits.
    pub(crate) fn next(&self, key: &Key, leaving: &OwnEntry) -> Option<OwnEntry> {
        let entries = self.entries();
        let seated = &entries.lines.get(&key.lock)?.seated;
        let (first, next) = (seated.front()?, seated.get(1)?);
        let next = entries.by_req.get(&next.1)?.place.as_ref()?;
        // Nobody but these two is left of all who were ahead of it.
        (first.0 == leaving.token() && next.is_clear() && next.waits()).then(|| next.clone())
    }

    /// A place of this session, by its name.
    pub(crate) fn seated(&self, name: &str) -> Option<OwnEntry> {
        let place = self.place(&crate::node_names::request(name)?)?;
        (place.name() == name).then_some(place)
    }

    /// Whether all of these are places of this session.
    pub(crate) fn all_seated<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let entries = self.entries();
        names.into_iter().all(|name| {
            let entry = crate::node_names::request(name).and_then(|req| entries.by_req.get(&req));
            entry.and_then(|e| e.place.as_ref()).is_some_and(|place| place.name() == name)
        })
    }

    /// Where it stands, if that is known.
    pub(crate) fn place(&self, req: &ReqId) -> Option<OwnEntry> {
        self.entries().by_req.get(req)?.place.clone()
    }

    /// It is not in line any more, and never comes: whoever is behind it may count on that.
    pub(crate) fn forget(&self, req: &ReqId) {
        let mut entries = self.entries();
        let Some(gone) = entries.by_req.remove(req) else { return };
        let Some(ours) = entries.lines.get_mut(&gone.key.lock) else { return };
        ours.all -= 1;
        if ours.all == 0 {
            entries.lines.remove(&gone.key.lock);
        } else if let Some(at) = ours.seated.iter().position(|(_, r)| r == req) {
            ours.seated.remove(at);
        }
    }

    pub(crate) fn knows(&self, req: &ReqId) -> bool {
        self.entries().by_req.contains_key(req)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries().by_req.is_empty()
    }

    /// All it has in line, taken: the session is over.
    pub(crate) fn take(&self) -> Vec<Key> {
        let entries = std::mem::take(&mut *self.entries());
        entries.by_req.into_values().map(|e| e.key).collect()
    }

    /// What is held and not yet watched.
    pub(crate) fn unwatched(&self) -> Vec<(Key, OwnEntry)> {
        let entries = self.entries();
        let seats = entries.by_req.values().filter_map(|e| Some((&e.key, e.place.as_ref()?)));
        let held = seats.filter(|(_, place)| place.to_watch());
        held.map(|(key, place)| (key.clone(), place.clone())).collect()
    }

    /// Whether an entry of this name is known, or of a request whose answer is still to come.
    pub(crate) fn accounts_for(&self, req: &ReqId, name: &str) -> bool {
        let entries = self.entries();
        let place = entries.by_req.get(req).map(|e| e.place.as_ref());
        place.is_some_and(|place| place.is_none_or(|place| place.name() == name))
    }
}
