//! A line store in memory: sessions that expire, an ordered line, watches.
//!
//! What the driver's own tests run on. It can be told to fail, to fall silent, to answer late, to
//! end sessions and to lose watches.

mod table;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use distlock_core::backend::{Ask, Backend, Event, Kept, Key, StoreInfo};
use distlock_core::capability::{Expiry, Family, Order, Reentry, Survives, WakeUp};
use distlock_core::info::Query;
use distlock_core::lease::{EventSink, Wake};
use distlock_core::queue::{
    Entry, Joined, Keeping, Lease, Proven, QueueDriver, QueueStore, Snapshot, Spot,
};
use distlock_core::{
    BootInstant, Capability, Clock, ClockReading, Error, Fence, Force, Forced, FullName, Kind,
    LossReason, Name, Proof, Released, ReqId, Store, Token, Ttl, simulation,
};

use self::table::{LOCAL_BITS, SessionId, Table, revision, token};
use super::Fault;

static CAPABILITY: Capability = Capability {
    store: "line in memory",
    url: "",
    scope: "tasks of one process",
    family: Family::Queue,
    fence: Fence::Clocked,
    expiry: Expiry::Ttl,
    ttl_min: Ttl::MIN.get(),
    ttl_max: Ttl::MAX.get(),
    ttl_step: Duration::from_micros(1),
    restart: Survives::Ends,
    failover: Survives::NotApplicable,
    partition: Survives::Yes,
    order: Order::Fifo,
    reentry: Reentry::Client,
    shared: true,
    permits: true,
    detach: false,
    force: true,
    lock_delay: false,
    handover: true,
    linger: false,
    wake: WakeUp::Push,
    drift_percent: 10,
    drift_floor: Duration::from_millis(2),
    wall_witness: true,
    notes: &["For tests: everything is gone when the process ends."],
};

/// A line store in memory. Clones are clients of the same lines, with sessions of their own.
pub struct MemoryQueue {
    shared: Arc<Shared>,
    via: Spot,
    /// This client's sessions by TTL, and when each was last known to be kept.
    sessions: Mutex<BTreeMap<Duration, (SessionId, ClockReading)>>,
}

struct Shared {
    site: String,
    clock: Clock,
    table: Mutex<Table>,
    fault: Mutex<Fault>,
    /// The longest session it grants.
    longest: Mutex<Duration>,
    deaf: AtomicBool,
    stays: AtomicBool,
    sink: Mutex<BTreeMap<Spot, EventSink>>,
}

