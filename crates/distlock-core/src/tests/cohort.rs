//! Locks that are handed on inside a process: who gets them, with which token, and what the store is
//! asked meanwhile.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

pub(super) fn holds(s: &Scene, name: &str) -> usize {
    let lock = FullName { space: crate::Namespace::default(), name: name.parse().unwrap() };
    s.memory.peek(&lock).map_or(0, |state| state.holds.len())
}

pub(super) fn queued(s: &Scene, name: &str) -> usize {
    let lock = FullName { space: crate::Namespace::default(), name: name.parse().unwrap() };
    s.memory.peek(&lock).map_or(0, |state| state.queue.len())
}

pub(super) fn calls(s: &Scene, what: &str) -> usize {
    s.spy.calls.lock().unwrap().iter().filter(|call| **call == what).count()
}

/// Another process at the same store.
pub(super) fn elsewhere(s: &Scene) -> Locks {
    Locks::options().ttl(TTL).open(s.memory.client()).unwrap()
}

/// Lets everybody who can go on do so.
pub(super) async fn settle() {
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What a task comes to. One that is never served is a failure, not a test that never ends.
pub(super) async fn soon<T>(task: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it never ends")
}

/// So many tasks that ask in turn; each answers with its guard.
async fn crowd(s: &Scene, tasks: usize) -> Vec<tokio::task::JoinHandle<Guard>> {
    let mut all = Vec::new();
    for _ in 0..tasks {
        let lock = s.locks.lock("a");
        all.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        tokio::task::yield_now().await;
    }
    settle().await;
    all
}

#[tokio::test]
async fn a_crowd_is_served_in_order_with_rising_tokens_and_few_calls() {
    let s = scene();
    let mut guard = s.locks.lock("a").await.unwrap();
    let mut last = guard.token();
    for task in crowd(&s, 40).await {
        assert_eq!(queued(&s, "a"), 0, "a second contender of one client");
        let view = guard.held();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        assert_eq!(view.check().unwrap_err().why, LossReason::Released);
        guard = soon(task).await.unwrap();
        assert!(guard.token() > last && guard.check().is_ok());
        last = guard.token();
    }
    let _ = guard.release().await.unwrap();
    until("released", || holds(&s, "a") == 0).await;
    // The first had asked alone, for one token; the second reserved a block for the others.
    assert_eq!(calls(&s, "release"), 2);
}

#[tokio::test]
async fn a_dropped_guard_hands_over_too() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let tasks = crowd(&s, 3).await;
    drop(first);
    for task in tasks {
        drop(soon(task).await.unwrap());
    }
    until("released", || holds(&s, "a") == 0).await;
    assert_eq!(calls(&s, "release"), 2);
}

#[tokio::test]
async fn somebody_elsewhere_gets_the_lock_after_64_hand_overs() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 100).await.into_iter();
    let _ = first.release().await.unwrap();
    let mut guard = soon(tasks.next().unwrap()).await.unwrap();
    let there = elsewhere(&s);
    let remote = tokio::spawn(there.lock("a").acquire());
    until("it waits", || queued(&s, "a") == 1).await;
    settle().await;
    let mut passed = 0;
    let remote = loop {
        let _ = guard.release().await.unwrap();
        let next = tasks.next().unwrap();
        until("somebody has it", || next.is_finished() || remote.is_finished()).await;
        if remote.is_finished() {
            tasks = [next].into_iter().chain(tasks).collect::<Vec<_>>().into_iter();
            break soon(remote).await.unwrap().unwrap();
        }
        guard = soon(next).await.unwrap();
        passed += 1;
    };
    assert_eq!(passed, 64);
    assert!(remote.check().is_ok());
    // The others stand behind it with one request, and go on afterwards.
    until("they wait", || queued(&s, "a") == 1).await;
    let token = remote.token();
    let _ = remote.release().await.unwrap();
    for task in tasks {
        let guard = soon(task).await.unwrap();
        assert!(guard.token() > token);
        let _ = guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn somebody_elsewhere_gets_the_lock_after_20_ms() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 3).await.into_iter();
    let _ = first.release().await.unwrap();
    let second = soon(tasks.next().unwrap()).await.unwrap();
    let there = elsewhere(&s);
    let remote = tokio::spawn(there.lock("a").acquire());
    until("it waits", || queued(&s, "a") == 1).await;
    settle().await;
    let _ = second.release().await.unwrap();
    let third = soon(tasks.next().unwrap()).await.unwrap();
    s.clock.advance(Duration::from_millis(20));
    let _ = third.release().await.unwrap();
    let remote = soon(remote).await.unwrap().unwrap();
    let _ = remote.release().await.unwrap();
    drop(soon(tasks.next().unwrap()).await.unwrap());
}

