//! Cases that chance meets too rarely.

use distlock_core::Mode;
use distlock_core::backend::Force;
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

/// Waits in line, or confirms a turn.
fn join(slot: usize) -> Move {
    Move::Acquire { slot, wait: Some(9_000), fresh: false, moved: None }
}

/// All listen on one channel, and the first so many of them ask, a millisecond apart.
async fn line_up<S: Subject>(subject: &mut S, mut kinds: Vec<Slot>, first: usize) -> Run<'_, S> {
    for kind in &mut kinds {
        kind.via = 0;
    }
    let mut run = Run::new(subject, kinds, true).await;
    for slot in 0..first {
        run.now += 1_000;
        run.one(&join(slot)).await;
    }
    run
}

/// One after the other is served, each by a release, a turn and a confirmation; what is repeated
/// changes nothing, and who has had its turn does not get another.
///
/// # Panics
/// When that is not so.
pub async fn a_crowd_is_served_in_turn<S: Subject>(mut subject: S) {
    let mut kinds = slots(4, Mode::Exclusive);
    for (slot, kind) in kinds.iter_mut().enumerate() {
        kind.via = slot % 2;
    }
    let mut run = Run::new(&mut subject, kinds, true).await;
    run.one(&join(0)).await;
    for slot in 1..4 {
        run.now += 1_000;
        let got = run.one(&join(slot)).await;
        let before = slot as u32 - 1;
        assert!(matches!(got[..], [Reply::Waiting { ahead, .. }] if ahead == before), "{got:?}");
    }
    for slot in 1..4 {
        run.now += 1_000;
        run.one(&release(slot - 1)).await;
        run.now += 1_000;
        let got = run.one(&join(slot)).await;
        let behind = 3 - slot as u32;
        assert!(
            matches!(got[..], [Reply::Granted { waiters, .. }] if waiters == behind),
            "{got:?}"
        );
        run.now += 1_000;
        run.one(&join(slot)).await;
        let got = run.one(&join(slot - 1)).await;
        assert!(matches!(got[..], [Reply::Tombstoned(_)]), "{got:?}");
    }
    run.one(&release(3)).await;
    let heard = run.heard().await;
    run.oracle.told.sort_unstable();
    assert_eq!(heard, run.oracle.told);
    assert_eq!(heard.iter().filter(|(kind, ..)| *kind == b't').count(), 3, "{heard:?}");
}

/// Two of one owner wait: when the turn of the first is confirmed, the other is let in with it,
/// and a third that asks later, too.
///
/// # Panics
/// When that is not so.
pub async fn who_confirms_lets_its_owners_others_in<S: Subject>(mut subject: S) {
    let mut kinds = slots(5, Mode::Exclusive);
    for slot in [1, 3, 4] {
        (kinds[slot].owner, kinds[slot].via) = (1, 0);
    }
    let mut run = Run::new(&mut subject, kinds, true).await;
    for slot in 0..4 {
        run.now += 1_000;
        run.one(&join(slot)).await;
    }
    run.one(&release(0)).await;
    let mut tokens = Vec::new();
    for slot in [1, 3, 4] {
        run.now += 1_000;
        let got = run.one(&join(slot)).await;
        let [Reply::Granted { token, waiters: 1, .. }] = got[..] else { panic!("{got:?}") };
        tokens.push(token);
    }
    assert!(tokens.iter().all(|t| *t == tokens[0]), "{tokens:?}");
}

/// What a release, a turn or a place in line must not pass over: a hold that may not end yet, those
/// who share, a turn that was not taken up in time, somebody who was cancelled.
///
/// # Panics
/// When that is not so.
pub async fn a_crowd_with_exceptions<S: Subject>(mut subject: S) {
    let mut kinds = slots(6, Mode::Exclusive);
    kinds[0].min_hold = 5_000;
    (kinds[2].mode, kinds[3].mode) = (Mode::Shared, Mode::Shared);
    let mut run = line_up(&mut subject, kinds, 6).await;
    run.one(&release(0)).await;
    let waits = |got: &[Reply]| matches!(got, [Reply::Waiting { ahead: 0, .. }]);
    assert!(waits(&run.one(&join(1)).await), "it is held until its time");
    run.now += 5_000_000;
    // Its turn is over by the time it asks, and it is heard of: so it is its turn again.
    run.one(&Move::Settle { lock: 0 }).await;
    run.now += 1_500_000;
    let got = run.one(&join(1)).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 4, .. }]), "{got:?}");
    run.one(&release(1)).await;
    for slot in [2, 3] {
        let got = run.one(&join(slot)).await;
        assert!(matches!(got[..], [Reply::Granted { .. }]), "{got:?}");
    }
    run.one(&Move::Cancel { slot: 4, back: 0 }).await;
    for slot in [2, 3] {
        run.now += 1_000;
        run.one(&release(slot)).await;
    }
    assert!(matches!(run.one(&join(4)).await[..], [Reply::Tombstoned(_)]), "cancelled");
    let got = run.one(&join(5)).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 0, .. }]), "{got:?}");
}

/// A turn whose confirmation needs more than that: its holder must hold for a least time, or somebody in
/// line has not been heard of and is to be dropped first.
///
/// # Panics
/// When that is not so.
pub async fn a_turn_with_more_to_it<S: Subject>(mut subject: S) {
    let mut kinds = slots(4, Mode::Exclusive);
    kinds[1].min_hold = 5_000;
    let mut run = line_up(&mut subject, kinds, 3).await;
    run.now += 1_000;
    run.one(&Move::Acquire { slot: 3, wait: Some(100), fresh: false, moved: None }).await;
    run.one(&release(0)).await;
    run.now += 1_000;
    let got = run.one(&join(1)).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 2, .. }]), "{got:?}");
    run.now += 1_000;
    run.one(&release(1)).await;
    let got = run.one(&join(2)).await;
    assert!(matches!(got[..], [Reply::Waiting { .. }]), "it is held until its time: {got:?}");
    run.now += 5_000_000;
    run.one(&Move::Acquire { slot: 3, wait: Some(100), fresh: false, moved: None }).await;
    run.now += 200_000;
    // Its turn, and the last in line was silent for too long.
    let got = run.one(&join(2)).await;
    assert!(matches!(got[..], [Reply::Granted { waiters: 0, .. }]), "{got:?}");
}

/// A reader has its turn while a lock-delay keeps another from joining it: who confirms after that lets
/// the other in.
///
/// # Panics
/// When that is not so.
pub async fn a_reader_lets_others_in<S: Subject>(mut subject: S) {
    let mut kinds = slots(4, Mode::Shared);
    kinds[0].mode = Mode::Exclusive;
    (kinds[1].ttl, kinds[1].lock_delay) = (100, 100);
    let mut run = line_up(&mut subject, kinds, 3).await;
    run.one(&release(0)).await;
    run.one(&join(1)).await;
    run.now += 150_000;
    let got = run.one(&join(3)).await;
    assert!(matches!(got[..], [Reply::Waiting { .. }]), "{got:?}");
    run.now += 150_000;
    for slot in [2, 3] {
        let got = run.one(&join(slot)).await;
        assert!(matches!(got[..], [Reply::Granted { waiters: 0, .. }]), "{got:?}");
    }
}
