//! The default algorithm: a lock row by unique key, and a table with the queue.
//!
//! 1. A lock that is free and not waited for is taken, renewed and given back by one statement each
//!    (`fast_path`).
//! 2. Anything else is a short transaction that locks the lock's row first, reads the server's
//!    clock and a part of the queue, and runs [`LockState::step`](distlock_core::state::LockState)
//!    here (`slow_path`).
//! 3. A release promotes the head of the queue and wakes its process (`wakeup`). A process that is
//!    gone or unreachable is passed over; its waiter keeps its position until it is heard of again
//!    or its time is over.
//! 4. The woken waiter asks again, which confirms the promotion, mostly by one statement
//!    (`fast_path`), and believes that answer.
//!
//! A process has three connections: calls, renewals and cancels, and the wake-up connection; while
//! calls about several locks queue, up to three more for calls.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::state::{Claim, Pulse};
use distlock_core::{
    Ask, Backend, BootInstant, Capability, Class, Clock, ContentionHint, Due, Error, EventSink,
    Force, Forced, FullName, Key, Kind, LeaseDriver, LeaseStore, LockInfo, Move, Mutex, Op, Query,
    Replies, Reply, ReqId, Run, Store, StoreInfo, StoreUrl, Token, Wake, engine, lease,
};
use distlock_sql::{ConnectionGroup, ConnectionWorker, Trouble, work};
use tokio::sync::Semaphore;

use crate::fast_path::{self, Fast};
use crate::slow_path::{Collisions, Played, SlowPath};
use crate::sql::{execute, number, run};
use crate::wakeup::{WakeupConnection, life_sign, session, sleep_lock, tell, unhang};
use crate::{connector::Connector, errors::calling, inspect, open::Target, queue, sweep};

/// Max renewals in one round trip.
const BATCH: usize = 128;
/// Max heartbeats of one lock in one round trip: each reads the queue ahead of them.
const BEATS: usize = 512;
/// How many acquires are made ready at once.
const ROOM: usize = 16;
/// Max connections for acquires and releases.
const CONNECTIONS: usize = 4;

/// How long a sign of life that the server knew is taken to be known.
const PROVEN: Duration = Duration::from_secs(1);

/// A MySQL or MariaDB server that answered.
pub struct Mysql {
    capability: Capability,
    site: String,
    inner: Arc<Inner>,
}

struct Inner {
    slow_path: Arc<SlowPath>,
    fast: Arc<Fast>,
    front: ConnectionGroup<Connector>,
    back: Arc<ConnectionWorker<Connector>>,
    wakeup: WakeupConnection,
    sink: Arc<OnceLock<EventSink>>,
    /// Requests in the queue: the fast path for a free lock is of no use for them.
    waiting: Arc<Mutex<HashSet<ReqId>>>,
    /// Locks that others wait for: neither is it for these, nor a fast-path release.
    contention: ContentionHint,
    /// Whether all waiters were last sent with an address for wake-ups.
    called: AtomicBool,
    /// When the server last said that it knows that we live.
    proven: Mutex<Option<BootInstant>>,
    clock: Clock,
    /// How many acquires are made ready at once.
    room: Semaphore,
    sweep: Arc<sweep::Pace>,
}

