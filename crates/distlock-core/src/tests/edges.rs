//! What happens at the edges: after the end, beside another, at the same moment.

use super::*;

fn full(name: &str) -> FullName {
    FullName { space: crate::Namespace::default(), name: crate::Name::new(name).unwrap() }
}

fn queued(memory: &Memory, name: &str) -> Vec<crate::state::Waiter> {
    memory.peek(&full(name)).map_or(Vec::new(), |s| s.queue.into_iter().collect())
}

#[tokio::test]
async fn a_view_of_a_hold_ends_with_its_guard() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let (held, told) = (first.held(), first.cancellation_token());
    let _ = first.release().await.unwrap();
    let second = s.locks.lock("a").await.unwrap();
    second.check().unwrap();
    assert_eq!(held.check().unwrap_err().why, LossReason::Released, "two are valid at once");
    assert!(told.is_cancelled());
    assert_eq!(held.lost().await.why, LossReason::Released);
    let held = second.held();
    drop(second);
    assert_eq!(held.check().unwrap_err().why, LossReason::Released);
    let third = s.locks.lock("a").await.unwrap();
    let held = third.held();
    third.detach().unwrap();
    assert_eq!(held.check().unwrap_err().why, LossReason::Released);
}

#[tokio::test]
async fn a_release_without_an_answer_is_not_believed_in_any_more() {
    let s = scene();
    let mut guard = s.locks.lock("a").await.unwrap();
    let released = unanswered(&s, &mut guard).await;
    assert!(released.is_err());
    let other = s.locks.lock("a").await.unwrap(); // the store had released it
    other.check().unwrap();
    assert!(guard.check().is_err(), "two guards are valid at once");
    assert_eq!(guard.give_back().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_hold_that_is_resumed_here_is_its_old_guards_no_more() {
    let s = scene();
    let first = s.locks.lock("a").await.unwrap();
    let second = s.locks.resume(&first.ticket()).await.unwrap();
    assert_eq!(first.check().unwrap_err().why, LossReason::Released);
    // Its end frees nothing and ends no renewal: the hold is the second guard's.
    drop(first);
    renewing(&s, 6).await;
    second.check().unwrap();
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_err());
    let third = s.locks.resume(&second.ticket()).await.unwrap();
    assert_eq!(second.release().await.unwrap(), Released::WasLost);
    renewing(&s, 6).await;
    third.check().unwrap();
    assert_eq!(third.release().await.unwrap(), Released::Released);
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_ok());
}

#[tokio::test]
async fn closing_takes_waiting_acquires_back_before_the_store_is_closed() {
    let s = scene();
    let holder = Locks::options().open(s.memory.client()).unwrap().lock("a").await.unwrap();
    let mut waiter = std::pin::pin!(s.locks.lock("a").acquire());
    tokio::select! {
        biased;
        _ = &mut waiter => panic!("it is held"),
        () = until("it stands in line", || queued(&s.memory, "a").len() == 1) => {}
    }
    // Nobody looks at the waiting future now; closing must not depend on it.
    s.locks.close().await;
    assert!(queued(&s.memory, "a").is_empty(), "a closed client stands in line");
    assert_eq!(*s.spy.calls.lock().unwrap(), ["abandon", "close"]);
    assert_eq!(waiter.await.unwrap_err().kind(), Kind::Closed);
    holder.check().unwrap();
}

#[tokio::test]
async fn a_closed_client_resumes_nothing() {
    let s = scene();
    let ticket = s.locks.lock("a").await.unwrap().detach().unwrap();
    s.locks.close().await;
    assert_eq!(s.locks.resume(&ticket).await.unwrap_err().kind(), Kind::Closed);
    assert!(s.spy.batches().is_empty(), "renewed by a closed client");
}

#[tokio::test]
async fn s10_max_hold_frees_what_lasts_with_its_process_whoever_notices_first() {
    let s = scene_with(|c| c.expiry = crate::capability::Expiry::WithProcess);
    let max = Duration::from_secs(5);
    let guard = s.locks.lock("a").max_hold(max).await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    // The library's thread is busy while its holder looks.
    let (busy, is_busy) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    crate::engine::spawn(async move {
        busy.send(()).unwrap();
        let _ = wait.recv();
    });
    is_busy.recv().unwrap();
    s.clock.advance(max);
    assert_eq!(guard.check().unwrap_err().why, LossReason::MaxHold);
    drop(go_on);
    until("it is given back", || s.spy.calls.lock().unwrap().contains(&"abandon")).await;
}

#[tokio::test]
async fn a_short_wait_is_heard_of_in_time_beside_a_long_one() {
    let s = scene();
    let others = Locks::options().ttl(TTL).open(s.memory.client()).unwrap();
    let _held = (others.lock("a").await.unwrap(), others.lock("b").await.unwrap());
    let long = tokio::spawn(s.locks.lock("b").acquire());
    until("the long one waits", || queued(&s.memory, "b").len() == 1).await;
    until("its heart beats, beside its holder's renewer and itself", || s.clock.sleepers() > 2)
        .await;
    let ttl = Duration::from_millis(1500);
    let short = tokio::spawn(s.locks.lock("a").ttl(ttl).acquire());
    until("the short one waits", || queued(&s.memory, "a").len() == 1).await;
    let before = queued(&s.memory, "a")[0].deadline;
    s.clock.advance(ttl / 3);
    until("it is heard of", || queued(&s.memory, "a")[0].deadline > before).await;
    long.abort();
    short.abort();
}

