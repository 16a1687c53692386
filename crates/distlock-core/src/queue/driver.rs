//! The driver of the queue family: one loop for every store that keeps an ordered queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::inspect::info;
use super::registry::{Cause, Departure, HeldEntry, Leaving, Registry};
use super::snapshot::{Entry, holders};
use super::store::{Keeping, QueueStore};
use super::tokens;
use crate::{
    Ask, Attempt, Backend, BootInstant, Clock, ClockReading, Due, Error, Event, Force, Forced,
    FullName, Fut, Kept, Key, LockInfo, LossReason, Mutex, Proof, Query, Released, StoreInfo,
    Token, Watcher, abreast, engine,
};

/// How long a call to the store may take before it counts as unanswered.
const CALL: Duration = Duration::from_secs(10);
/// How long a client that closes leaves the queues it still stands in.
const LAST_LEAVE: Duration = Duration::from_secs(5);
/// Most places kept by one call.
const MOST: usize = 256;
/// How many such calls are under way at a time.
const AT_ONCE: usize = 4;

/// A queue store as a [`Backend`].
pub struct QueueDriver<S: QueueStore> {
    inner: Arc<Inner<S>>,
    events: Mutex<Option<UnboundedReceiver<Event>>>,
}

pub(super) struct Inner<S: QueueStore> {
    pub(super) store: S,
    pub(super) registry: Registry<S::Place>,
    events: UnboundedSender<Event>,
    /// When the store last answered anything, in nanoseconds of the boot clock.
    pub(super) heard: AtomicU64,
}

impl<S: QueueStore> QueueDriver<S> {
    /// Drives a store.
    pub fn new(store: S) -> Self {
        let (tx, rx) = unbounded_channel();
        let inner = Arc::new(Inner {
            store,
            registry: Registry::default(),
            events: tx,
            heard: AtomicU64::new(0),
        });
        // Weak: the store keeps its event sink, and the driver keeps the store.
        let sink = Arc::downgrade(&inner);
        inner.store.listen(Arc::new(move |wake| {
            if let Some(inner) = sink.upgrade() {
                inner.hear(wake);
            }
        }));
        Self { inner, events: Mutex::new(Some(rx)) }
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.inner.store
    }
}

impl<S: QueueStore> Inner<S> {
    pub(super) fn clock(&self) -> &Clock {
        self.store.info().clock
    }

