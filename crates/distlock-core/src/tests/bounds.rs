//! Calls that end in time, whatever the store does.

use super::*;
use crate::{Outcome, StoreInfo};

/// A lease store that can be stopped: it is asked, and says nothing more.
struct Stopped {
    memory: Memory,
    stopped: Arc<AtomicBool>,
    /// How many seconds later an acquire is answered.
    slow: Arc<AtomicUsize>,
}

impl Stopped {
    async fn answers(&self) {
        if self.stopped.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

impl LeaseStore for Stopped {
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        self.answers().await;
        let acquires = matches!(moves[..], [Move::Acquire(..)]);
        let replies = self.memory.play(class, moves).await;
        if acquires {
            let slow = self.slow.load(Ordering::SeqCst);
            self.info().clock.sleep(Duration::from_secs(slow as u64)).await;
        }
        replies
    }
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.memory.inspect(query).await
    }
    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.memory.force(lock, token, how).await
    }
    fn listen(&self, sink: EventSink) {
        self.memory.listen(sink);
    }
    async fn close(&self) {
        self.answers().await;
        self.memory.close().await;
    }
}

struct Stoppable {
    memory: Memory,
    clock: Clock,
    stopped: Arc<AtomicBool>,
    slow: Arc<AtomicUsize>,
    locks: Locks,
}

fn stoppable() -> Stoppable {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let stopped = Arc::<AtomicBool>::default();
    let slow = Arc::<AtomicUsize>::default();
    let store = Stopped { memory: memory.client(), stopped: stopped.clone(), slow: slow.clone() };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    Stoppable { memory, clock, stopped, slow, locks }
}

/// Lets time pass until a task has ended, and says how much.
async fn lasts<T>(clock: &Clock, task: tokio::task::JoinHandle<T>) -> (Duration, T) {
    let began = clock.now();
    let step = Duration::from_millis(100);
    while !task.is_finished() && clock.now().since(began) < Duration::from_secs(120) {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if !task.is_finished() {
            clock.advance(step);
        }
    }
    (clock.now().since(began), task.await.unwrap())
}

#[tokio::test]
async fn a_timed_acquire_ends_in_time_at_a_store_that_says_nothing() {
    let s = stoppable();
    for d in [Duration::from_millis(500), Duration::ZERO] {
        s.stopped.store(true, Ordering::SeqCst);
        let lock = s.locks.lock("a");
        let task = tokio::spawn(async move { lock.try_acquire_for(d).await.map(|r| r.map(drop)) });
        let (took, answer) = lasts(&s.clock, task).await;
        let e = answer.unwrap_err();
        assert!(took <= d + Duration::from_millis(1200), "{took:?} for {d:?}");
        assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::Unknown), "{e}");
        assert!(e.hint().is_some_and(|h| h.contains("background")), "{e:?}");
    }
}

/// A grant whose lease is over when it arrives is asked for again; all that is still one try.
#[tokio::test]
async fn a_try_ends_in_time_though_every_grant_comes_too_late() {
    let s = stoppable();
    s.slow.store(6, Ordering::SeqCst);
    let lock = s.locks.lock("a").ttl(Duration::from_secs(3));
    let task = tokio::spawn(async move { lock.try_acquire().await.map(|r| r.map(drop)) });
    let (took, answer) = lasts(&s.clock, task).await;
    assert!(took <= Duration::from_millis(11_200), "{took:?}");
    let e = answer.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::Unknown), "{e}");
}

#[tokio::test]
async fn a_timed_acquire_in_line_ends_in_time_when_its_store_stops() {
    let s = stoppable();
    let others = Locks::options().ttl(TTL).open(s.memory.client()).unwrap();
    let holder = others.lock("a").ttl(Duration::from_secs(60)).await.unwrap();
    let lock = s.locks.lock("a");
    let d = Duration::from_secs(2);
    let task = tokio::spawn(async move { lock.try_acquire_for(d).await.map(|r| r.map(drop)) });
    until("it waits", || s.memory.peek(holder.lock()).unwrap().queue.len() == 1).await;
    s.stopped.store(true, Ordering::SeqCst);
    let (took, answer) = lasts(&s.clock, task).await;
    assert!(took <= d + Duration::from_millis(1200), "{took:?}");
    assert_eq!(answer.unwrap_err().kind(), Kind::Unreachable);
    // What it left is taken back as soon as the store answers again.
    s.stopped.store(false, Ordering::SeqCst);
    let line = || {
        s.clock.advance(Duration::from_millis(100));
        s.memory.peek(holder.lock()).unwrap().queue.is_empty()
    };
    until("it is cancelled", line).await;
}