/// An entry of a client's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlace {
    revision: u64,
    session: SessionId,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryQueue {
    /// A store of its own.
    #[must_use]
    pub fn new(site: impl Into<String>, clock: Clock) -> Self {
        let shared = Shared {
            site: site.into(),
            clock,
            table: Mutex::default(),
            fault: Mutex::default(),
            longest: Mutex::new(Ttl::MAX.get()),
            deaf: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            sink: Mutex::default(),
        };
        Self::of(Arc::new(shared))
    }

    fn of(shared: Arc<Shared>) -> Self {
        let via = ReqId::random().to_string().into();
        Self { shared, via, sessions: Mutex::default() }
    }

    /// Another client of the same lines.
    #[must_use]
    pub fn client(&self) -> Self {
        Self::of(self.shared.clone())
    }

    /// Makes it misbehave, for all its clients.
    pub fn fault(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
    }

    /// Grants no longer sessions than this from now on, whatever is asked for.
    pub fn longest(&self, ttl: Duration) {
        *lock(&self.shared.longest) = ttl;
    }

    /// Whether watches and news get lost from now on.
    pub fn deaf(&self, deaf: bool) {
        self.shared.deaf.store(deaf, Ordering::Release);
    }

    /// Whether leaves fail from now on, though the store answers everything else.
    pub fn refuse_leaves(&self, refuse: bool) {
        self.shared.stays.store(refuse, Ordering::Release);
    }

    /// All watches end without telling of anything, as when a connection is made anew.
    pub fn lose_watches(&self) {
        lock(&self.shared.table).lose_watches();
    }

    /// Ends this client's sessions, as a store does that has not heard of it for long.
    pub fn expire(&self) {
        self.shared.with(|table, _| {
            let mine = |s: &table::Session| s.via == self.via;
            let ids: Vec<_> =
                table.sessions.iter().filter(|(_, s)| mine(s)).map(|(id, _)| *id).collect();
            ids.into_iter().for_each(|id| table.end_session(id));
        });
    }

    /// Removes a whole line, as an operator who deletes its record would.
    pub fn wipe(&self, name: &FullName) {
        self.shared.with(|table, _| {
            let all = table.locks.get(name).map(|l| l.iter().map(|e| e.revision).collect());
            let all: Vec<u64> = all.unwrap_or_default();
            all.into_iter().for_each(|revision| drop(table.remove(name, revision)));
        });
    }

    /// One line as it is now.
    #[must_use]
    pub fn peek(&self, name: &FullName) -> Snapshot {
        self.shared.with(|table, now| table.whole(name, now))
    }

    /// Whether a proof still holds: what a transaction at this store would ask.
    #[must_use]
    pub fn proves(&self, name: &FullName, proof: &Proof) -> bool {
        let live = |e: &Entry| {
            *e.spot == proof.key && i64::try_from(revision(e.token)) == Ok(proof.version)
        };
        self.peek(name).entries.iter().any(live)
    }

    /// How many watches have fired.
    #[must_use]
    pub fn wakes(&self) -> u64 {
        lock(&self.shared.table).wakes
    }

    /// How many questions it has served: joins, looks, proofs, renewals, leaves.
    #[must_use]
    pub fn calls(&self) -> u64 {
        lock(&self.shared.table).calls
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Table, BootInstant) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let fault = *lock(&self.shared.fault);
        let shared = self.shared.clone();
        fault
            .call(&self.shared.clock, &self.shared.site, move || {
                shared.with(|table, now| {
                    table.calls += 1;
                    work(table, now)
                })
            })
            .await
    }

    fn reading(&self) -> ClockReading {
        CAPABILITY.reading(&self.shared.clock)
    }

    fn lease(&self, sent: ClockReading, ttl: Duration) -> Lease {
        CAPABILITY.lease(sent, ttl)
    }

    /// The session for a TTL, kept just now: its number, what was asked of it, and its lease.
    async fn session(&self, wish: Duration) -> Result<(SessionId, Lease), Error> {
        let ttl = wish.min(*lock(&self.shared.longest));
        let known = lock(&self.sessions).get(&ttl).copied();
        let sent = self.reading();
        if let Some((id, kept)) = known
            && sent.since(kept) < ttl / 3
        {
            return Ok((id, self.lease(kept, ttl)));
        }
        let via = self.via.clone();
        let open = move |table: &mut Table, now| match known {
            Some((id, _)) if table.touch(id, now) => id,
            _ => table.open_session(&via, ttl, now),
        };
        let id = self.call(open).await?;
        lock(&self.sessions).insert(ttl, (id, sent));
        Ok((id, self.lease(sent, ttl)))
    }

    fn forget(&self, id: SessionId) {
        lock(&self.sessions).retain(|_, (known, _)| *known != id);
    }

    fn kept(&self, id: SessionId, sent: ClockReading) {
        if let Some((_, kept)) = lock(&self.sessions).values_mut().find(|(known, _)| *known == id)
            && sent.boot > kept.boot
        {
            *kept = sent;
        }
    }
}

impl Clone for MemoryQueue {
    /// A client of its own.
    fn clone(&self) -> Self {
        self.client()
    }
}