    /// Now, on the clocks that count for this store.
    pub(super) fn reading(&self) -> ClockReading {
        self.store.info().reading()
    }

    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    pub(super) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = match self.store.ends_in_time() {
            true => call.await,
            false => self.clock().timeout(CALL, call).await.unwrap_or_else(|| Err(self.late())),
        };
        if answer.is_ok() {
            self.heard_at(self.clock().now());
        }
        answer
    }

    /// The store has answered a question that was sent at this moment or later.
    pub(super) fn heard_at(&self, at: BootInstant) {
        self.heard.fetch_max(at.as_nanos(), Ordering::AcqRel);
    }

    /// The store has answered some of these.
    pub(super) fn heard_of(&self, kept: &[Kept]) {
        for kept in kept {
            if let Kept::Until { lease, .. } = kept {
                self.heard_at(lease.sent.boot);
            }
        }
    }

    fn late(&self) -> Error {
        self.store.info().unanswered(CALL)
    }

    pub(super) async fn leave(
        &self,
        key: &Key,
        place: Option<&S::Place>,
    ) -> Result<Released, Error> {
        self.bounded(self.store.leave(key, place)).await
    }

    /// Undoes a request: whatever it has, it has no more.
    async fn abandon(self: &Arc<Self>, key: &Key) -> Result<(), Error> {
        match self.registry.leave(&key.req, false, self.reading()) {
            Departure::Shared | Departure::Promised(_) => Ok(()),
            Departure::Last(hold) if hold.promised > self.clock().now() => {
                let _ = self.linger(HeldEntry { free_at: hold.promised, ..hold }).await;
                Ok(())
            }
            Departure::Last(hold) => self.leave_for_good(self.at_once(hold)).await.map(drop),
            // Released in order, and kept by its `min_hold`; or shared with others.
            Departure::Leaving(l) if l.lingers() || l.outlasts_a_release() => {
                self.leave_later(l);
                Ok(())
            }
            Departure::Leaving(l) => self.leave_for_good(l).await.map(drop),
            Departure::Nothing => self.leave_for_good(self.unknown(key)).await.map(drop),
        }
    }

    async fn release(self: &Arc<Self>, key: &Key) -> Result<Released, Error> {
        match self.registry.leave(&key.req, true, self.reading()) {
            Departure::Shared => Ok(Released::Released),
            Departure::Promised(hold) => {
                // The others may let it run out before that.
                self.keep_on(&hold);
                Ok(Released::Released)
            }
            Departure::Last(hold) if hold.free_at > self.clock().now() => {
                Ok(self.linger(hold).await)
            }
            Departure::Last(hold) => self.leave_for_good(self.at_once(hold)).await,
            Departure::Leaving(l) if l.lingers() => {
                self.leave_later(l);
                Ok(Released::Released)
            }
            Departure::Leaving(l) if l.outlasts_a_release() => {
                self.leave_later(l);
                Ok(Released::WasLost)
            }
            Departure::Leaving(l) => {
                // Taken away before: its end is no release.
                let ours = l.cause != Cause::Revoked && l.cause != Cause::Orphan;
                let ours = ours || l.place.is_none();
                let left = self.leave_for_good(l).await?;
                Ok(if ours { left } else { Released::WasLost })
            }
            Departure::Nothing => self.leave_for_good(self.unknown(key)).await,
        }
    }

    fn at_once(&self, hold: HeldEntry<S::Place>) -> Leaving<S::Place> {
        Leaving::of(hold, self.clock().now(), Cause::Unfinished)
    }

    /// The entry of a request that nothing is known of here.
    fn unknown(&self, key: &Key) -> Leaving<S::Place> {
        Leaving::unjoined(key.clone(), None, CALL, self.reading())
    }

    /// Leaves the queue. Dropped or unanswered, it is left in the background: the entry may outlive
    /// its request, since its session is kept for others; and a second release may come by
    /// another request than the one the store knows.
    async fn leave_for_good(
        self: &Arc<Self>,
        leaving: Leaving<S::Place>,
    ) -> Result<Released, Error> {
        let (key, place) = (leaving.key.clone(), leaving.place.clone());
        let mut unfinished = Unfinished { inner: self, leaving: Some(leaving) };
        let released = self.leave(&key, place.as_ref()).await?;
        unfinished.leaving = None;
        self.registry.gone(&key.req);
        Ok(released)
    }

    /// Released before its `min_hold` is over: the entry stays in the queue until then.
    async fn linger(self: &Arc<Self>, hold: HeldEntry<S::Place>) -> Released {
        let left = hold.free_at.since(self.clock().now());
        let (key, place) = (hold.key.clone(), hold.place.clone());
        // Before the store is asked: dropping this future must not free the lock too early.
        let at = hold.free_at;
        self.leave_later(Leaving::of(hold.clone(), at, Cause::Lingering));
        match self.bounded(self.store.linger(&key, &place, left)).await {
            Ok(true) => {
                self.registry.gone(&key.req);
                return Released::Released;
            }
            Ok(false) => {}
            Err(e) => tracing::debug!(lock = %key.lock, error = %e, "lingers by us"),
        }
        self.keep_on(&hold);
        Released::Released
    }

    /// Keeps a hold that nobody else may renew: at once if its lease was not renewed for a while,
    /// and by the housekeeper from then on.
    fn keep_on(self: &Arc<Self>, hold: &HeldEntry<S::Place>) {
        if !hold.fresh(self.reading()) {
            let (inner, keeping) = (self.clone(), hold.keeping());
            engine::spawn(async move { drop(inner.renew(keeping).await) });
        }
        self.tend(self.clock().now().plus(hold.lease.ttl / 3));
    }

    async fn keep(self: &Arc<Self>, due: &[Due]) -> Vec<Kept> {
        let known: Vec<_> = due.iter().map(|d| self.registry.keeping(d)).collect();
        let places: Vec<Keeping<S::Place>> = known.iter().flatten().cloned().collect();
        // In several calls: one that is late costs no more than its own answers.
        let calls = places.chunks(MOST).map(|some| async {
            let answers = self.clock().timeout(CALL, self.store.keep(some)).await;
            let mut answers = answers.unwrap_or_default();
            self.heard_of(&answers);
            answers.resize_with(some.len(), || Kept::Unknown(self.late()));
            answers
        });
        let mut answers = abreast(AT_ONCE, calls.collect()).await.into_iter().flatten();
        let kept = |(due, known): (&Due, Option<Keeping<S::Place>>)| {
            let Some(known) = known else { return Kept::Lost(LossReason::Gone) };
            let kept = answers.next().unwrap_or_else(|| Kept::Unknown(self.late()));
            self.learn(&known.key, &kept, Some(&due.key));
            kept
        };
        due.iter().zip(known).map(kept).collect()
    }

    /// Renews one hold, for a request that is about to share it.
    pub(super) async fn renew(self: &Arc<Self>, keeping: Keeping<S::Place>) -> Kept {
        // A call that hangs leaves time for another before the lease ends.
        let bound = (keeping.ttl / 4).min(CALL);
        let call = self.clock().timeout(bound, self.store.keep(std::slice::from_ref(&keeping)));
        let kept = call.await.and_then(|mut kept| kept.pop());
        let kept = kept.unwrap_or_else(|| Kept::Unknown(self.late()));
        self.heard_of(std::slice::from_ref(&kept));
        self.learn(&keeping.key, &kept, None);
        kept
    }

    /// Takes in the answer about a hold; the request that asked is not told of its loss by an
    /// event.
    pub(super) fn learn(self: &Arc<Self>, key: &Key, kept: &Kept, asked: Option<&Key>) {
        match kept {
            Kept::Until { lease, .. } => self.registry.kept(&key.req, *lease),
            Kept::Lost(why) => self.lost(key, *why, asked),
            Kept::Unknown(_) => {}
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let lines = self.bounded(self.store.queues(query)).await?;
        Ok(lines.iter().filter_map(|(lock, line)| info(lock, line, S::LOCAL_BITS)).collect())
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let mut forced = Forced::NoMatch;
        // Any token of its lease means whoever has the lock by that lease now.
        let of = |token: Token, e: &Entry| tokens::is_of(token, e.token, S::LOCAL_BITS);
        let lines = self.bounded(self.store.queues(&Query::Name(lock.clone()))).await?;
        for (_, line) in lines {
            let meant = line.entries[..holders(&line)].iter();
            for entry in meant.filter(|e| token.is_none_or(|t| of(t, e))) {
                if self.bounded(self.store.oust(lock, entry, how)).await? == Forced::Done {
                    forced = Forced::Done;
                }
            }
        }
        Ok(forced)
    }
}