/// A lease store that loses answers: it does what it is asked, lets time pass and says nothing.
struct Lossy {
    memory: Memory,
    lose: Arc<AtomicUsize>,
    takes: Duration,
}

impl LeaseStore for Lossy {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let one = moves.first().map(Move::verb);
        if one == Some("renew") && self.lose.load(Ordering::SeqCst) == usize::MAX {
            std::future::pending::<()>().await;
        }
        let replies = self.memory.play(class, moves).await;
        let take = |n: usize| n.checked_sub(1);
        if one != Some("acquire")
            || self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err()
        {
            return replies;
        }
        self.info().clock.advance(self.takes);
        vec![Err(Error::new(Kind::Unreachable, "no answer").unknown())]
    }
}

/// A client that waits for "a", which the returned guard holds, and loses the answers it is told.
async fn waiting(
    memory: &Memory,
    takes: Duration,
) -> (crate::Guard, Arc<AtomicUsize>, tokio::task::JoinHandle<Result<crate::Guard, Error>>) {
    let others = Locks::options().ttl(TTL).open(memory.client()).unwrap();
    let holder = others.lock("a").ttl(Duration::from_secs(60)).await.unwrap();
    let lose = Arc::<AtomicUsize>::default();
    let store = Lossy { memory: memory.client(), lose: lose.clone(), takes };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    until("it waits", || queued(memory, "a").len() == 1).await;
    until("its heart beats, beside its holder's renewer and itself", || {
        memory.info().clock.sleepers() > 2
    })
    .await;
    (holder, lose, waiter)
}

#[tokio::test]
async fn trouble_that_passes_costs_a_waiter_nothing_however_long_it_has_waited() {
    let memory = Memory::on(Clock::held());
    let clock = memory.info().clock;
    let (holder, lose, waiter) = waiting(&memory, Duration::ZERO).await;
    for _ in 0..5 {
        let before = queued(&memory, "a")[0].deadline;
        clock.advance(TTL / 3);
        until("it is heard of", || queued(&memory, "a")[0].deadline > before).await;
        until("its heart goes on", || clock.sleepers() > 2).await;
    }
    // It has waited longer than a wait-lease, and its place was kept all the time.
    lose.store(1, Ordering::SeqCst);
    let _ = holder.release().await.unwrap();
    until("an answer is lost", || lose.load(Ordering::SeqCst) == 0).await;
    let mut waiter = waiter;
    let guard = loop {
        tokio::select! {
            guard = &mut waiter => break guard.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                clock.advance(Duration::from_millis(10));
            }
        }
    };
    guard.unwrap().check().unwrap();
}

#[tokio::test]
async fn clones_of_a_memory_store_are_each_told_of_their_turn() {
    let memory = Memory::on(Clock::held());
    let (a, b) = (Locks::from_store(memory.clone()), Locks::from_store(memory.clone()));
    let guard = a.lock("a").await.unwrap();
    let waiter = tokio::spawn(b.lock("a").acquire());
    until("it waits", || queued(&memory, "a").len() == 1).await;
    let _ = guard.release().await.unwrap();
    // The clock stands still: only the push can wake it.
    until("it is woken", || waiter.is_finished()).await;
    waiter.await.unwrap().unwrap().check().unwrap();
}

#[tokio::test]
async fn a_grant_with_little_left_is_renewed_before_that_is_over() {
    let memory = Memory::on(Clock::held());
    let clock = memory.info().clock;
    // The store grants; the answer is lost after 7 s of 9; the next one is a replay.
    let (holder, lose, mut waiter) = waiting(&memory, Duration::from_secs(7)).await;
    lose.store(1, Ordering::SeqCst);
    let _ = holder.release().await.unwrap();
    until("an answer is lost", || lose.load(Ordering::SeqCst) == 0).await;
    let guard = loop {
        tokio::select! {
            guard = &mut waiter => break guard.unwrap().unwrap(),
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                clock.advance(Duration::from_millis(10));
            }
        }
    };
    let left = guard.remaining();
    assert!(left < TTL / 4, "{left:?} is not little");
    clock.advance(left * 2 / 3);
    until("it is renewed", || guard.remaining() > left).await;
}

#[tokio::test]
async fn run_says_so_when_the_store_says_at_the_end_that_the_lock_was_lost() {
    let s = scene();
    let memory = s.memory.clone();
    let wiped = s.locks.lock("a").run(async |held| memory.wipe(held.lock())).await;
    assert_eq!(wiped.unwrap_err().kind(), Kind::Lost);
    let blocking = crate::blocking::Locks::from(s.locks.clone());
    let wiped = blocking.lock("a").run(|held| memory.wipe(held.lock()));
    assert_eq!(wiped.unwrap_err().kind(), Kind::Lost);
    assert_eq!(s.locks.lock("a").run(async |_| 7).await.unwrap(), 7);
}

