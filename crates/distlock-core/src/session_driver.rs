//! The driver of the session family: a lock tied to a connection or descriptor.
//!
//! The store gives a connection that holds the lock; the driver keeps it under the request's id
//! until the release, and lets the same owner in again without asking the store. When the store
//! says that connections may have ended, all of them are looked at, and holders that lost their
//! lock are told at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify};

use crate::{
    Alive, Ask, Attempt, Backend, Clock, ClockReading, Due, Error, Event, Expiry, Force, Forced,
    FullName, Fut, Grant, HashMap, Kept, Key, Lease, LockInfo, Locked, LossReason, Mutex, Owner,
    Patience, Query, QueueStatus, Released, ReqId, SessionStore, StoreInfo, Token, TokenRange,
    Wake, Watcher, abreast, engine,
};

/// A session store as a [`Backend`].
pub struct SessionDriver<S: SessionStore> {
    inner: Arc<Inner<S>>,
    events: Mutex<Option<UnboundedReceiver<Event>>>,
}

struct Inner<S: SessionStore> {
    store: S,
    holds: Mutex<HashMap<ReqId, Arc<Slot<S::Conn>>>>,
    /// One slot per lock and owner that holds or asks for it here.
    slots: Mutex<Slots<S::Conn>>,
    news: UnboundedSender<Event>,
    /// Counts how often the store said that connections may have ended. A connection that was
    /// granted before the last of them and kept here after it was missed by the look at all.
    ends: AtomicU64,
}

type Slots<C> = HashMap<(FullName, Owner), Arc<Slot<C>>>;

/// What one owner has of one lock.
struct Slot<C> {
    key: (FullName, Owner),
    state: Mutex<SlotState>,
    /// The connection, apart from the rest because looking after it awaits.
    conn: AsyncMutex<Option<C>>,
    /// Rung when the lock was granted, for the same owner's other requests.
    granted: Notify,
}

#[derive(Default)]
struct SlotState {
    /// Set while held.
    tokens: Option<TokenRange>,
    /// The lease that the connection was opened with: the server ends it after as long a silence,
    /// whatever requests that enter again ask for.
    ttl: Duration,
    /// The requests that share the hold.
    reqs: Vec<ReqId>,
    /// How many acquires of this owner are under way.
    asking: usize,
}

/// How long a look at a connection may take, at most.
const LOOK: Duration = Duration::from_secs(5);
/// How long a call that is not about a connection may take.
const CALL: Duration = Duration::from_secs(10);
/// Beyond its patience an acquire waits this long for an answer that is under way.
const GRACE: Duration = Duration::from_secs(1);
/// How many connections are looked after side by side.
const ABREAST: usize = 64;

/// Counts an acquire under way; forgets the slot when nobody uses it.
struct Asking<'a, S: SessionStore>(&'a Inner<S>, Arc<Slot<S::Conn>>);

impl<S: SessionStore> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        self.1.state.lock().asking -= 1;
        self.0.forget_if_unused(&self.1);
    }
}

impl<S: SessionStore> SessionDriver<S> {
    /// Drives a store.
    pub fn new(store: S) -> Self {
        let (news, rx) = unbounded_channel();
        let inner = Arc::new(Inner {
            store,
            holds: Mutex::default(),
            slots: Mutex::default(),
            news: news.clone(),
            ends: AtomicU64::new(0),
        });
        let driver: Weak<Inner<S>> = Arc::downgrade(&inner);
        inner.store.listen(Arc::new(move |wake| match wake {
            Wake::Event(event) => drop(news.send(event)),
            Wake::Everybody => {
                if let Some(driver) = driver.upgrade() {
                    driver.ends.fetch_add(1, Ordering::AcqRel);
                    engine::spawn(async move { driver.look_at_all().await });
                }
            }
            Wake::Turn(_) | Wake::Confirm(_) | Wake::Repeated(_) => {}
        }));
        Self { inner, events: Mutex::new(Some(rx)) }
    }
}

impl<S: SessionStore> Inner<S> {
    fn clock(&self) -> &Clock {
        self.store.info().clock
    }