impl Mysql {
    /// Connects to what a URL names, with the default algorithm.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn open(url: StoreUrl) -> Result<Self, Error> {
        Self::at(Target::of(url)?).await
    }

    pub(crate) async fn at(target: Target) -> Result<Self, Error> {
        let capability = target.greet().await?;
        let Target { to, options, tables, site } = target;
        let (clock, session, bound) = (Clock::system(), session()?, options.timeout);
        let (sink, waiting) = <(Arc<OnceLock<EventSink>>, Arc<Mutex<HashSet<ReqId>>>)>::default();
        let calls = Arc::new(Connector::new(to.clone(), None));
        let life = Connector::new(to.clone(), Some(life_sign(&session)))
            .with_sleep_lock(sleep_lock(&session));
        let sweep = Arc::<sweep::Pace>::default();
        let inner = Inner {
            front: ConnectionGroup::new(calls, clock.clone(), bound, CONNECTIONS),
            back: Arc::new(ConnectionWorker::new(Arc::new(life), clock.clone(), bound, 1)),
            wakeup: WakeupConnection::new(to.clone(), &session, &tables, &clock, (&sink, &waiting)),
            fast: Arc::new(Fast::new(&tables)),
            slow_path: Arc::new(SlowPath {
                tables,
                session,
                collisions: Arc::default(),
                short: queue::SHORT,
                sweep: Arc::clone(&sweep),
            }),
            sink,
            waiting,
            contention: ContentionHint::new(clock.clone()),
            called: AtomicBool::new(true),
            proven: Mutex::default(),
            clock,
            room: Semaphore::new(ROOM),
            sweep,
        };
        Ok(Self { capability, site, inner: Arc::new(inner) })
    }

    /// How often the database had to undo or refuse a move of this store because of others.
    #[must_use]
    pub fn collisions(&self) -> Arc<Collisions> {
        Arc::clone(&self.inner.slow_path.collisions)
    }

    /// The full transaction of one move.
    async fn one(&self, class: Class, lock: &FullName, op: Op) -> Result<Reply, Error> {
        only(self.inner.play(class, lock, vec![op], String::new()).await?)
    }

    async fn acquire(
        &self,
        class: Class,
        ask: Arc<Ask>,
        wait: Option<Duration>,
    ) -> Result<Reply, Error> {
        // One connection serves them in turn: what is not yet its turn need not be made ready.
        let _room = self.inner.room.acquire().await;
        Box::pin(self.inner.acquire(class, &ask, wait)).await
    }

    /// One transaction for each lock that is waited for.
    async fn heartbeat(&self, class: Class, waiting: &[(Key, Duration)]) -> Replies {
        let inner = &self.inner;
        let called = inner.wakeup.listens().await;
        let via = if called { inner.slow_path.session.clone() } else { String::new() };
        // Only where nobody's address has changed since it was last told.
        let steady = called && inner.called.swap(called, Ordering::Relaxed);
        let mut replies = Replies::with_capacity(waiting.len());
        for same in waiting.chunk_by(|a, b| a.0.lock == b.0.lock) {
            let name = &same[0].0.lock;
            for some in same.chunks(BEATS) {
                match inner.beats(class, name, some, steady, &via).await {
                    Ok(pulses) => replies.extend(pulses.into_iter().map(Ok)),
                    Err(e) => replies.extend(some.iter().map(|_| Err(e.clone()))),
                }
            }
        }
        replies
    }

    async fn renew(&self, class: Class, due: &[Due]) -> Replies {
        let inner = &self.inner;
        let mut replies = Replies::with_capacity(due.len());
        for some in due.chunks(BATCH) {
            let fast = Arc::clone(&inner.fast);
            let all: Vec<_> = some.iter().map(|d| (d.key.lock.clone(), d.key.req, d.ttl)).collect();
            let worker = inner.worker(class, &some[0].key.lock);
            let renewed = worker.call(work!(|conn, fast, all| fast.renew(conn, &all)));
            let renewed = match renewed.await {
                Ok(renewed) => renewed,
                Err(e) => {
                    replies.extend(some.iter().map(|_| Err(e.clone())));
                    continue;
                }
            };
            for (d, reply) in some.iter().zip(renewed) {
                replies.push(match reply.transpose() {
                    Some(reply) => reply,
                    None => {
                        let op = Op::Renew { req: d.key.req, ttl: d.ttl };
                        self.one(class, &d.key.lock, op).await
                    }
                });
            }
        }
        inner.sweep.step(&inner.back, &inner.slow_path.tables, &inner.clock, false);
        replies
    }

    async fn release(&self, class: Class, key: &Key) -> Result<Reply, Error> {
        let inner = &self.inner;
        let (fast, mine) = (Arc::clone(&inner.fast), key.clone());
        let freed = !inner.contention.lately(&key.lock) && {
            let worker = inner.worker(class, &key.lock);
            worker.call(work!(|conn, fast, mine| fast.release(conn, &mine))).await?
        };
        let reply = match freed {
            true => Reply::Released,
            false => self.one(class, &key.lock, Op::Release { req: key.req }).await?,
        };
        inner.sweep.step(&inner.back, &inner.slow_path.tables, &inner.clock, false);
        Ok(reply)
    }
}

fn only(mut replies: Vec<Reply>) -> Result<Reply, Error> {
    replies.pop().ok_or_else(|| Error::new(Kind::Store, "no answer").unknown())
}

impl Inner {
    fn worker(&self, class: Class, lock: &FullName) -> &ConnectionWorker<Connector> {
        match class {
            Class::Caller => self.front.of(lock),
            Class::Upkeep => &self.back,
        }
    }

