//! The backend trait: what everything above a driver sees of a store.
//!
//! Nothing above it names a store; nothing below it knows of guards, renewal or cancellation.
//! A grant is data, not an object: what a driver must remember of a hold it keeps under the
//! hold's request id, so that renewal can be one call for many.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    BootInstant, Capability, Clock, ClockReading, Error, FullName, Label, LockInfo, LossReason,
    Mode, Owner, Patience, Proof, Query, QueueStatus, ReqId, Token, TokenRange,
};

/// A future in a box: what an object-safe trait can return.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store is and promises, as it tells its driver and its users.
#[derive(Clone, Copy, Debug)]
pub struct StoreInfo<'a> {
    /// What it promises.
    pub capability: &'a Capability,
    /// Which very store it is, fit to print: no password in it.
    pub site: &'a str,
    /// The clock that deadlines are counted on.
    pub clock: &'a Clock,
}

impl StoreInfo<'_> {
    /// Now, on the clocks that count for this store: read as a question leaves.
    pub(crate) fn reading(self) -> ClockReading {
        self.capability.reading(self.clock)
    }

    /// The error of a call that was not answered in time.
    pub(crate) fn unanswered(self, bound: Duration) -> Error {
        Error::unanswered(bound).store(self.site)
    }
}

/// One very request at one lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The lock.
    pub lock: FullName,
    /// The request.
    pub req: ReqId,
}

/// Everything a store needs to know to grant a lock.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The lock.
    pub lock: FullName,
    /// This very request.
    pub req: ReqId,
    /// The owner of the request.
    pub owner: Owner,
    /// How it is to be held.
    pub mode: Mode,
    /// The TTL, already raised and rounded to what the store grants.
    pub ttl: Duration,
    /// How long to wait.
    pub patience: Patience,
    /// A release before this age frees the lock only then.
    pub min_hold: Duration,
    /// After an expiry nobody is granted for this long.
    pub lock_delay: Duration,
    /// Shown to waiters.
    pub label: Label,
    /// How many tokens are wanted; a store may give fewer, never none.
    pub block: NonZeroU32,
}

impl Ask {
    /// The key of this request.
    #[must_use]
    pub fn key(&self) -> Key {
        Key { lock: self.lock.clone(), req: self.req }
    }
}

/// How long a hold, or a session with the store, is certain to last: until `sent + ttl − margin`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Taken before the very question left whose answer is believed: an answer may be a replay, so
    /// neither the first question's time nor the reply's will do. For a session, before the last
    /// question that provably came before its lease began, as the store's leader counts it: the
    /// last acknowledged keep-alive, say, never the write that made an entry.
    pub sent: ClockReading,
    /// What is left of the lease, as the store counted when it answered, which may be less than was
    /// asked for; `Duration::MAX` for a lock that lasts as long as its process.
    pub ttl: Duration,
    /// Given up for drifting clocks.
    pub margin: Duration,
}

impl Lease {
    /// When it must not be believed in any more, on each clock that counts.
    #[must_use]
    pub fn until(&self) -> ClockReading {
        self.sent.until(self.ttl, self.margin)
    }

    /// How long after a reading of the clocks it is certain to last.
    #[must_use]
    pub fn left(&self, now: ClockReading) -> Duration {
        self.until().left(now)
    }

    /// What the store would say is left of it, counted from now and no longer than before.
    pub(crate) fn recounted(self, now: ClockReading) -> Self {
        Self { sent: now, ttl: self.ttl.saturating_sub(now.since(self.sent)), ..self }
    }
}

/// A grant: the holder is safe until its lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The request it answers.
    pub req: ReqId,
    /// Its fencing tokens.
    pub tokens: TokenRange,
    /// How long it lasts.
    pub lease: Lease,
    /// How many wait behind it.
    pub waiters: u32,
}

impl Grant {
    /// When the holder must stop believing in it, on the boot-time clock.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.lease.until().boot
    }
}

/// The one formula of every deadline: from before the question, less the margin.
#[must_use]
pub fn deadline(sent: BootInstant, ttl: Duration, margin: Duration) -> BootInstant {
    sent.plus(ttl).minus(margin)
}

/// The answer to an acquire.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "a grant that nobody takes up stays held until its TTL ends"]
pub enum Attempt {
    /// It is held now.
    Granted(Grant),
    /// Patience ran out; nothing of the request is left in the store.
    Busy(QueueStatus),
}

/// One hold that is due for renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due {
    /// The hold.
    pub key: Key,
    /// The lease wanted from now on. Never more than was granted; less when `max_hold` is near.
    pub ttl: Duration,
}

/// The answer to one renewal.
#[derive(Clone, Debug)]
#[must_use = "a hold that was not renewed is lost"]
pub enum Kept {
    /// Held until this lease ends.
    Until {
        /// How long it lasts.
        lease: Lease,
        /// How many wait.
        waiters: u32,
    },
    /// Not held any more.
    Lost(LossReason),
    /// No answer: held or not, the deadline decides.
    Unknown(Error),
}