#[tokio::test]
async fn a_ticket_asks_for_no_lease_that_cannot_be() {
    let s = scene();
    let ticket = s.locks.lock("a").await.unwrap().detach().unwrap();
    for ttl in [Duration::ZERO, Duration::from_secs(365 * 24 * 3600), Duration::MAX] {
        let odd = crate::Ticket { ttl, ..ticket.clone() };
        assert_eq!(s.locks.resume(&odd).await.unwrap_err().kind(), Kind::Usage, "{ttl:?}");
    }
    s.locks.resume(&ticket).await.unwrap().check().unwrap();
}

#[tokio::test]
async fn a_held_clock_reaches_the_end_of_time() {
    let clock = Clock::held();
    clock.advance(Duration::MAX);
    clock.advance(Duration::MAX);
    clock.sleep(Duration::MAX).await;
    assert_eq!(clock.now(), crate::BootInstant::FAR);
}

#[tokio::test]
async fn a_resume_that_gets_no_answer_ends() {
    let memory = Memory::on(Clock::held());
    let clock = memory.info().clock.clone();
    let ticket = Locks::from_store(memory.client()).lock("a").await.unwrap().detach().unwrap();
    let lose = Arc::new(AtomicUsize::new(0));
    let store = Lossy { memory, lose: lose.clone(), takes: Duration::ZERO };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().open(backend).unwrap();
    lose.store(usize::MAX, Ordering::SeqCst); // nothing comes back at all
    let resumed = tokio::spawn(async move { locks.resume(&ticket).await });
    // Whenever it begins to wait, its ten seconds pass.
    let passing = || {
        clock.advance(Duration::from_secs(1));
        resumed.is_finished()
    };
    until("it ends", passing).await;
    let e = resumed.await.unwrap().unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, crate::Outcome::Unknown));
}

#[tokio::test]
async fn a_guard_that_outlives_its_client_asks_nothing_of_a_closed_store() {
    let s = scene();
    let (dropped, released) = (s.locks.lock("a").await.unwrap(), s.locks.lock("b").await.unwrap());
    s.locks.close().await;
    drop(dropped);
    assert_eq!(released.release().await.unwrap(), Released::WasLost);
    s.locks.close().await; // waits until nothing is left to give back
    assert_eq!(*s.spy.calls.lock().unwrap(), ["release", "release", "close", "close"]);
}

#[tokio::test]
async fn a_client_is_gone_with_its_last_clone_and_guard() {
    let Scene { clock, memory, spy, locks } = scene();
    let guard = locks.lock("a").await.unwrap();
    until("the renewer sleeps", || clock.sleepers() > 0).await;
    assert!(locks.lock("a").try_acquire_for(Duration::ZERO).await.unwrap().is_err());
    drop(locks);
    guard.check().unwrap();
    drop(guard);
    // Nothing refers to the store any more: no task of renewer, reaper or events.
    until("all let go", || Arc::strong_count(&spy) == 1).await;
    until("nobody sleeps", || clock.sleepers() == 0).await;
    assert!(memory.peek(&full("a")).is_none_or(|s| s.holds.is_empty()));
}

#[tokio::test]
async fn a_ticket_is_good_at_its_store_however_that_is_spelled() {
    let s = scene();
    let ticket = s.locks.lock("a").await.unwrap().detach().unwrap();
    let spelled = crate::Ticket { store: ticket.store ^ 1, ..ticket.clone() };
    let guard = s.locks.resume(&spelled).await.unwrap();
    let _ = guard.release().await.unwrap();
    // Of a store that never heard of it, the reason is told as well.
    let e = s.locks.resume(&spelled).await.unwrap_err();
    assert_eq!(e.kind(), Kind::Lost);
    assert!(e.hint().is_some_and(|h| h.contains(s.locks.site())), "{e:?}");
    let e = s.locks.resume(&ticket).await.unwrap_err();
    assert!(e.hint().is_some_and(|h| !h.contains(s.locks.site())), "{e:?}");
}

/// A client of a memory store that grants short leases only.
struct Short {
    memory: Memory,
    capability: Capability,
}

impl LeaseStore for Short {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, ..self.memory.info() }
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        self.memory.play(class, moves).await
    }
}

#[tokio::test]
async fn a_ticket_of_a_longer_ttl_than_the_store_grants_is_refused() {
    let memory = Memory::on(Clock::held());
    let others = Locks::options().open(memory.client()).unwrap();
    let capability = Capability { ttl_max: TTL, ..memory.info().capability.clone() };
    let store = Short { memory: memory.client(), capability };
    let backend: Arc<dyn Backend> = Arc::new(LeaseDriver::new(store));
    let locks = Locks::options().open(backend).unwrap();
    let long = others.lock("a").ttl(TTL * 2).await.unwrap().detach().unwrap();
    let refused = locks.resume(&long).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage, "{refused}");
    let fits = others.lock("b").ttl(TTL).await.unwrap().detach().unwrap();
    locks.resume(&fits).await.unwrap().check().unwrap();
}
