//! The commands of a [`Faulty`](super::Faulty) store.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Ask, Key};
use distlock_core::lease::{Class, LeaseStore, Move};
use distlock_core::memory::Memory;
use distlock_core::state::Reply;
use distlock_core::{
    Error, FullName, Kind, Label, Mode, Name, Owner, Patience, QueueStatus, ReqId, Token,
};
use tokio::sync::watch;

/// The calls a store gets, so that a test can count them and pick on some.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// Asks, asks again, polls.
    Acquire,
    /// Says that waiters live.
    Heartbeat,
    /// Renews holds.
    Renew,
    /// Gives back.
    Release,
    /// Undoes a request.
    Cancel,
    /// Lists.
    Inspect,
    /// Takes away.
    Force,
}

impl Call {
    pub(super) fn of(one: &Move) -> Self {
        match one {
            Move::Acquire(..) => Self::Acquire,
            Move::Heartbeat(..) => Self::Heartbeat,
            Move::Renew(_) => Self::Renew,
            Move::Release(_) => Self::Release,
            Move::Cancel(_) => Self::Cancel,
        }
    }
}

/// Commands a [`Faulty`](super::Faulty) store. Clones are the same handle.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

struct Shared {
    memory: Memory,
    gates: watch::Sender<Gates>,
    counts: watch::Sender<Counts>,
    plan: Mutex<Plan>,
}

/// What stands still at the moment.
#[derive(Clone, Copy, Default)]
struct Gates {
    requests: bool,
    replies: bool,
}

#[derive(Clone, Default)]
struct Counts {
    asked: HashMap<Call, usize>,
    done: HashMap<Call, usize>,
    held: Vec<Key>,
}

#[derive(Default)]
struct Plan {
    refuse: bool,
    unanswered: usize,
    unhurried: bool,
}

pub(super) enum Fate {
    Answered,
    Refused,
    Unanswered,
}

impl Faults {
    pub(super) fn new(memory: Memory) -> Self {
        Self(Arc::new(Shared {
            memory,
            gates: watch::Sender::default(),
            counts: watch::Sender::default(),
            plan: Mutex::default(),
        }))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, name: &str) -> FullName {
        FullName { space: Default::default(), name: Name::new(name).expect("a name") }
    }

    /// From now on no call reaches the store, as if packets were dropped in silence.
    pub fn stall(&self) {
        self.0.gates.send_modify(|g| g.requests = true);
    }

    /// From now on calls take effect but their answers do not arrive.
    pub fn stall_replies(&self) {
        self.0.gates.send_modify(|g| g.replies = true);
    }

    /// Lets everything that stands still go on, and what comes after it.
    pub fn resume(&self) {
        self.0.gates.send_modify(|g| *g = Gates::default());
    }

    /// From now on every call fails at once without effect, until [`Faults::accept`].
    pub fn refuse(&self) {
        self.plan().refuse = true;
    }

    /// Ends [`Faults::refuse`].
    pub fn accept(&self) {
        self.plan().refuse = false;
    }

    /// The next `n` calls take effect, but their answers are lost: the caller cannot know.
    pub fn drop_replies(&self, n: usize) {
        self.plan().unanswered = n;
    }

    /// From now on every call pauses once before and once after it takes effect, so that a test
    /// that drops a future at every poll meets it there.
    pub fn take_time(&self) {
        self.plan().unhurried = true;
    }

    /// Takes a lock from this client's holders as an operator who deletes its record would: the
    /// holder is not told, its next renewal finds out. Whoever is first in line gets the lock.
    ///
    /// # Panics
    /// When it is not a name.
    pub async fn lose(&self, name: &str) {
        let lock = self.full(name);
        let mut lost = Vec::new();
        self.0.counts.send_modify(|c| lost.extend(c.held.extract_if(.., |k| k.lock == lock)));
        for key in &lost {
            let _ = self.0.memory.play_one(Class::Caller, Move::Cancel(key.clone())).await;
        }
    }

    /// Takes a lock from this client's holders and gives it to a thief for `ttl`; the holder's
    /// next renewal finds out. Returns the thief's token, which is higher than the victim's.
    ///
    /// # Errors
    /// The queue's status, when somebody stood in line and got the lock before the thief.
    ///
    /// # Panics
    /// When it is not a name.
    pub async fn steal(&self, name: &str, ttl: Duration) -> Result<Token, QueueStatus> {
        self.lose(name).await;
        let ask = Ask {
            lock: self.full(name),
            req: ReqId::random(),
            owner: Owner::new(),
            mode: Mode::Exclusive,
            ttl,
            patience: Patience::Never,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::new("a thief"),
            block: NonZeroU32::MIN,
        };
        match self.0.memory.play_one(Class::Caller, Move::Acquire(Arc::new(ask), None)).await {
            Ok(Reply::Granted { token, .. }) => Ok(token),
            Ok(Reply::Busy { ahead, why }) => {
                let ahead = Some(ahead);
                Err(QueueStatus { holder: why.holder, ahead, left: why.left, note: None })
            }
            other => unreachable!("memory answers a try with granted or busy: {other:?}"),
        }
    }