#[tokio::test]
async fn an_offer_that_nobody_polls_passes_on_after_a_second() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut asleep = Box::pin(s.locks.lock("a").acquire());
    assert!(asleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The request at the store is its own as long as nobody else waits.
    let tasks = crowd(&s, 1).await;
    let _ = first.release().await.unwrap();
    settle().await;
    assert!(!tasks[0].is_finished());
    // Once asked for, and once offered.
    for _ in 0..4 {
        s.clock.advance(Duration::from_millis(500));
        settle().await;
    }
    assert!(tasks[0].is_finished(), "an unpolled task holds everybody up");
    for task in tasks {
        drop(soon(task).await.unwrap());
    }
    drop(soon(asleep).await.unwrap());
}

#[tokio::test]
async fn a_leader_that_is_not_polled_holds_nobody_up_and_one_that_is_dropped_takes_nothing_along() {
    let s = scene();
    let there = elsewhere(&s);
    let remote = there.lock("a").await.unwrap();
    let mut leader = Box::pin(s.locks.lock("a").acquire());
    assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let tasks = crowd(&s, 1).await;
    assert_eq!(queued(&s, "a"), 1);
    drop(leader);
    settle().await;
    assert_eq!((queued(&s, "a"), calls(&s, "abandon")), (1, 0), "its place is theirs");
    let _ = remote.release().await.unwrap();
    for task in tasks {
        drop(soon(task).await.unwrap());
    }
    // Nobody else waits: the request is taken back with its leader.
    until("free", || holds(&s, "a") == 0).await;
    let remote = there.lock("a").await.unwrap();
    let mut leader = Box::pin(s.locks.lock("a").acquire());
    assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until("it waits", || queued(&s, "a") == 1).await;
    drop(leader);
    until("taken back", || queued(&s, "a") == 0).await;
    drop(remote);
}

#[tokio::test]
async fn a_loss_is_told_to_the_holder_and_feeds_nobody() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 2).await.into_iter();
    let _ = first.release().await.unwrap();
    let second = soon(tasks.next().unwrap()).await.unwrap();
    let _ = s.locks.force("a", Some(second.token()), Force::Now).await.unwrap();
    assert_eq!(soon(second.lost()).await.why, LossReason::Revoked);
    let third = soon(tasks.next().unwrap()).await.unwrap();
    assert!(third.check().is_ok() && third.token() > second.token());
    assert_eq!(second.release().await.unwrap(), Released::WasLost);
    settle().await;
    assert!(third.check().is_ok() && holds(&s, "a") == 1);
}

#[tokio::test]
async fn a_lease_of_which_less_than_half_is_left_feeds_nobody() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 2).await.into_iter();
    let _ = first.release().await.unwrap();
    let second = soon(tasks.next().unwrap()).await.unwrap();
    s.spy.hang.store(usize::MAX, Ordering::SeqCst);
    s.clock.advance(TTL * 6 / 10);
    settle().await;
    let _ = second.release().await.unwrap();
    let third = soon(tasks.next().unwrap()).await.unwrap();
    assert!(third.remaining() > TTL * 9 / 10, "{:?}", third.remaining());
}