    /// Looks at everything that is held, and tells the holders of a loss. Nothing is kept any
    /// longer by this: some of it may be meant to run out.
    async fn look_at_all(&self) {
        let held: Vec<_> = self.slots.lock().values().cloned().collect();
        abreast(ABREAST, held.iter().map(|slot| self.look(slot, LOOK * 4)).collect()).await;
    }

    /// Looks at what a slot holds, and tells its holders of a loss; `None` when it holds nothing.
    async fn look(&self, slot: &Arc<Slot<S::Conn>>, ttl: Duration) -> Option<Alive> {
        let mut place = slot.conn.lock().await;
        let alive = self.alive(place.as_mut()?, ttl).await;
        if let Alive::No(why) = alive {
            self.lose(slot, &mut place, why);
            drop(place);
            self.forget_if_unused(slot);
        }
        Some(alive)
    }

    fn ask_slot(&self, ask: &Ask) -> Asking<'_, S> {
        let key = (ask.lock.clone(), ask.owner.clone());
        let mut slots = self.slots.lock();
        let slot = slots.entry(key).or_insert_with_key(|key| {
            Arc::new(Slot {
                key: key.clone(),
                state: Mutex::default(),
                conn: AsyncMutex::new(None),
                granted: Notify::new(),
            })
        });
        slot.state.lock().asking += 1;
        Asking(self, slot.clone())
    }

    fn forget_if_unused(&self, slot: &Arc<Slot<S::Conn>>) {
        let mut slots = self.slots.lock();
        let state = slot.state.lock();
        let unused = state.asking == 0 && state.reqs.is_empty();
        // Forgotten already, its key may be another slot's by now.
        if unused && slots.get(&slot.key).is_some_and(|s| Arc::ptr_eq(s, slot)) {
            slots.remove(&slot.key);
        }
    }

    /// Joins what the same owner holds already.
    fn join(&self, slot: &Arc<Slot<S::Conn>>, req: ReqId) -> Option<TokenRange> {
        let mut state = slot.state.lock();
        let tokens = state.tokens?;
        if !state.reqs.contains(&req) {
            state.reqs.push(req);
        }
        self.holds.lock().insert(req, slot.clone());
        Some(tokens)
    }

    /// Enters again what the same owner holds, if it still does: its connection may have died
    /// since somebody last looked, and the lock be somebody else's.
    ///
    /// The look runs on the library's thread: the asking task may not be polled for long, and would
    /// keep the renewals from the connection. Nor is a look cut short that others may need: a
    /// request with no more patience leaves it to itself.
    async fn enter_again(
        self: &Arc<Self>,
        slot: &Arc<Slot<S::Conn>>,
        ask: &Ask,
    ) -> Result<Option<Attempt>, Error> {
        if slot.state.lock().tokens.is_none() {
            return Ok(None);
        }
        let sent = self.store.info().reading();
        let (tell, told) = tokio::sync::oneshot::channel();
        let ttl = ask.ttl.min(slot.state.lock().ttl);
        let (driver, looked) = (self.clone(), slot.clone());
        engine::spawn(async move { drop(tell.send(driver.look(&looked, ttl).await)) });
        let bound = match ask.patience {
            Patience::For(d) => LOOK.min(d.saturating_add(GRACE)),
            Patience::Never | Patience::Forever => LOOK * 2,
        };
        let waiters = match self.clock().timeout(bound, told).await {
            Some(Ok(Some(Alive::Yes { waiters }))) => waiters,
            Some(Ok(None | Some(Alive::No(_)))) => return Ok(None),
            Some(Ok(Some(Alive::Unknown(e)))) => return Err(e),
            Some(Err(_)) | None => return Err(self.late(bound)),
        };
        // No await from here on: a grant that nobody could undo must not exist.
        let lease = self.lease(sent, ttl);
        let grant = |tokens| Grant { req: ask.req, tokens, lease, waiters };
        Ok(self.join(slot, ask.req).map(grant).map(Attempt::Granted))
    }

    /// Strikes off what is held through a connection that died, and tells all requests that shared
    /// it.
    fn lose(&self, slot: &Slot<S::Conn>, place: &mut Option<S::Conn>, why: LossReason) {
        let mut state = slot.state.lock();
        state.tokens = None;
        let reqs = std::mem::take(&mut state.reqs);
        drop(state);
        let mut holds = self.holds.lock();
        for req in reqs {
            holds.remove(&req);
            let _ = self.news.send(Event::Lost(Key { lock: slot.key.0.clone(), req }, why));
        }
        drop(holds);
        *place = None;
    }

    /// Looks after a connection, for a quarter of the lease at most: a look that hangs leaves time
    /// for another.
    async fn alive(&self, conn: &mut S::Conn, ttl: Duration) -> Alive {
        let bound = (ttl / 4).min(LOOK);
        match self.clock().timeout(bound, self.store.alive(conn)).await {
            Some(alive) => alive,
            None => Alive::Unknown(self.late(bound)),
        }
    }

    fn late(&self, bound: Duration) -> Error {
        self.store.info().unanswered(bound)
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.clock().timeout(CALL, call).await.unwrap_or_else(|| Err(self.late(CALL)))
    }

    /// How long an answer is good for.
    fn lease(&self, sent: ClockReading, ttl: Duration) -> Lease {
        match self.store.info().capability.expiry {
            Expiry::WithProcess => Lease { sent, ttl: Duration::MAX, margin: Duration::ZERO },
            Expiry::Ttl => self.store.info().capability.lease(sent, ttl),
        }
    }

    async fn acquire_here(
        self: &Arc<Self>,
        ask: &Ask,
        seen: Watcher<'_>,
    ) -> Result<Attempt, Error> {
        let asking = self.ask_slot(ask);
        let slot = &asking.1;
        // In a box, and so are the calls below: a task that waits keeps what they are made of.
        let mut again: Option<Box<Ask>> = None;
        let until = ask.patience.until(self.clock().now());
        loop {
            let granted = slot.granted.notified();
            tokio::pin!(granted);
            granted.as_mut().enable();
            let ask = again.as_deref().unwrap_or(ask);
            if let Some(entered) = Box::pin(self.enter_again(slot, ask)).await? {
                return Ok(entered);
            }
            let ends = self.ends.load(Ordering::Acquire);
            let asked = self.store.info().reading();
            let locked = tokio::select! {
                biased;
                () = granted => None,
                locked = self.store.lock(ask, seen) => Some(locked.map_err(|e| e.lock(&ask.lock))?),
            };
            let ttl = ask.ttl;
            let req = ask.req;
            if let Patience::For(_) = ask.patience {
                // Asked again, it waits for what is left of its patience and no longer.
                let patience = Patience::at_most(until.since(self.clock().now()));
                again = Some(Box::new(Ask { patience, ..ask.clone() }));
            }
            let (mut conn, sent, tokens, waiters) = match locked {
                None => continue,
                Some(Locked::Busy(status)) => return Ok(Attempt::Busy(status)),
                // It may have waited for long: its lease counts from the answer it has now.
                Some(Locked::Held { conn, sent, tokens, waiters }) => {
                    (conn, sent.unwrap_or(asked), tokens, waiters)
                }
            };
            // Until it has its place, dropping this future drops the connection and frees the lock.
            let mut place = match Box::pin(self.place_for(slot, &mut conn, ends, ttl)).await? {
                Some(place) => place,
                None => continue,
            };
            // No await from here on: a grant that nobody could undo must not exist. The place is
            // kept until the request is on the list: a request that entered before could leave as
            // the last.
            *place = Some(conn);
            {
                let mut state = slot.state.lock();
                (state.tokens, state.ttl) = (Some(tokens), ttl);
            }
            self.join(slot, req);
            drop(place);
            slot.granted.notify_waiters();
            let lease = self.lease(sent, ttl);
            return Ok(Attempt::Granted(Grant { req, tokens, lease, waiters }));
        }
    }

    /// The place of a connection that was just granted; `None` when that has ended meanwhile, or
    /// another request of the owner holds the lock. The look at all connections takes their
    /// places too, so it comes either before this, and is counted in `ends`, or after the
    /// connection has its place.
    async fn place_for<'a>(
        &self,
        slot: &'a Slot<S::Conn>,
        conn: &mut S::Conn,
        mut ends: u64,
        ttl: Duration,
    ) -> Result<Option<AsyncMutexGuard<'a, Option<S::Conn>>>, Error> {
        let place = slot.conn.lock().await;
        if slot.state.lock().tokens.is_some() {
            return Ok(None);
        }
        loop {
            let now = self.ends.load(Ordering::Acquire);
            if now == ends {
                return Ok(Some(place));
            }
            ends = now;
            match self.alive(conn, ttl).await {
                Alive::Yes { .. } => {}
                Alive::No(_) => return Ok(None),
                Alive::Unknown(e) => return Err(e),
            }
        }
    }

    /// Takes a request off its slot; whether it was the last one there.
    fn leave(&self, req: &ReqId) -> Option<bool> {
        let slot = self.holds.lock().remove(req)?;
        let mut state = slot.state.lock();
        state.reqs.retain(|r| r != req);
        let last = state.reqs.is_empty();
        if last {
            state.tokens = None;
        }
        Some(last)
    }

    /// Takes a request off a slot that others share; false when it is the only one there.
    fn leave_shared(&self, slot: &Slot<S::Conn>, req: &ReqId) -> bool {
        let mut state = slot.state.lock();
        if state.reqs.len() < 2 || !state.reqs.contains(req) {
            return false;
        }
        state.reqs.retain(|r| r != req);
        self.holds.lock().remove(req);
        true
    }

    async fn keep_one(&self, due: &Due) -> Kept {
        let Some(slot) = self.holds.lock().get(&due.key.req).cloned() else {
            return Kept::Lost(LossReason::Gone);
        };
        let sent = self.store.info().reading();
        let ttl = due.ttl.min(slot.state.lock().ttl);
        match self.look(&slot, ttl).await {
            Some(Alive::Yes { waiters }) => Kept::Until { lease: self.lease(sent, ttl), waiters },
            Some(Alive::No(why)) => Kept::Lost(why),
            Some(Alive::Unknown(e)) => Kept::Unknown(e),
            None => Kept::Lost(LossReason::Gone),
        }
    }
}

