//! What a store of the lease family must offer: [`LeaseStore::play`], and little else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::state::Claim;
use crate::{
    Ask, Due, Error, Event, Force, Forced, FullName, Key, Kind, LockInfo, Op, Query, Reply, ReqId,
    StoreInfo, Token, WakeUp, engine,
};

/// Which connection a batch of moves belongs on: upkeep never queues behind callers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Acquires and releases of the application's tasks.
    Caller,
    /// Renewals, heartbeats, cancels, and releases of dropped guards.
    Upkeep,
}

impl Class {
    /// The class of a call made here: the library's own thread does the upkeep.
    #[must_use]
    pub fn here() -> Self {
        if engine::on_library_thread() { Self::Upkeep } else { Self::Caller }
    }
}

/// One operation of the specification on one lock, as clients ask for it.
#[derive(Clone, Debug)]
pub enum Move {
    /// [`Op::Acquire`]. With a wait-lease the request queues, and is dropped when it is silent for
    /// that long; without one it does not queue.
    Acquire(Arc<Ask>, Option<Duration>),
    /// [`Op::Heartbeat`] of one waiter.
    Heartbeat(Key, Duration),
    /// [`Op::Renew`] of one hold.
    Renew(Due),
    /// [`Op::Release`].
    Release(Key),
    /// [`Op::Cancel`].
    Cancel(Key),
}

impl Move {
    /// The lock it is about.
    #[must_use]
    pub fn lock(&self) -> &FullName {
        match self {
            Self::Acquire(ask, _) => &ask.lock,
            Self::Heartbeat(key, _) | Self::Release(key) | Self::Cancel(key) => &key.lock,
            Self::Renew(due) => &due.key.lock,
        }
    }

    /// The request it is about, at its lock.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Acquire(ask, _) => ask.key(),
            Self::Heartbeat(key, _) | Self::Release(key) | Self::Cancel(key) => key.clone(),
            Self::Renew(due) => due.key.clone(),
        }
    }

    /// What it is called in errors and logs.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Acquire(..) => "acquire",
            Self::Heartbeat(..) => "heartbeat",
            Self::Renew(_) => "renew",
            Self::Release(_) => "release",
            Self::Cancel(_) => "cancel",
        }
    }

    /// The operation for a store that runs the specification itself, and tells the client things
    /// at the address `via`.
    #[must_use]
    pub fn into_op(self, via: &str) -> (FullName, Op) {
        match self {
            Self::Acquire(ask, wait) => {
                let claim = Claim::of(&ask, via);
                (ask.lock.clone(), Op::Acquire { claim, wait })
            }
            Self::Heartbeat(Key { lock, req }, wait) => (lock, Op::Heartbeat { req, wait }),
            Self::Renew(Due { key, ttl }) => (key.lock, Op::Renew { req: key.req, ttl }),
            Self::Release(Key { lock, req }) => (lock, Op::Release { req }),
            Self::Cancel(Key { lock, req }) => (lock, Op::Cancel { req }),
        }
    }
}

/// Moves in a row that a store can send in one call: many of a kind, or a single one.
#[derive(Debug)]
pub enum Run {
    /// One acquire.
    Acquire(Arc<Ask>, Option<Duration>),
    /// Heartbeats of many waiters.
    Heartbeat(Vec<(Key, Duration)>),
    /// Renewals of many holds.
    Renew(Vec<Due>),
    /// One release.
    Release(Key),
    /// One cancel.
    Cancel(Key),
}

impl Run {
    /// Splits a batch of moves into runs, in order.
    pub fn split(moves: Vec<Move>) -> impl Iterator<Item = Self> + Send {
        let mut moves = moves.into_iter().peekable();
        std::iter::from_fn(move || {
            Some(match moves.next()? {
                Move::Acquire(ask, wait) => Self::Acquire(ask, wait),
                Move::Release(key) => Self::Release(key),
                Move::Cancel(key) => Self::Cancel(key),
                Move::Heartbeat(key, wait) => {
                    let mut all = vec![(key, wait)];
                    let same = |next: &Move| matches!(next, Move::Heartbeat(..));
                    while let Some(Move::Heartbeat(key, wait)) = moves.next_if(same) {
                        all.push((key, wait));
                    }
                    Self::Heartbeat(all)
                }
                Move::Renew(due) => {
                    let mut all = vec![due];
                    let same = |next: &Move| matches!(next, Move::Renew(_));
                    while let Some(Move::Renew(due)) = moves.next_if(same) {
                        all.push(due);
                    }
                    Self::Renew(all)
                }
            })
        })
    }
}

/// One reply for each move of a batch, in order.
pub type Replies = Vec<Result<Reply, Error>>;

/// The reply to a lone move.
///
/// # Errors
/// That of the move; of unknown outcome when there is no reply.
pub fn only(mut replies: Replies) -> Result<Reply, Error> {
    let none = || Err(Error::new(Kind::Store, "no reply to a move").unknown());
    replies.pop().unwrap_or_else(none)
}

