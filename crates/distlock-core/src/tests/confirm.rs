//! A turn that the library's thread confirms for a waiter.

use std::pin::Pin;

use super::*;
use crate::state::Phase;
use crate::waiters::UNTAKEN;
use crate::{Name, Namespace, StoreInfo, Wake};

/// A store whose turns are to be confirmed by the library's thread.
struct Confirmed {
    memory: Memory,
    trouble: Arc<Trouble>,
}

/// What becomes of the answers to a confirmation.
#[derive(Default)]
struct Trouble {
    /// They wait here while set, after the store has applied the call.
    held_back: AtomicBool,
    go: Notify,
    /// The call panics once, after the store has applied it.
    panics: AtomicBool,
}

impl LeaseStore for Confirmed {
    as_memory!(except listen);
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let replies = self.memory.play(class, moves).await;
        assert!(!self.trouble.panics.swap(false, Ordering::SeqCst), "a store that panics");
        while self.trouble.held_back.load(Ordering::SeqCst) {
            self.trouble.go.notified().await;
        }
        replies
    }
    fn listen(&self, sink: EventSink) {
        self.memory.listen(Arc::new(move |wake| {
            sink(match wake {
                Wake::Turn(req) => Wake::Confirm(req),
                other => other,
            });
        }));
    }
}

type Waiter = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

/// Set when the task that was polled with it is to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A waiter of a `Confirmed` store, polled by hand, and the holder before it.
struct Turns {
    memory: Memory,
    trouble: Arc<Trouble>,
    others: Locks,
    holder: Option<Guard>,
    waiter: Waiter,
    woken: Arc<Woken>,
}

impl Turns {
    /// The waiter stands in the queue behind the holder.
    async fn new() -> Self {
        let memory = Memory::on(Clock::held());
        let trouble = Arc::<Trouble>::default();
        let store = Confirmed { memory: memory.client(), trouble: trouble.clone() };
        let store: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
        let locks = Locks::options().ttl(TTL).open(store).unwrap();
        let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
        let holder = Some(others.lock("a").await.unwrap());
        let waiter: Waiter = Box::pin(locks.lock("a").acquire());
        let mut turns = Self { memory, trouble, others, holder, waiter, woken: Arc::default() };
        turns.poll();
        turns
    }

    /// Polls the waiter once; it waits.
    fn poll(&mut self) {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = self.woken.clone().into();
        let polled = self.waiter.as_mut().poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending());
    }

    /// The holder lets go, and the store has made the waiter the holder.
    async fn confirmed(&mut self) {
        let released = self.holder.take().unwrap().release().await;
        assert_eq!(released.unwrap(), Released::Released);
        until("it is confirmed", || self.phase() == Some(Phase::Held)).await;
    }

    /// The waiter could take the answer if it were polled.
    async fn answered(&self) {
        until("it is told", || self.woken.0.load(Ordering::SeqCst)).await;
    }

    fn phase(&self) -> Option<Phase> {
        let lock = FullName { space: Namespace::default(), name: Name::new("a").unwrap() };
        self.memory.peek(&lock)?.holds.first().map(|hold| hold.phase)
    }

    fn advance(&self, d: Duration) {
        self.memory.info().clock.advance(d);
    }
}

#[tokio::test]
async fn a_turn_is_confirmed_though_its_waiter_is_not_polled() {
    let mut turns = Turns::new().await;
    turns.confirmed().await;
    let guard = turns.waiter.await.unwrap();
    let holds = turns.memory.peek(guard.lock()).unwrap().holds;
    assert_eq!((holds.len(), holds[0].token), (1, guard.token().get()));
    guard.check().unwrap();
}

#[tokio::test]
async fn a_confirmed_turn_whose_waiter_is_dropped_is_given_back() {
    let mut turns = Turns::new().await;
    turns.confirmed().await;
    drop(turns.waiter);
    let _ = turns.others.lock("a").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_confirmed_turn_that_nobody_takes_passes_on_after_a_second() {
    let mut turns = Turns::new().await;
    turns.confirmed().await;
    turns.answered().await;
    turns.advance(UNTAKEN - Duration::from_millis(1));
    // Time for a heartbeat that gives it back too early.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(turns.phase(), Some(Phase::Held));
    turns.advance(Duration::from_millis(1));
    let next = tokio::time::timeout(Duration::from_secs(10), turns.others.lock("a").acquire());
    let next = next.await.expect("it is kept").unwrap();
    turns.poll();
    let queued = || turns.memory.peek(next.lock()).is_some_and(|s| s.queue.len() == 1);
    until("it asks anew", queued).await;
    let _ = next.release().await.unwrap();
    turns.waiter.await.unwrap().check().unwrap();
}

#[tokio::test]
async fn a_confirmation_whose_answer_is_late_can_still_be_taken() {
    let mut turns = Turns::new().await;
    turns.trouble.held_back.store(true, Ordering::SeqCst);
    turns.confirmed().await;
    turns.advance(UNTAKEN * 2);
    turns.trouble.held_back.store(false, Ordering::SeqCst);
    turns.trouble.go.notify_waiters();
    turns.answered().await;
    // Time for a heartbeat that gives it back.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(turns.phase(), Some(Phase::Held));
    let guard = turns.waiter.await.unwrap();
    assert!(guard.remaining() <= TTL - UNTAKEN * 2, "its lease counts from before the question");
}

#[tokio::test]
async fn a_task_that_misses_its_turn_again_and_again_is_served_in_the_end() {
    let mut turns = Turns::new().await;
    for _ in 0..5 {
        turns.confirmed().await;
        turns.answered().await;
        turns.advance(UNTAKEN);
        turns.holder = Some(turns.others.lock("a").await.unwrap());
        turns.poll();
    }
    turns.confirmed().await;
    turns.waiter.await.unwrap().check().unwrap();
}

#[tokio::test]
async fn a_waiter_whose_confirmation_panics_asks_by_itself() {
    let mut turns = Turns::new().await;
    turns.trouble.panics.store(true, Ordering::SeqCst);
    turns.confirmed().await;
    let waiter = tokio::time::timeout(Duration::from_secs(10), turns.waiter);
    waiter.await.expect("it sleeps for ever").unwrap().check().unwrap();
}