    /// Tells the driver that a request is sent again.
    fn repeats(&self, req: ReqId) -> impl Fn() + Send + 'static {
        let sink = Arc::clone(&self.sink);
        move || {
            if let Some(sink) = sink.get() {
                sink(Wake::Repeated(req));
            }
        }
    }

    /// The full transaction.
    async fn play(
        self: &Arc<Self>,
        class: Class,
        lock: &FullName,
        ops: Vec<Op>,
        via: String,
    ) -> Result<Vec<Reply>, Error> {
        let (slow_path, name) = (Arc::clone(&self.slow_path), lock.clone());
        let played = self
            .worker(class, lock)
            .call(work!(|conn, slow_path, name, ops, via| slow_path.play(conn, &name, &ops, &via)));
        Ok(self.after(lock, played.await?))
    }

    /// Fast path: confirm a promotion, where it may be one; then the full transaction.
    async fn ask(
        self: &Arc<Self>,
        class: Class,
        lock: &FullName,
        claim: Claim,
        wait: Option<Duration>,
        may_be_turn: bool,
    ) -> Result<Reply, Error> {
        let (slow_path, fast, name) =
            (Arc::clone(&self.slow_path), Arc::clone(&self.fast), lock.clone());
        let played = self.worker(class, lock).call_telling(
            self.repeats(claim.req),
            work!(|conn, slow_path, fast, name, claim| {
                if may_be_turn {
                    match fast.confirm(conn, &name, &claim).await {
                        Ok(None) => {}
                        Ok(Some(reply)) => return Ok(Played::quietly(reply)),
                        Err(fault) => slow_path.undo(conn, fault).await?,
                    }
                }
                let via = claim.via.clone();
                slow_path.play(conn, &name, &[Op::Acquire { claim, wait }], &via).await
            }),
        );
        only(self.after(lock, played.await?))
    }

    /// Moves the deadlines of waiters of one lock, if nothing else is to be done.
    async fn beat(
        &self,
        class: Class,
        lock: &FullName,
        beats: Vec<(ReqId, Duration)>,
    ) -> Result<Option<Vec<Pulse>>, Error> {
        let (slow_path, name) = (Arc::clone(&self.slow_path), lock.clone());
        let beaten = self.worker(class, lock).call(work!(|conn, slow_path, name, beats| {
            loop {
                match slow_path.beat(conn, &name, &beats).await {
                    Ok(pulses) => return Ok(pulses),
                    Err(fault) => slow_path.undo(conn, fault).await?,
                }
            }
        }));
        beaten.await
    }

    /// Heartbeats of waiters of one lock: the fast path where every address is the same as before,
    /// else the full transaction.
    async fn beats(
        self: &Arc<Self>,
        class: Class,
        lock: &FullName,
        waiting: &[(Key, Duration)],
        steady: bool,
        via: &str,
    ) -> Result<Vec<Reply>, Error> {
        if steady {
            let beats = waiting.iter().map(|(key, wait)| (key.req, *wait)).collect();
            if let Some(pulses) = self.beat(class, lock, beats).await? {
                return Ok(pulses.into_iter().map(Reply::Pulse).collect());
            }
        }
        let beat = |(key, wait): &(Key, Duration)| Op::Heartbeat { req: key.req, wait: *wait };
        self.play(class, lock, waiting.iter().map(beat).collect(), via.to_owned()).await
    }

    /// Tells our own waiters, and takes back the promotions of unreachable ones.
    fn after(self: &Arc<Self>, lock: &FullName, played: Played) -> Vec<Reply> {
        tell(&self.sink, lock, played.ours);
        if !played.unheard.is_empty() {
            let (inner, lock) = (Arc::clone(self), lock.clone());
            let back = |req| Op::Withdraw { req, gone: false };
            let ops: Vec<Op> = played.unheard.into_iter().map(back).collect();
            engine::spawn(async move {
                if let Err(e) = Box::pin(inner.play(Class::Upkeep, &lock, ops, String::new())).await
                {
                    // It passes on by itself when the claim is over.
                    tracing::debug!(%lock, error = %e, "a promotion was not taken back");
                }
            });
        }
        played.replies
    }

    /// Fast path; `None` falls back to the full transaction.
    async fn take(&self, class: Class, ask: &Ask, claim: &Claim) -> Result<Option<Reply>, Error> {
        let no_use = self.waiting.lock().contains(&ask.req) || self.contention.lately(&ask.lock);
        if no_use || !fast_path::fits(claim) {
            return Ok(None);
        }
        let (fast, name, claim) = (Arc::clone(&self.fast), ask.lock.clone(), claim.clone());
        let taken = self.worker(class, &ask.lock).call_telling(
            self.repeats(ask.req),
            work!(|conn, fast, name, claim| fast.acquire(conn, &name, &claim)),
        );
        taken.await
    }

    async fn acquire(
        self: &Arc<Self>,
        class: Class,
        ask: &Ask,
        wait: Option<Duration>,
    ) -> Result<Reply, Error> {
        let session = self.slow_path.session.as_str();
        let claim = Claim::of(ask, session);
        self.wakeup.start();
        if let Some(reply) = self.take(class, ask, &claim).await? {
            self.contention.hear(&ask.lock, &reply);
            return Ok(reply);
        }
        // Only a waiter that can be woken is in the queue with an address.
        let called = wait.is_none() || (self.wakeup.listens().await && self.lives().await);
        if !called {
            self.called.store(false, Ordering::Relaxed);
        }
        let via = if called { session.to_owned() } else { String::new() };
        // A waiter in the queue asks because it was woken, or polls where no wake-ups come.
        let rung = self.wakeup.is_heard() && self.waiting.lock().contains(&ask.req);
        let reply = self.ask(class, &ask.lock, Claim { via, ..claim }, wait, rung).await?;
        self.contention.hear(&ask.lock, &reply);
        let mut waiting = self.waiting.lock();
        match reply {
            Reply::Waiting { .. } => drop(waiting.insert(ask.req)),
            _ => drop(waiting.remove(&ask.req)),
        }
        Ok(reply)
    }

    /// Sees to it that the connection by which others know that we live is there, and is so at the
    /// server: one that rested may have been ended there. Once one of ours waits, heartbeats see to it.
    async fn lives(&self) -> bool {
        let now = self.clock.now();
        let lately = |at: &BootInstant| now.since(*at) < PROVEN;
        if !self.waiting.lock().is_empty() || self.proven.lock().as_ref().is_some_and(lately) {
            return true;
        }
        let sign = life_sign(&self.slow_path.session);
        let sql = format!("SELECT IS_USED_LOCK('{sign}') = CONNECTION_ID() AS mine");
        let mine = self.back.call(work!(|conn, sql| {
            let given = run(conn, sql).await.map_err(calling)?;
            let row = given.first().and_then(|g| g.rows.first());
            match row.map_or(Ok(0), |r| number(r, "mine")).map_err(calling)? {
                1 => Ok(()),
                // Something in between has changed connections: take the name anew.
                _ => Err(Trouble::broken(Error::new(Kind::Unreachable, "no sign of life"))),
            }
        }));
        let lives = mine.await.is_ok();
        *self.proven.lock() = lives.then_some(now);
        lives
    }
}