/// A leave under way: unless it is acknowledged, somebody else goes on with it.
struct Unfinished<'a, S: QueueStore> {
    inner: &'a Arc<Inner<S>>,
    leaving: Option<Leaving<S::Place>>,
}

impl<S: QueueStore> Drop for Unfinished<'_, S> {
    /// Takes effect in the background.
    fn drop(&mut self) {
        if let Some(leaving) = self.leaving.take() {
            let at = self.inner.clock().now();
            self.inner.leave_later(Leaving { at, under_way: false, ..leaving });
        }
    }
}

impl<S: QueueStore> Backend for QueueDriver<S> {
    fn info(&self) -> StoreInfo<'_> {
        self.inner.store.info()
    }

    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move { self.inner.acquire(&ask, seen).await })
    }

    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        Box::pin(self.inner.abandon(key))
    }

    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(self.inner.keep(due))
    }

    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>> {
        Box::pin(self.inner.release(key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>> {
        Box::pin(self.inner.inspect(query))
    }

    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>> {
        Box::pin(self.inner.force(lock, token, how))
    }

    fn proof(&self, key: &Key) -> Option<Proof> {
        self.inner.store.proof(&self.inner.registry.place(&key.req)?)
    }

    fn tells_of_waiters(&self) -> bool {
        self.inner.store.tells_of_waiters()
    }

    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.events.lock().take()
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            // Nobody keeps the session from now on, and it may be long: waiters behind what is left
            // in the queue would wait for its end.
            let left = self.inner.registry.close();
            let leaves = left.iter().map(|l| self.inner.leave(&l.key, l.place.as_ref())).collect();
            let _ = self.inner.clock().timeout(LAST_LEAVE, abreast(AT_ONCE, leaves)).await;
            self.inner.store.close().await;
        })
    }
}