#[tokio::test]
async fn max_hold_is_counted_for_each_holder_and_ends_the_lease() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let bounded = s.locks.lock("a").max_hold(TTL * 2);
    let second = tokio::spawn(async move { bounded.acquire().await.unwrap() });
    settle().await;
    let mut tasks = crowd(&s, 1).await.into_iter();
    renewing(&s, 5).await;
    let _ = first.release().await.unwrap();
    let second = soon(second).await.unwrap();
    assert!(second.remaining() > TTL / 2, "counted from its own beginning");
    renewing(&s, 5).await;
    assert!(second.check().is_ok());
    s.clock.advance(TTL / 3);
    assert_eq!(soon(second.lost()).await.why, LossReason::MaxHold);
    drop(second);
    drop(soon(tasks.next().unwrap()).await.unwrap());
}

#[tokio::test]
async fn closing_ends_holds_offers_and_waits() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(s.locks.lock("a").acquire())).collect();
    settle().await;
    let mut asleep = Box::pin(s.locks.lock("b").acquire());
    assert!(asleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!(s.locks.close().await.left, 0);
    assert_eq!(first.check().unwrap_err().why, LossReason::Closed);
    for task in tasks {
        assert_eq!(soon(task).await.unwrap().unwrap_err().kind(), Kind::Closed);
    }
    assert_eq!((holds(&s, "a"), queued(&s, "a")), (0, 0));
}

#[tokio::test]
async fn a_ticket_takes_the_lease_out_of_the_cohort() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 2).await.into_iter();
    let _ = first.release().await.unwrap();
    let second = soon(tasks.next().unwrap()).await.unwrap();
    let ticket = second.ticket();
    until("the others ask for themselves", || queued(&s, "a") == 1).await;
    let resumed = elsewhere(&s).resume(&ticket).await.unwrap();
    drop(second);
    until("the release is the last word", || holds(&s, "a") == 1 && queued(&s, "a") == 0).await;
    let third = soon(tasks.next().unwrap()).await.unwrap();
    assert!(third.token() > resumed.token());
    drop(resumed);
    settle().await;
    assert!(third.check().is_ok() && holds(&s, "a") == 1, "a late release ends another's hold");
}

#[tokio::test]
async fn patience_ends_while_a_task_of_the_same_client_holds_the_lock() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let waits = s.locks.lock("a").try_acquire_for(Duration::from_secs(1));
    let (busy, ()) = tokio::join!(waits, async {
        settle().await;
        s.clock.advance(Duration::from_secs(1));
    });
    let busy = busy.unwrap().unwrap_err();
    assert_eq!(busy.status.holder.unwrap().token, first.token());
    assert_eq!((busy.status.ahead, queued(&s, "a")), (Some(0), 0));
    // A free lock is granted whatever the patience.
    let free = s.locks.lock("b").try_acquire_for(Duration::from_nanos(1)).await.unwrap().unwrap();
    drop((first, free));
}

#[tokio::test]
async fn patience_ends_in_the_queue_of_the_store_and_leaves_nothing_there() {
    let s = scene();
    let there = elsewhere(&s);
    let remote = there.lock("a").await.unwrap();
    let waits = s.locks.lock("a").try_acquire_for(Duration::from_secs(1));
    let (busy, ()) = tokio::join!(waits, async {
        until("it waits", || queued(&s, "a") == 1).await;
        s.clock.advance(Duration::from_secs(1));
    });
    assert_eq!(busy.unwrap().unwrap_err().status.holder.unwrap().token, remote.token());
    assert_eq!(queued(&s, "a"), 0);
}

#[tokio::test]
async fn strict_order_and_requests_of_their_own_kind_go_to_the_store() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let owner = crate::Owner::new();
    let own: [crate::Lock; 4] = [
        s.locks.lock("a").owner(&owner),
        s.locks.lock("a").min_hold(Duration::from_secs(1)),
        s.locks.lock("a").without_renewal(),
        s.locks.lock("a").on_wait(|_| ()),
    ];
    let tasks: Vec<_> = own.into_iter().map(|lock| tokio::spawn(lock.acquire())).collect();
    until("all wait at the store", || queued(&s, "a") == 4).await;
    let strict = Locks::options().strict_order().ttl(TTL).open(s.memory.client()).unwrap();
    let two = [strict.lock("a"), strict.lock("a")].map(|lock| tokio::spawn(lock.acquire()));
    until("so do those in strict order", || queued(&s, "a") == 6).await;
    tasks.iter().for_each(|task| task.abort());
    two.iter().for_each(|task| task.abort());
    drop(first);
}