/// What a store tells its driver without being asked. A wake-up is only ever a hint: the waiter
/// asks again and believes that answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wake {
    /// It may be this request's turn.
    Turn(ReqId),
    /// The same, from a store at which a call takes longer than waking a thread: the library's own
    /// thread asks for the waiter at once, without waiting for its task to be polled.
    Confirm(ReqId),
    /// Wake-ups may have been missed: everybody asks again.
    Everybody,
    /// The store sends an acquire of this request again, because a connection broke under the first:
    /// that may still arrive. Told before the second is sent.
    Repeated(ReqId),
    /// News about a hold.
    Event(Event),
}

/// Where a store drops its wake-ups; callable from any thread, never blocks.
pub type EventSink = Arc<dyn Fn(Wake) + Send + Sync>;

/// A store that decides atomically: one script, one transaction, one call.
///
/// For authors of stores; users never see it. [`LeaseDriver`](crate::lease_driver::LeaseDriver) turns it into a
/// [`Backend`](crate::backend::Backend): waiting, heartbeats, timers and wake-ups are written there,
/// once.
///
/// # Contract of `play`
/// * One reply for each move, in order; each move is one atomic step of
///   [`LockState`](crate::state::LockState), by its rules, on the store's clock.
/// * Moves on one lock are applied in the given order; across locks there is no promise.
/// * Every move is idempotent by its request id. A store that sends an acquire more than once says
///   so ([`Wake::Repeated`]).
/// * An error is about its own move alone: [`unknown`](Error::unknown) when it was sent and not
///   answered, not applied when it was never sent. A store that grants nothing to anybody for now
///   answers an acquire with [`Error::not_yet`].
/// * It ends in bounded time, and may be dropped at any await: what was sent may still be applied.
///   Nobody else's moves depend on its future being polled.
/// * [`Class::Upkeep`] never queues behind [`Class::Caller`].
pub trait LeaseStore: Send + Sync + 'static {
    /// What this store is and promises.
    fn info(&self) -> StoreInfo<'_>;

    /// Whether the store itself bounds every call. Then the driver sets no timer for each call,
    /// which over a network costs about as much as the call.
    fn ends_in_time(&self) -> bool {
        false
    }

    /// Whether a waiter is told of its turn just now. Otherwise it asks again and again: the head of
    /// the queue often, whoever is further back less often.
    fn pushes(&self) -> bool {
        self.info().capability.wake == WakeUp::Push
    }

    /// Whether holders are told just now when somebody begins to wait
    /// ([`Event::Contended`]). Where they are not, a lock is handed on inside a process as if somebody
    /// always waited.
    fn tells_of_waiters(&self) -> bool {
        self.info().capability.wake == WakeUp::Push && self.pushes()
    }

    /// Which server of this store keeps the lock: heartbeats and renewals are batched by it, so that
    /// a slow server holds up its own locks only. Cheap, and without I/O: it is asked for each hold
    /// at each renewal. A store with one server need not say.
    fn shard(&self, lock: &FullName) -> u64 {
        let _ = lock;
        0
    }

    /// Applies a batch of moves. See the contract above.
    fn play(&self, class: Class, moves: Vec<Move>) -> impl Future<Output = Replies> + Send;

    /// Applies one move. What waits for its answer should be small: a thousand callers may, and a
    /// store whose `play` is large says here how it plays a lone acquire.
    fn play_one(
        &self,
        class: Class,
        one: Move,
    ) -> impl Future<Output = Result<Reply, Error>> + Send {
        // Made before the first await: the future carries no copy of the move.
        let played = self.play(class, vec![one]);
        async move { only(played.await) }
    }

    /// Lists locks.
    fn inspect(&self, query: &Query) -> impl Future<Output = Result<Vec<LockInfo>, Error>> + Send;

    /// Takes a lock away from the holder with a token. Not a move: it is not idempotent.
    ///
    /// Without a token it is about a holder that another program made, which has none:
    /// [`Locks::force`](crate::Locks::force) names the token of every other holder it has seen.
    fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> impl Future<Output = Result<Forced, Error>> + Send;

    /// Told once, before any other call: where wake-ups go.
    fn listen(&self, sink: EventSink);

    /// Ends connections and threads.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Namespace};

    #[test]
    fn a_run_is_many_of_a_kind_in_a_row_or_a_single_move() {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        let key = || Key { lock: lock.clone(), req: ReqId::random() };
        let renew = || Move::Renew(Due { key: key(), ttl: Duration::from_secs(1) });
        let beat = || Move::Heartbeat(key(), Duration::from_secs(1));
        let moves = vec![renew(), renew(), Move::Release(key()), renew(), beat(), beat(), beat()];
        let sizes = Run::split(moves).map(|run| match run {
            Run::Renew(all) => ("renew", all.len()),
            Run::Heartbeat(all) => ("heartbeat", all.len()),
            Run::Release(_) => ("release", 1),
            Run::Acquire(..) | Run::Cancel(_) => ("other", 1),
        });
        let expected = [("renew", 2), ("release", 1), ("renew", 1), ("heartbeat", 3)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
    }
}
