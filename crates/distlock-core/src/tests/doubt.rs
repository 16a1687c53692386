//! A request whose answer never came may still arrive.

use super::*;

/// An acquire that is under way.
type Late = Move;

/// A lease store whose network delays requests: they are unanswered, and arrive when told to.
struct Delayed {
    memory: Memory,
    /// How many acquires are held up from now on.
    hold_up: Arc<AtomicUsize>,
    under_way: Arc<Mutex<Vec<Late>>>,
}

impl LeaseStore for Delayed {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let take = |n: usize| n.checked_sub(1);
        if !matches!(moves[..], [Move::Acquire(..)])
            || self.hold_up.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err()
        {
            return self.memory.play(class, moves).await;
        }
        self.under_way.lock().unwrap().extend(moves);
        vec![Err(Error::new(Kind::Unreachable, "no answer").unknown())]
    }
}

/// A guard whose grant followed a request that is still under way, and that request.
async fn after_doubt(memory: &Memory, min_hold: Duration) -> (Guard, Late) {
    let clock = memory.info().clock;
    let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    let holder = others.lock("a").ttl(Duration::from_secs(60)).await.unwrap();
    let hold_up = Arc::<AtomicUsize>::default();
    let under_way = Arc::<Mutex<Vec<_>>>::default();
    let store =
        Delayed { memory: memory.client(), hold_up: hold_up.clone(), under_way: under_way.clone() };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    let mut waiter = tokio::spawn(locks.lock("a").min_hold(min_hold).acquire());
    until("it waits", || memory.peek(holder.lock()).is_some_and(|s| s.queue.len() == 1)).await;
    hold_up.store(1, Ordering::SeqCst);
    let _ = holder.release().await.unwrap();
    until("a request is held up", || under_way.lock().unwrap().len() == 1).await;
    let guard = loop {
        tokio::select! {
            guard = &mut waiter => break guard.unwrap().unwrap(),
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                clock.advance(Duration::from_millis(10));
            }
        }
    };
    let late = under_way.lock().unwrap().pop().unwrap();
    (guard, late)
}

/// More holds come and go than a store remembers the releases of.
async fn many_others(memory: &Memory) {
    let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    for _ in 0..100 {
        let _ = others.lock("a").await.unwrap().release().await.unwrap();
    }
}

async fn arrives_in_vain(memory: &Memory, late: Late) {
    let reply = memory.play_one(Class::Caller, late).await.unwrap();
    assert!(matches!(reply, Reply::Tombstoned(_)), "a request that was given back is back");
}

#[tokio::test]
async fn a_request_that_arrives_after_its_release_gets_nothing() {
    let memory = Memory::on(Clock::held());
    let (guard, late) = after_doubt(&memory, Duration::ZERO).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    many_others(&memory).await;
    arrives_in_vain(&memory, late).await;
}

#[tokio::test]
async fn a_request_that_arrives_after_its_guard_was_dropped_gets_nothing() {
    let memory = Memory::on(Clock::held());
    let (guard, late) = after_doubt(&memory, Duration::ZERO).await;
    let lock = guard.lock().clone();
    drop(guard);
    until("it is given back", || memory.peek(&lock).unwrap().holds.is_empty()).await;
    many_others(&memory).await;
    arrives_in_vain(&memory, late).await;
}

#[tokio::test]
async fn a_release_after_doubt_still_says_whether_the_lock_was_held() {
    let memory = Memory::on(Clock::held());
    let (guard, late) = after_doubt(&memory, Duration::ZERO).await;
    memory.wipe(guard.lock());
    assert_eq!(guard.release().await.unwrap(), Released::WasLost);
    arrives_in_vain(&memory, late).await;
}

#[tokio::test]
async fn a_release_after_doubt_keeps_the_min_hold() {
    let memory = Memory::on(Clock::held());
    let (guard, late) = after_doubt(&memory, TTL / 2).await;
    let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(others.lock("a").try_acquire().await.unwrap().is_err(), "its min_hold was cut short");
    memory.info().clock.advance(TTL / 2);
    let _ = others.lock("a").try_acquire().await.unwrap().expect("free").release().await.unwrap();
    many_others(&memory).await;
    arrives_in_vain(&memory, late).await;
}