impl Store for Mysql {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Mysql {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.inner.clock }
    }

    fn ends_in_time(&self) -> bool {
        true
    }

    /// Not while there is no wake-up connection.
    fn pushes(&self) -> bool {
        self.inner.wakeup.is_heard()
    }

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::with_capacity(moves.len());
        for run in Run::split(moves) {
            match run {
                Run::Acquire(ask, wait) => replies.push(self.acquire(class, ask, wait).await),
                Run::Heartbeat(waiting) => replies.extend(self.heartbeat(class, &waiting).await),
                Run::Renew(due) => replies.extend(self.renew(class, &due).await),
                Run::Release(key) => replies.push(self.release(class, &key).await),
                Run::Cancel(Key { lock: name, req }) => {
                    self.inner.waiting.lock().remove(&req);
                    replies.push(self.one(class, &name, Op::Cancel { req }).await);
                }
            }
        }
        replies
    }

    /// The rest in boxes: an acquire that waits for a connection should not carry room for it.
    async fn play_one(&self, class: Class, one: Move) -> Result<Reply, Error> {
        match one {
            Move::Acquire(ask, wait) => self.acquire(class, ask, wait).await,
            Move::Release(key) => Box::pin(self.release(class, &key)).await,
            other => lease::only(Box::pin(self.play(class, vec![other])).await),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (tables, query) = (self.inner.slow_path.tables.clone(), query.clone());
        let first = self.inner.front.first();
        first.call(work!(|conn, tables, query| inspect::inspect(conn, &tables, &query))).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.one(Class::Caller, lock, Op::Force { token, how }).await?.forced()
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.inner.sink.set(sink);
    }

    async fn close(&self) {
        if self.inner.wakeup.close() {
            // Or its connection sleeps on for as long as the server does not miss us.
            let SlowPath { session, tables, .. } = &*self.inner.slow_path;
            let sql = unhang(session, tables);
            let ended = self.inner.front.first().call(work!(|conn, sql| execute(conn, sql)));
            let _ = ended.await;
        }
        self.inner.front.close().await;
        self.inner.back.close().await;
    }
}

impl Drop for Mysql {
    /// Takes effect at once: the wake-up connection ends, the other connections after what is under
    /// way.
    fn drop(&mut self) {
        self.inner.wakeup.close();
    }
}
