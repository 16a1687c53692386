//! Many holds and many waiters: what one slow call may cost, and what all of them do.

use super::*;
use crate::{Label, Mode, Name, Owner, Patience, ReqId};

async fn many(s: &Scene, n: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for i in 0..n {
        guards.push(s.locks.lock(format!("n{i}")).await.unwrap());
    }
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    guards
}

/// How many were renewed after `advance` of a third of their TTL.
fn renewed(guards: &[Guard]) -> usize {
    guards.iter().filter(|g| g.remaining() > TTL * 2 / 3).count()
}

#[tokio::test]
async fn a_renewal_that_hangs_costs_its_own_holds_only() {
    let s = scene();
    let guards = many(&s, 700).await;
    s.spy.hang.store(1, Ordering::SeqCst);
    s.clock.advance(TTL / 3);
    until("all are asked for", || s.spy.batches().iter().sum::<usize>() == 700).await;
    let batches = s.spy.batches();
    assert!(batches.iter().all(|n| *n <= 256), "{batches:?}");
    // Of the call that hangs nothing is known, whichever it is; the others count.
    until("the others are renewed", || renewed(&guards) >= 700 - 256).await;
    assert!(renewed(&guards) < 700);
    // Half of what they have left later they are asked for again, and nothing is lost.
    let rest = || {
        s.clock.advance(Duration::from_millis(10));
        guards.iter().all(|g| g.remaining() > TTL / 2)
    };
    until("the rest is renewed", rest).await;
}

#[tokio::test]
async fn a_server_that_hangs_costs_its_own_holds_only() {
    let s = scene();
    s.spy.servers.store(2, Ordering::SeqCst);
    let guards = many(&s, 400).await;
    s.spy.first_server_hangs.store(true, Ordering::SeqCst);
    s.clock.advance(TTL / 3);
    until("the other's are renewed", || renewed(&guards) == 200).await;
    s.clock.advance(TTL * 2 / 3);
    let lost = guards.iter().filter(|g| g.check().is_err()).count();
    assert_eq!(lost, 200, "those of the server that hangs");
}

#[tokio::test]
async fn many_that_are_dropped_at_once_are_given_back_by_few_calls_at_a_time() {
    let s = scene();
    let guards = many(&s, 300).await;
    s.spy.hold_releases.store(true, Ordering::SeqCst);
    drop(guards);
    let calls = || s.spy.calls.lock().unwrap().len();
    until("some are under way", || calls() >= 64).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(calls(), 64);
    s.spy.hold_releases.store(false, Ordering::SeqCst);
    let all = || {
        s.spy.go.notify_waiters();
        calls() == 300
    };
    until("all are given back", all).await;
    assert_eq!(s.locks.close().await.left, 0);
}

/// One heartbeat for all of so many waiters of one lock; how long that takes, at best.
async fn beat_of(n: usize) -> Duration {
    let memory = Memory::new();
    let ask = |patience| Ask {
        lock: FullName { space: crate::Namespace::default(), name: Name::new("a").unwrap() },
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl: TTL * 100,
        patience,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("crowd"),
        block: std::num::NonZeroU32::MIN,
    };
    let never = Move::Acquire(Arc::new(ask(Patience::Never)), None);
    memory.play_one(Class::Caller, never).await.unwrap();
    let mut waiting = Vec::new();
    let wait = TTL * 100;
    for _ in 0..n {
        let ask = ask(Patience::Forever);
        memory
            .play_one(Class::Caller, Move::Acquire(Arc::new(ask.clone()), Some(wait)))
            .await
            .unwrap();
        waiting.push(Move::Heartbeat(ask.key(), wait));
    }
    let clock = Clock::system();
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let beats = waiting.clone();
        let began = clock.now();
        let pulses = memory.play(Class::Upkeep, beats).await;
        best = best.min(clock.now().since(began));
        let place = |(i, p): (usize, &Result<Reply, Error>)| matches!(p, Ok(Reply::Pulse(Pulse::Queued { ahead, .. })) if usize::try_from(*ahead) == Ok(i));
        assert!(pulses.iter().enumerate().all(place));
    }
    best
}

#[tokio::test]
async fn a_heartbeat_grows_with_the_line_and_not_with_its_square() {
    let (few, lots) = (beat_of(250).await, beat_of(2000).await);
    assert!(lots < few * 24, "{few:?} for 250, {lots:?} for eight times as many");
}