    /// Waits until this client has been granted a lock that it still has as far as it knows.
    ///
    /// # Panics
    /// When it is not a name.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn granted(&self, name: &str) {
        let lock = self.full(name);
        let mut counts = self.0.counts.subscribe();
        let _ = counts.wait_for(|c| c.held.iter().any(|k| k.lock == lock)).await;
    }

    /// How many calls of a kind have been made, stalled ones included.
    #[must_use]
    pub fn asked(&self, call: Call) -> usize {
        self.0.counts.borrow().asked.get(&call).copied().unwrap_or(0)
    }

    /// Waits until so many calls of a kind have been made, stalled ones included.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn until_asked(&self, call: Call, n: usize) {
        let mut counts = self.0.counts.subscribe();
        let _ = counts.wait_for(|c| c.asked.get(&call).is_some_and(|m| *m >= n)).await;
    }

    /// Waits until so many calls of a kind have taken effect, answered or not.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn until_done(&self, call: Call, n: usize) {
        let mut counts = self.0.counts.subscribe();
        let _ = counts.wait_for(|c| c.done.get(&call).is_some_and(|m| *m >= n)).await;
    }

    pub(super) fn note(&self, key: Key) {
        self.0.counts.send_modify(|c| {
            c.held.retain(|k| *k != key);
            c.held.push(key);
        });
    }

    pub(super) async fn before(&self, call: Call) -> Fate {
        self.0.counts.send_modify(|c| *c.asked.entry(call).or_default() += 1);
        let unhurried = self.plan().unhurried;
        if unhurried {
            tokio::task::yield_now().await;
        }
        let mut gates = self.0.gates.subscribe();
        let _ = gates.wait_for(|g| !g.requests).await;
        let mut plan = self.plan();
        if plan.refuse {
            return Fate::Refused;
        }
        if plan.unanswered > 0 {
            plan.unanswered -= 1;
            return Fate::Unanswered;
        }
        Fate::Answered
    }

    pub(super) async fn after(&self, call: Call) {
        self.0.counts.send_modify(|c| *c.done.entry(call).or_default() += 1);
        let unhurried = self.plan().unhurried;
        if unhurried {
            tokio::task::yield_now().await;
        }
        let mut gates = self.0.gates.subscribe();
        let _ = gates.wait_for(|g| !g.replies).await;
    }

    pub(super) fn refusal(&self) -> Error {
        Error::new(Kind::Unreachable, "this store was told to refuse")
            .store(self.0.memory.info().site)
            .with_hint("Faults::accept ends it")
    }

    pub(super) fn silence(&self) -> Error {
        Error::new(Kind::Unreachable, "the answer was dropped, as this store was told to")
            .store(self.0.memory.info().site)
            .unknown()
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{Clock, Locks, LossReason, Outcome, Released};

    use super::super::Faulty;
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn held() -> (Clock, Faults, Locks) {
        let clock = Clock::held();
        let store = Faulty::on(clock.clone());
        (clock, store.faults(), Locks::from_store(store))
    }

    #[tokio::test]
    async fn a_lost_lock_is_found_out_at_the_next_renewal() {
        let (clock, faults, locks) = held();
        let guard = locks.lock("a").ttl(TTL).await.unwrap();
        faults.lose("a").await;
        assert!(guard.check().is_ok(), "the holder was told at once");
        clock.advance(TTL / 3);
        assert_eq!(guard.lost().await.why, LossReason::Gone);
        assert!(locks.show("a").await.unwrap().is_none(), "the renewal brought it back");
    }

    #[tokio::test]
    async fn a_thief_has_the_higher_token() {
        let (clock, faults, locks) = held();
        let guard = locks.lock("a").ttl(TTL).await.unwrap();
        let thief = faults.steal("a", TTL).await.unwrap();
        assert!(thief > guard.token());
        clock.advance(TTL / 3);
        guard.lost().await;
        assert_eq!(guard.release().await.unwrap(), Released::WasLost);
        let busy = locks.lock("a").try_acquire().await.unwrap().unwrap_err();
        assert_eq!(busy.status.holder.unwrap().token, thief);
    }

    #[tokio::test]
    async fn calls_can_be_refused() {
        let (_clock, faults, locks) = held();
        faults.refuse();
        let e = locks.lock("a").try_acquire().await.unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::NotApplied));
        faults.accept();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_ok(), "it took effect");
    }

    #[tokio::test]
    async fn answers_can_be_dropped() {
        let (_clock, faults, locks) = held();
        faults.drop_replies(1);
        let e = locks.lock("a").try_acquire().await.unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::Unknown));
        faults.until_done(Call::Cancel, 1).await;
        assert!(locks.lock("a").try_acquire().await.unwrap().is_ok(), "the lost grant stayed");
    }

    #[tokio::test]
    async fn stalled_calls_go_on_when_told() {
        let (_clock, faults, locks) = held();
        faults.stall();
        let (lock, go) = (locks.lock("a"), async {
            faults.until_asked(Call::Acquire, 1).await;
            assert!(faults.0.memory.peek(&faults.full("a")).is_none(), "it reached the store");
            faults.resume();
        });
        let (guard, ()) = tokio::join!(lock.acquire(), go);
        assert!(guard.unwrap().check().is_ok());
    }
}
