//! What a store of the lease family must offer: its textbook moves, and nothing else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::busy::Standing;
use crate::capability::{Capability, WakeUp};
use crate::clock::Clock;
use crate::error::Error;
use crate::ids::ReqId;
use crate::info::{LockInfo, Query};
use crate::lost::Why;
use crate::name::FullName;
use crate::seam::{Ask, Due, Event, Force, Forced, Key, Released};
use crate::state::Pulse;
use crate::token::{Token, TokenRange};

/// The answer to one acquire of a lease store.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Held; `left` is what remains of the lease, which is less than the TTL for a replay.
    Granted {
        /// Its tokens.
        tokens: TokenRange,
        /// What is left of the lease.
        left: Duration,
        /// How many wait.
        waiters: u32,
    },
    /// Held by others, and this request is not in line.
    Busy(Standing),
    /// In line.
    Waiting(Standing),
    /// The store grants nothing to anybody for now; ask again after `left`.
    NotYet {
        /// When to ask again.
        left: Duration,
        /// Why, for people.
        why: String,
    },
    /// This request was cancelled or released before and stays so.
    Spent,
}

/// The answer to one renewal of a lease store.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// Held for another `left`.
    Held {
        /// What is left of the lease.
        left: Duration,
        /// How many wait.
        waiters: u32,
    },
    /// Not held any more.
    Lost(Why),
    /// No answer.
    Unknown(Error),
}

/// What a store tells its driver without being asked. A wake-up is only ever a hint: the waiter
/// asks again and believes that answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wake {
    /// It may be this request's turn.
    Turn(ReqId),
    /// Wake-ups may have been missed: everybody asks again.
    Everybody,
    /// The store sends an acquire of this request again, because a connection broke under the first:
    /// that may still arrive. Told before the second is sent.
    Repeated(ReqId),
    /// News about a hold.
    Event(Event),
}

/// Where a store drops its wake-ups; callable from any thread, never blocks.
pub type Ears = Arc<dyn Fn(Wake) + Send + Sync>;

/// A store that decides atomically: one script, one transaction, one call.
///
/// For authors of stores; users never see it. [`Leased`](crate::leased::Leased) turns it into a
/// [`Backend`](crate::seam::Backend): waiting, heartbeats, timers and wake-ups are written there,
/// once.
///
/// # Contract
/// * Each call is one atomic step of [`LockState`](crate::state::LockState), by its rules.
/// * Only the store's clock counts, read inside the atomic step.
/// * Every call is idempotent by request id and bounded in time. A store that sends an acquire more
///   than once in one call says so ([`Wake::Repeated`]).
/// * `heartbeat`, `renew` and `cancel` are called on the library's own thread; `acquire` and
///   `release` anywhere (see [`on_library_thread`](crate::engine::on_library_thread)).
pub trait LeaseStore: Send + Sync + 'static {
    /// What this store promises.
    fn capability(&self) -> &Capability;

    /// Which very store this is, fit to print.
    fn site(&self) -> &str;

    /// The clock deadlines are counted on.
    fn clock(&self) -> &Clock;

    /// Whether the store itself sees to it that every call ends in time. Then the driver sets no
    /// timer for each call, which over a network costs about as much as the call.
    fn ends_in_time(&self) -> bool {
        false
    }

    /// Whether a waiter is told of its turn just now. Otherwise it asks again and again: the head of
    /// the line often, whoever is further back less often.
    fn calls_up(&self) -> bool {
        self.capability().wake == WakeUp::Push
    }

    /// Which server of this store keeps the lock: heartbeats and renewals are batched by it, so that
    /// a slow server holds up its own locks only. Cheap, and without I/O: it is asked for each hold
    /// at each renewal. A store with one server need not say.
    fn shard(&self, lock: &FullName) -> u64 {
        let _ = lock;
        0
    }

    /// Asks, asks again, confirms or polls. With `wait_lease` the request stands in line and is
    /// dropped when not heard of for that long.
    fn acquire(
        &self,
        ask: &Ask,
        wait_lease: Option<Duration>,
    ) -> impl Future<Output = Result<Answer, Error>> + Send;

    /// Says that waiters are alive: one call for all, answers in the same order.
    fn heartbeat(
        &self,
        waiting: &[(Key, Duration)],
    ) -> impl Future<Output = Result<Vec<Pulse>, Error>> + Send;

    /// Renews holds: one call for all, answers in the same order.
    fn renew(&self, due: &[Due]) -> impl Future<Output = Vec<Renewal>> + Send;

    /// Gives a hold back.
    fn release(
        &self,
        key: &Key,
        requeue: Option<&Ask>,
    ) -> impl Future<Output = Result<Released, Error>> + Send;

    /// Undoes a request, whatever became of it, and keeps it from coming back.
    fn cancel(&self, key: &Key) -> impl Future<Output = Result<(), Error>> + Send;

    /// Lists locks.
    fn inspect(&self, query: &Query) -> impl Future<Output = Result<Vec<LockInfo>, Error>> + Send;

    /// Takes a lock away.
    fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> impl Future<Output = Result<Forced, Error>> + Send;

    /// Told once, before any other call: where wake-ups go.
    fn listen(&self, ears: Ears);

    /// Ends connections and threads.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