/// The answer to a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a lock that was lost before its release may have protected nothing"]
pub enum Released {
    /// It was held up to this moment, and is free now (or after its `min_hold`).
    Released,
    /// It had been lost before: somebody else may have held it meanwhile.
    WasLost,
}

/// How an operator takes a lock away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Force {
    /// The holder's next renewal fails and it is told; nobody is granted before its lease ends.
    Revoke,
    /// Free at once. Two guards can be valid until the old lease ends.
    Now,
}

/// What a forced release found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a lock that nobody held, or that another token held, was not taken away"]
#[non_exhaustive]
pub enum Forced {
    /// The lock was taken away.
    Done,
    /// Nobody holds it, or the token is not the holder's.
    NoMatch,
}

/// News from a store about a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Somebody else began to wait for it.
    Contended(Key),
    /// It is gone.
    Lost(Key, LossReason),
    /// It may be gone: ask.
    InDoubt(Key),
    /// News may have been missed, about any hold.
    Missed,
}

/// A hold that is given back, and its lock asked for anew: see [`Backend::acquire_after`].
pub struct Before {
    /// The hold.
    pub key: Key,
    /// How long it is waited for at most: its lease ends by itself then.
    pub within: Duration,
    /// Told what its release came to. An error ends the acquire.
    pub told: Told,
}

/// Hears what a release came to. An error ends what was to follow it.
pub type Told = Box<dyn FnOnce(Result<Released, Error>) -> Result<(), Error> + Send>;

/// Hears where a waiting request stands, whenever that changes.
pub type Watcher<'a> = &'a (dyn Fn(&QueueStatus) + Send + Sync);

/// One store behind one driver, as everything above sees it. Object-safe.
///
/// # Contract
/// * Every call is idempotent by request id; a repeated acquire answers with the same grant.
/// * `acquire` may be dropped at any await. Its caller then calls `abandon`, which must leave
///   neither lock nor place in line, also when it overtakes the acquire.
/// * Times in answers count from before the request left.
/// * No call blocks the thread; every call is bounded in time except the wait of `acquire`.
pub trait Backend: Send + Sync + 'static {
    /// What this store is and promises.
    fn info(&self) -> StoreInfo<'_>;

    /// What this store promises.
    fn capability(&self) -> &Capability {
        self.info().capability
    }

    /// Which very store this is, fit to print: no password in it.
    fn site(&self) -> &str {
        self.info().site
    }

    /// The clock that deadlines of this store are counted on.
    fn clock(&self) -> &Clock {
        self.info().clock
    }

    /// Asks for a lock and waits as long as the ask's patience. With `seen`, tells where the
    /// request stands whenever that changes.
    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>>;

    /// Undoes an acquire that nobody waits for any more: afterwards the request holds nothing and
    /// stands in no line, and never will.
    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>>;

    /// Renews holds: one batch, answers in the same order.
    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>>;

    /// Gives a lock back.
    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>>;

    /// Gives a hold back, and then asks for its lock with another request, which stands behind
    /// whoever waits. In one call, at a store that plays several moves in one.
    fn acquire_after<'a>(
        &'a self,
        before: Before,
        ask: Arc<Ask>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move {
            let Before { key, within, told } = before;
            let released = self.clock().timeout(within, self.release(&key)).await;
            told(released.unwrap_or_else(|| Err(self.info().unanswered(within))))?;
            self.acquire(ask, None).await
        })
    }

    /// Lists locks: held ones and those waited for.
    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>>;

    /// Takes a lock away from its holder; with a token only if it is one of the holder's.
    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>>;

    /// What to put into one's own transaction at this store, to have it fail when this hold is
    /// gone; `None` where the store has no such thing, or the request holds nothing.
    fn proof(&self, key: &Key) -> Option<Proof> {
        let _ = key;
        None
    }

    /// Which server of this store keeps the lock: renewals are batched by it, so that a slow server
    /// holds up its own locks only. Any number will do that differs for servers that fail apart; a
    /// store with one server need not say.
    fn shard(&self, lock: &FullName) -> u64 {
        let _ = lock;
        0
    }

    /// A hold is about to be left to whoever has its ticket, in whatever process. From then on it is
    /// shared with no other request of its owner here; false when it is already, and must stay.
    fn detach(&self, key: &Key) -> bool {
        let _ = key;
        true
    }

    /// Whether holders are told just now when somebody begins to wait for their lock
    /// ([`Event::Contended`]). Where they are not, a lock is handed on inside a process as if somebody
    /// always waited.
    fn tells_of_waiters(&self) -> bool {
        false
    }

    /// News about holds of this client. The first caller gets the stream.
    fn events(&self) -> Option<UnboundedReceiver<Event>>;

    /// Ends connections and threads. Holds that are still there are left to expire.
    fn close(&self) -> Fut<'_, ()>;
}