impl<S: SessionStore> Backend for SessionDriver<S> {
    fn info(&self) -> StoreInfo<'_> {
        self.inner.store.info()
    }

    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move {
            let hear = |status: &QueueStatus| {
                tracing::debug!(lock = %ask.lock, %status, "waiting");
                if let Some(seen) = seen {
                    seen(status);
                }
            };
            self.inner.acquire_here(&ask, &hear).await
        })
    }

    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        Box::pin(async move {
            let held = self.inner.holds.lock().get(&key.req).cloned();
            let Some(slot) = held else { return Ok(()) };
            if self.inner.leave_shared(&slot, &key.req) {
                return Ok(());
            }
            // Before it leaves: whoever drops this while it waits can still undo it again, and what
            // is in the place once it has left is its own connection and not its successor's.
            let mut place = slot.conn.lock().await;
            if let Some(true) = self.inner.leave(&key.req) {
                *place = None;
                drop(place);
                self.inner.forget_if_unused(&slot);
            }
            Ok(())
        })
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        // Side by side: one connection that hangs must not take the others' time. Not all of many
        // at once, because each answer makes all of them look up.
        Box::pin(abreast(ABREAST, due.iter().map(|d| self.inner.keep_one(d)).collect()))
    }

    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>> {
        Box::pin(async move {
            let held = self.inner.holds.lock().get(&key.req).cloned();
            let Some(slot) = held else { return Ok(Released::WasLost) };
            // Not the connection's affair while others share the hold.
            if self.inner.leave_shared(&slot, &key.req) {
                return Ok(Released::Released);
            }
            // Before it leaves: a caller that drops this future while it waits can still release again.
            let mut place = slot.conn.lock().await;
            match self.inner.leave(&key.req) {
                None => return Ok(Released::WasLost),
                Some(false) => return Ok(Released::Released),
                Some(true) => {}
            }
            let conn = place.take();
            drop(place);
            self.inner.forget_if_unused(&slot);
            let Some(conn) = conn else { return Ok(Released::WasLost) };
            self.inner.store.unlock(conn).await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>> {
        Box::pin(self.inner.bounded(self.inner.store.inspect(query)))
    }

    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>> {
        Box::pin(self.inner.bounded(self.inner.store.force(lock, token, how)))
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(self.inner.store.close())
    }
}