#[tokio::test]
async fn the_place_at_the_store_is_kept_for_those_who_wait() {
    let s = scene();
    let there = elsewhere(&s);
    let _permit = there.lock("a").permits(2.try_into().unwrap()).acquire().await.unwrap();
    let mut first = pin!(s.locks.lock("a").acquire());
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let tasks: Vec<_> = (0..2).map(|_| tokio::spawn(s.locks.lock("a").acquire())).collect();
    settle().await;
    assert_eq!(queued(&s, "a"), 1);
    // Whoever waits is heard of: the place in the queue is kept while nobody polls the first.
    pass(&s.clock, TTL * 2).await;
    assert_eq!(queued(&s, "a"), 1);
    assert!(tasks.iter().all(|task| !task.is_finished()));
    tasks.iter().for_each(|task| task.abort());
}

/// The verbs of each batch.
type Played = Arc<Mutex<Vec<Vec<&'static str>>>>;

/// A lease store that notes what it is asked together.
struct Together {
    memory: Memory,
    played: Played,
    /// How many batches with a release are done and not answered.
    unanswered: Arc<AtomicUsize>,
}

impl LeaseStore for Together {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let verbs: Vec<_> = moves.iter().map(Move::verb).collect();
        let take = |n: usize| n.checked_sub(1);
        let unanswered = verbs.contains(&"release")
            && self.unanswered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        self.played.lock().unwrap().push(verbs);
        if unanswered {
            // It never arrives, and nobody knows.
            let unknown = || Err(Error::new(Kind::Unreachable, "no answer").unknown());
            return moves.iter().map(|_| unknown()).collect();
        }
        self.memory.play(class, moves).await
    }
}

/// Two clients of one memory, the first by a store that notes what it is asked together; and how to
/// have that not answer.
fn together() -> (Scene, Played, Arc<AtomicUsize>) {
    let s = scene();
    let (played, unanswered) = (Played::default(), Arc::<AtomicUsize>::default());
    let (memory, told, silent) = (s.memory.client(), played.clone(), unanswered.clone());
    let store = Together { memory, played: told, unanswered: silent };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    (Scene { locks, ..s }, played, unanswered)
}

#[tokio::test]
async fn a_lease_is_given_back_and_asked_for_anew_in_one_call_behind_whoever_waits_elsewhere() {
    let (s, played, _) = together();
    let first = s.locks.lock("a").await.unwrap();
    let mut tasks = crowd(&s, 2).await.into_iter();
    let there = elsewhere(&s);
    let remote = tokio::spawn(there.lock("a").acquire());
    until("it waits", || queued(&s, "a") == 1).await;
    played.lock().unwrap().clear();
    // It has one token, which nobody else can use.
    let _ = first.release().await.unwrap();
    let remote = soon(remote).await.unwrap().unwrap();
    until("they wait", || queued(&s, "a") == 1).await;
    assert_eq!(*played.lock().unwrap(), [["release", "acquire"]]);
    let _ = remote.release().await.unwrap();
    let second = soon(tasks.next().unwrap()).await.unwrap();
    let _ = second.release().await.unwrap();
    drop(soon(tasks.next().unwrap()).await.unwrap());
}

#[tokio::test]
async fn a_release_without_an_answer_is_repeated_although_a_request_went_with_it() {
    let (s, _, unanswered) = together();
    let first = s.locks.lock("a").await.unwrap();
    let (lock, token) = (s.locks.lock("a"), first.token());
    let task = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    unanswered.store(1, Ordering::SeqCst);
    let _ = first.release().await.unwrap();
    // Neither arrived: whoever waited is told, and the lease is given back all the same.
    assert_eq!(soon(task).await.unwrap().unwrap_err().kind(), Kind::Unreachable);
    until("free", || holds(&s, "a") == 0).await;
    let there = elsewhere(&s);
    assert!(there.lock("a").await.unwrap().token() > token);
}
