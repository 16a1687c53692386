//! Cases that chance meets too rarely.

use distlock_core::Mode;
use distlock_core::seam::Force;
use distlock_core::state::Reply;

use super::moves::{Move, Slot};
use super::run::Run;
use super::subject::Subject;

fn slots(n: usize, mode: Mode) -> Vec<Slot> {
    let slot = |i| Slot {
        lock: 0,
        owner: i as u8,
        mode,
        ttl: 100_000,
        min_hold: 0,
        lock_delay: 0,
        block: 1,
        via: 3,
    };
    (0..n).map(slot).collect()
}

fn acquire(slot: usize) -> Move {
    Move::Acquire { slot, wait: None, fresh: true, moved: None }
}

fn release(slot: usize) -> Move {
    Move::Release { slot, back: 0 }
}

/// A released request whose min_hold kept the lock is remembered longer than those released after
/// it: when those are over, it must not be pushed out in their place.
///
/// # Panics
/// When that is not so.
pub async fn a_full_memory_drops_what_is_over_first<S: Subject>(mut subject: S) {
    let mut kinds = slots(9, Mode::Shared);
    kinds[0].min_hold = 5_000;
    let mut run = Run::new(&mut subject, kinds, true).await;
    for slot in 0..8 {
        run.one(&acquire(slot)).await;
    }
    for slot in 0..8 {
        run.one(&release(slot)).await;
    }
    run.now += 61_000_000;
    run.one(&acquire(8)).await;
    run.one(&release(8)).await;
    assert_eq!(run.one(&release(0)).await, [Reply::Released], "still remembered");
    for slot in 1..8 {
        run.one(&release(slot)).await;
    }
}

/// The server's clock is set back by an hour: tokens rise all the same.
///
/// # Panics
/// When that is not so.
pub async fn tokens_rise_though_the_clock_falls<S: Subject>(mut subject: S) {
    let mut run = Run::new(&mut subject, slots(1, Mode::Exclusive), true).await;
    let mut last = None;
    for _ in 0..4 {
        let got = run.one(&acquire(0)).await;
        let [Reply::Granted { token, .. }] = got[..] else { panic!("{got:?}") };
        assert!(Some(token) > last, "{token:?} after {last:?}");
        last = Some(token);
        run.one(&release(0)).await;
        run.now -= 3_600_000_000;
    }
}

/// The lock is free and one who was passed over stands in line: another takes it, and the first is
/// still in its place, also when it is the one who asks.
///
/// # Panics
/// When that is not so.
pub async fn who_is_passed_over_keeps_its_place<S: Subject>(mut subject: S) {
    let mut kinds = slots(3, Mode::Exclusive);
    kinds[1].via = 2; // where nobody listens
    let mut run = Run::new(&mut subject, kinds, true).await;
    run.one(&acquire(0)).await;
    let join = Move::Acquire { slot: 1, wait: Some(9_000), fresh: false, moved: None };
    let waits = |got: &[Reply]| matches!(got, [Reply::Waiting { ahead: 0, .. }]);
    assert!(waits(&run.one(&join).await));
    run.one(&release(0)).await;
    let got = run.one(&acquire(2)).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 1, .. }]), "{got:?}");
    assert!(waits(&run.one(&join).await));
    run.one(&release(2)).await;
    // Heard of, it is promoted, and its own question confirms it.
    let got = run.one(&join).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 0, .. }]), "{got:?}");
}

/// A lock is revoked twice in one moment: its holder, who listens elsewhere, is told twice, though
/// the second time nothing changes.
///
/// # Panics
/// When that is not so.
pub async fn a_second_revoke_is_told_too<S: Subject>(mut subject: S) {
    let mut kinds = slots(1, Mode::Exclusive);
    kinds[0].via = 1;
    let mut run = Run::new(&mut subject, kinds, true).await;
    run.one(&acquire(0)).await;
    for _ in 0..2 {
        run.one(&Move::Force { lock: 0, token: None, how: Force::Revoke }).await;
    }
    let heard = run.heard().await;
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert_eq!(heard, run.oracle.told);
}