impl Shared {
    /// One move of the store; its news are told after it.
    fn with<T>(&self, work: impl FnOnce(&mut Table, BootInstant) -> T) -> T {
        let mut table = lock(&self.table);
        let now = self.clock.now();
        table.expire(now);
        let answer = work(&mut table, now);
        let news = std::mem::take(&mut table.news);
        drop(table);
        if !self.deaf.load(Ordering::Acquire) {
            for (via, wake) in news {
                let ear = lock(&self.sink).get(&via).cloned();
                if let Some(ear) = ear {
                    ear(wake);
                }
            }
        }
        answer
    }
}

impl Store for MemoryQueue {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(QueueDriver::new(self))
    }
}

impl QueueStore for MemoryQueue {
    type Place = MemoryPlace;

    const LOCAL_BITS: u32 = LOCAL_BITS;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &CAPABILITY, site: &self.shared.site, clock: &self.shared.clock }
    }

    fn tells_of_waiters(&self) -> bool {
        !self.shared.deaf.load(Ordering::Acquire)
    }

    fn token(&self, place: &MemoryPlace) -> Token {
        token(place.revision)
    }

    fn proof(&self, place: &MemoryPlace) -> Option<Proof> {
        let version = i64::try_from(place.revision).ok()?;
        Some(Proof { key: place.revision.to_string(), version })
    }

    async fn join(&self, ask: &Ask) -> Result<Joined<MemoryPlace>, Error> {
        loop {
            let (session, lease) = self.session(ask.ttl).await?;
            let ask = ask.clone();
            let joined = move |table: &mut Table, now| {
                if table.is_spent(&ask.req) {
                    return Some(Joined::Tombstoned);
                }
                if !table.sessions.contains_key(&session) {
                    return None;
                }
                let revision = table.join(&ask, session, now);
                let line = table.line(&ask.lock, revision, now);
                Some(Joined::In { place: MemoryPlace { revision, session }, queue: line, lease })
            };
            match self.call(joined).await? {
                Some(joined) => return Ok(joined),
                None => self.forget(session),
            }
        }
    }

    async fn queue(&self, name: &FullName, me: &MemoryPlace) -> Result<Snapshot, Error> {
        let (name, me) = (name.clone(), me.revision);
        self.call(move |table, now| table.line(&name, me, now)).await
    }

    async fn gone(&self, name: &FullName, watch: &[Spot], _seen: u64) {
        let bell = Arc::new(Notify::new());
        loop {
            if self.shared.deaf.load(Ordering::Acquire) {
                return std::future::pending().await;
            }
            // An entry is never made again: what is not there now has gone since.
            let end = self.shared.with(|table, _| table.watch(name, watch, &bell));
            let Some(end) = end else { return };
            tokio::select! {
                biased;
                () = bell.notified() => return,
                () = self.shared.clock.sleep_until(end) => {}
            }
        }
    }

    async fn prove(&self, key: &Key, place: &MemoryPlace) -> Result<Proven, Error> {
        let sent = self.reading();
        let (name, MemoryPlace { revision, session }) = (key.lock.clone(), place.clone());
        let prove = move |table: &mut Table, now| {
            let there = table.entry(&name, revision).is_some();
            let ttl = table.sessions.get(&session).map(|s| s.ttl);
            ttl.filter(|_| there && table.touch(session, now))
        };
        Ok(match self.call(prove).await? {
            Some(ttl) => {
                self.kept(session, sent);
                Proven::Mine(self.lease(sent, ttl))
            }
            None => Proven::Lost(LossReason::Gone),
        })
    }

    async fn keep(&self, places: &[Keeping<MemoryPlace>]) -> Vec<Kept> {
        let sent = self.reading();
        let all = places.to_vec();
        let keep = move |table: &mut Table, now| {
            let keep = |k: &Keeping<MemoryPlace>| {
                let ttl = table.sessions.get(&k.place.session).map(|s| s.ttl);
                let Some(ttl) = ttl else { return Err(LossReason::Disconnected) };
                let Some(entry) = table.entry(&k.key.lock, k.place.revision) else {
                    return Err(LossReason::Gone);
                };
                if entry.revoked {
                    return Err(LossReason::Revoked);
                }
                table.touch(k.place.session, now);
                // Whom only its session matters need not count who waits behind it.
                let behind = match k.held {
                    true => table.line(&k.key.lock, k.place.revision, now).behind,
                    false => 0,
                };
                Ok((ttl, behind))
            };
            all.iter().map(keep).collect::<Vec<_>>()
        };
        let answers = match self.call(keep).await {
            Ok(answers) => answers,
            Err(e) => return places.iter().map(|_| Kept::Unknown(e.clone())).collect(),
        };
        let kept = |(k, answer): (&Keeping<MemoryPlace>, Result<(Duration, u32), LossReason>)| {
            match answer {
                Ok((ttl, waiters)) => {
                    self.kept(k.place.session, sent);
                    Kept::Until { lease: self.lease(sent, ttl), waiters }
                }
                Err(why) => Kept::Lost(why),
            }
        };
        places.iter().zip(answers).map(kept).collect()
    }

    async fn leave(&self, key: &Key, _place: Option<&MemoryPlace>) -> Result<Released, Error> {
        if self.shared.stays.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Unreachable, "no leave is answered")
                .store(&self.shared.site)
                .with_hint("a test keeps them back"));
        }
        let key = key.clone();
        self.call(move |table, now| {
            table.spend(key.req, now);
            let there = table.revision_of(&key.req);
            match there.and_then(|revision| table.remove(&key.lock, revision)) {
                Some(entry) if !entry.revoked => Released::Released,
                _ => Released::WasLost,
            }
        })
        .await
    }

    async fn queues(&self, query: &Query) -> Result<Vec<(FullName, Snapshot)>, Error> {
        let query = query.clone();
        self.call(move |table, now| match &query {
            Query::Name(name) => match table.locks.contains_key(name) {
                true => vec![(name.clone(), table.whole(name, now))],
                false => Vec::new(),
            },
            Query::Prefix { space, prefix, after, limit } => {
                let from = |name: &Name| FullName { space: space.clone(), name: name.clone() };
                let start = match (after, Name::new(prefix)) {
                    (Some(after), _) => Bound::Excluded(from(after)),
                    (None, Ok(first)) => Bound::Included(from(&first)),
                    (None, Err(_)) => Bound::Unbounded,
                };
                let meant = |name: &&FullName| {
                    name.space == *space && name.name.as_str().starts_with(prefix)
                };
                let names = table.locks.range((start, Bound::Unbounded)).map(|(name, _)| name);
                let names = names.filter(meant).take(*limit);
                names.map(|name| (name.clone(), table.whole(name, now))).collect()
            }
        })
        .await
    }

    async fn oust(&self, name: &FullName, entry: &Entry, how: Force) -> Result<Forced, Error> {
        let (name, revision) = (name.clone(), revision(entry.token));
        self.call(move |table, _| {
            let Some(entry) = table.entry(&name, revision) else { return Forced::NoMatch };
            let (req, session) = (entry.req, entry.session);
            entry.revoked = true;
            let why = match how {
                Force::Revoke => LossReason::Revoked,
                Force::Now => {
                    table.remove(&name, revision);
                    LossReason::Gone
                }
            };
            if let Some(via) = table.sessions.get(&session).map(|s| s.via.clone()) {
                let event = Event::Lost(Key { lock: name.clone(), req }, why);
                table.news.push((via, Wake::Event(event)));
            }
            Forced::Done
        })
        .await
    }

    fn listen(&self, sink: EventSink) {
        lock(&self.shared.sink).insert(self.via.clone(), simulation::sink(sink));
    }

    async fn close(&self) {
        self.end();
    }
}

impl MemoryQueue {
    /// Takes effect at once: nothing is told to this client any more. Sessions with entries are
    /// left to expire.
    fn end(&self) {
        lock(&self.shared.sink).remove(&self.via);
        let mut table = lock(&self.shared.table);
        table.sessions.retain(|_, s| s.via != self.via || !s.entries.is_empty());
    }
}

impl Drop for MemoryQueue {
    fn drop(&mut self) {
        self.end();
    }
}