#[tokio::test]
async fn closing_ends_in_time_at_a_store_that_says_nothing() {
    let s = stoppable();
    let lock = s.locks.lock("a").ttl(Duration::from_secs(100));
    let guard = lock.await.unwrap();
    s.stopped.store(true, Ordering::SeqCst);
    let locks = s.locks.clone();
    let (took, closed) = lasts(&s.clock, tokio::spawn(async move { locks.close().await })).await;
    assert!(took <= Duration::from_millis(6500), "{took:?}");
    assert_eq!(closed.left, 1);
    assert_eq!(guard.check().unwrap_err().why, LossReason::Closed);
}

/// What is given up because its lease is over is no sign of life: only acknowledgements prolong a close.
#[tokio::test]
async fn closing_is_not_prolonged_by_what_is_given_up() {
    let s = stoppable();
    let mut guards = Vec::new();
    for name in ["a", "b", "c", "d"] {
        guards.push(s.locks.lock(name).await.unwrap());
    }
    s.stopped.store(true, Ordering::SeqCst);
    // They are given up one after the other, four seconds apart.
    for guard in guards {
        drop(guard);
        let clock = s.clock.clone();
        let pause = tokio::spawn(async move { clock.sleep(Duration::from_secs(4)).await });
        lasts(&s.clock, pause).await;
    }
    let locks = s.locks.clone();
    let (took, closed) = lasts(&s.clock, tokio::spawn(async move { locks.close().await })).await;
    assert!(took <= Duration::from_millis(6500), "{took:?}");
    assert!(closed.left > 0);
}

/// Closing can cancel a request while its waiter asks: within one poll, so that the waiter meets the
/// cancel before it sees that its client is closing.
#[tokio::test]
async fn a_waiter_that_meets_the_cancel_of_its_closing_client_is_told_of_the_close() {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    let holder = others.lock("a").ttl(Duration::from_secs(60)).await.unwrap();
    let locks = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    let (closing, d) = (locks.clone(), Duration::from_secs(2));
    let close = move |_: &_| {
        let locks = crate::blocking::Locks::from(closing.clone());
        std::thread::spawn(move || locks.close()).join().unwrap();
        clock.advance(d);
    };
    let e = locks.lock("a").on_wait(close).try_acquire_for(d).await.unwrap_err();
    assert_eq!(e.kind(), Kind::Closed, "{e:?}");
    assert!(memory.peek(holder.lock()).unwrap().queue.is_empty(), "its place in line stayed");
}

#[tokio::test]
async fn closing_waits_for_releases_of_other_tasks() {
    let s = scene();
    let guard = s.locks.lock("a").await.unwrap();
    s.spy.hold_releases.store(true, Ordering::SeqCst);
    let release = tokio::spawn(guard.release());
    until("the release is under way", || !s.spy.calls.lock().unwrap().is_empty()).await;
    let locks = s.locks.clone();
    let closing = tokio::spawn(async move { locks.close().await });
    until("it is closing", || s.locks.is_closing()).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*s.spy.calls.lock().unwrap(), ["release"], "closed beneath a release");
    }
    s.spy.hold_releases.store(false, Ordering::SeqCst);
    s.spy.go.notify_waiters();
    assert_eq!(release.await.unwrap().unwrap(), Released::Released);
    assert_eq!(closing.await.unwrap().left, 0);
    assert_eq!(*s.spy.calls.lock().unwrap(), ["release", "close"]);
}

#[tokio::test]
async fn a_force_is_bound_to_the_holders_that_were_seen() {
    let s = scene();
    let guard = s.locks.lock("a").await.unwrap();
    assert_eq!(s.locks.force("a", None, Force::Revoke).await.unwrap(), Forced::Done);
    assert_eq!(*s.spy.forced.lock().unwrap(), [Some(guard.token())]);
    let two = std::num::NonZeroU32::new(2).unwrap();
    let permits = [
        s.locks.lock("b").permits(two).await.unwrap(),
        s.locks.lock("b").permits(two).await.unwrap(),
    ];
    assert_eq!(s.locks.force("b", None, Force::Now).await.unwrap(), Forced::Done);
    for permit in &permits {
        tokio::time::timeout(Duration::from_secs(5), permit.lost()).await.expect("it is told");
    }
    assert!(s.spy.forced.lock().unwrap().iter().all(Option::is_some));
    assert_eq!(s.locks.force("c", None, Force::Now).await.unwrap(), Forced::NoMatch);
}
