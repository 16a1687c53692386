//! The wall clock as second witness: a store on another host, whose time runs on while this machine
//! is paused. Steps of the held clock's wall stand for what is put right afterwards.

use std::sync::atomic::AtomicI64;

use super::*;

/// The memory store as if it were on another host. Its answers can be held up by a pause of this
/// machine that only the wall shows.
#[derive(Clone)]
struct Remote {
    memory: Memory,
    promises: Capability,
    pause: Arc<AtomicI64>,
}

impl Remote {
    fn pause(&self) {
        match self.pause.swap(0, Ordering::SeqCst) {
            0 => {}
            seconds => self.info().clock.step_wall(seconds),
        }
    }
}

impl LeaseStore for Remote {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.promises, ..self.memory.info() }
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let pauses = |one: &Move| matches!(one, Move::Acquire(..) | Move::Renew(_));
        let pauses = moves.iter().any(pauses);
        let replies = self.memory.play(class, moves).await;
        if pauses {
            self.pause();
        }
        replies
    }
}

/// A scene with the wall for a witness, and what pauses its calls.
fn remote() -> (Scene, Arc<AtomicI64>) {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let promises = Capability { wall_witness: true, ..memory.info().capability.clone() };
    let pause = Arc::<AtomicI64>::default();
    let store = Remote { memory: memory.clone(), promises, pause: pause.clone() };
    let spy = Spy::new(Arc::new(LeaseDriver::new(store)));
    let backend: Arc<dyn Backend> = Arc::new(spy.clone());
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    (Scene { clock, memory, spy, locks }, pause)
}

const SECOND: Duration = Duration::from_secs(1);
/// All of a lease, in seconds.
const ALL: i64 = TTL.as_secs().cast_signed();

async fn lost(guard: &Guard) -> Lost {
    tokio::time::timeout(SECOND * 5, guard.lost()).await.expect("told of the loss")
}

#[tokio::test]
async fn a_forward_step_past_the_deadline_loses_the_lock_and_nothing_else_has_to_happen() {
    let (s, _) = remote();
    let guard = s.locks.lock("a").await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.clock.step_wall(ALL);
    // The boot-time clock has not moved at all.
    assert_eq!(lost(&guard).await.why, LossReason::Expired);
    assert_eq!(guard.check().unwrap_err().why, LossReason::Expired);
    assert_eq!(guard.remaining(), Duration::ZERO);
    // It is not looked after any more, and no step back brings it to life again.
    s.clock.step_wall(-2 * ALL);
    s.clock.advance(TTL / 3);
    let other = s.locks.lock("b").await.unwrap();
    renewing(&s, 1).await;
    assert_eq!(s.spy.batches(), [1], "only the other one is renewed");
    assert_eq!(guard.release().await.unwrap(), Released::WasLost);
    drop(other);
}

#[tokio::test]
async fn who_looks_first_after_a_step_sees_the_loss_before_the_keeper() {
    let (s, _) = remote();
    let guard = s.locks.lock("a").without_renewal().await.unwrap();
    s.clock.step_wall(ALL - 1);
    guard.check().unwrap();
    s.clock.step_wall(1);
    assert_eq!(guard.check().unwrap_err().why, LossReason::Expired);
}

#[tokio::test]
async fn a_small_step_forward_only_ends_it_earlier() {
    let (s, _) = remote();
    let guard = s.locks.lock("a").without_renewal().await.unwrap();
    s.clock.step_wall(5);
    assert_eq!(guard.remaining(), TTL - SECOND * 5);
    guard.check_for(SECOND * 3).unwrap();
    assert_eq!(guard.check_for(SECOND * 4).unwrap_err().why, LossReason::TooShort);
    s.clock.advance(SECOND * 3);
    guard.check().unwrap();
    s.clock.advance(SECOND);
    assert_eq!(lost(&guard).await.why, LossReason::Expired);
}

#[tokio::test]
async fn a_step_back_changes_nothing() {
    let (s, _) = remote();
    let guard = s.locks.lock("a").without_renewal().await.unwrap();
    s.clock.step_wall(-3600);
    assert_eq!(guard.remaining(), TTL);
    s.clock.advance(TTL - SECOND);
    guard.check().unwrap();
    s.clock.advance(SECOND);
    assert_eq!(lost(&guard).await.why, LossReason::Expired);
}

#[tokio::test]
async fn a_renewal_starts_both_clocks_anew() {
    let (s, _) = remote();
    let guard = s.locks.lock("a").await.unwrap();
    // Together the steps are far more than a lease; none is more since the last renewal.
    for _ in 0..5 {
        s.clock.step_wall(5);
        assert_eq!(guard.remaining(), TTL - SECOND * 5);
        renewing(&s, 1).await;
        until("the renewal counts", || guard.remaining() == TTL).await;
    }
    // Nor does a step back leave a reserve that a later pause could use up unseen.
    s.clock.step_wall(-3600);
    renewing(&s, 1).await;
    until("the renewal counts", || guard.remaining() == TTL).await;
    s.clock.step_wall(ALL);
    assert_eq!(lost(&guard).await.why, LossReason::Expired);
}

#[tokio::test]
async fn a_pause_after_the_question_left_counts_and_before_it_does_not() {
    let (s, pause) = remote();
    s.clock.step_wall(3600);
    pause.store(4, Ordering::SeqCst);
    let guard = s.locks.lock("a").await.unwrap();
    assert_eq!(guard.remaining(), TTL - SECOND * 4);
    pause.store(1, Ordering::SeqCst);
    renewing(&s, 1).await;
    until("the renewal counts", || guard.remaining() == TTL - SECOND).await;
    // The question was answered yes, but by then the deadline was over.
    pause.store(ALL, Ordering::SeqCst);
    renewing(&s, 1).await;
    assert_eq!(lost(&guard).await.why, LossReason::Expired);
}

#[tokio::test]
async fn a_grant_that_a_pause_outlived_is_asked_for_again() {
    let (s, pause) = remote();
    pause.store(ALL, Ordering::SeqCst);
    let guard = s.locks.lock("a").await.unwrap();
    assert_eq!(guard.remaining(), TTL, "of the second question");
    let given_back = || s.spy.calls.lock().unwrap().front() == Some(&"abandon");
    until("the first is given back", given_back).await;
}

#[tokio::test]
async fn a_hold_added_after_a_step_is_watched_like_the_others() {
    let (s, _) = remote();
    let first = s.locks.lock("a").await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.clock.step_wall(5);
    let second = s.locks.lock("b").await.unwrap();
    assert_eq!(second.remaining(), TTL);
    s.clock.step_wall(5);
    assert_eq!(lost(&first).await.why, LossReason::Expired);
    assert_eq!(second.remaining(), TTL - SECOND * 5);
}

#[tokio::test]
async fn a_store_on_this_host_does_not_look_at_the_wall() {
    let s = scene();
    let guard = s.locks.lock("a").await.unwrap();
    for step in [1_000_000, -2_000_000, 1_000_000, ALL] {
        s.clock.step_wall(step);
        assert_eq!(guard.remaining(), TTL);
        renewing(&s, 1).await;
        until("the renewal counts", || guard.remaining() == TTL).await;
    }
    assert!(!guard.cancellation_token().is_cancelled());
}
