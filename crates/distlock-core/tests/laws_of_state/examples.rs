//! Holding, renewing, giving back, undoing and taking away: each rule by its shortest example.

use distlock_core::LossReason;
use distlock_core::backend::Force;
use distlock_core::state::{Claim, End, LockState, Reply};

use crate::desk::{Desk, busy, claim, granted, req, s, waiting};

#[test]
fn a_replay_answers_the_same_token_and_what_is_left() {
    let mut d = Desk::default();
    let first = d.take(&claim(1, "a"));
    assert_eq!(first.left, s(10));
    let again = d.pass(s(3)).take(&claim(1, "a"));
    assert_eq!((again.token, again.left), (first.token, s(7)));
    assert_eq!(d.holders(), [1], "a replay is not a second hold");
}

#[test]
fn a_poll_in_line_is_the_same_place_in_line() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    assert_eq!(waiting(d.ask(&claim(2, "b"))), 0);
    assert_eq!(waiting(d.ask(&claim(3, "c"))), 1);
    assert_eq!(waiting(d.ask(&claim(2, "b"))), 0);
    assert_eq!(d.line(), [2, 3]);
}

#[test]
fn an_attempt_leaves_nothing_in_line() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    assert_eq!(busy(d.attempt(&claim(2, "b"))), 0);
    waiting(d.ask(&claim(3, "c")));
    assert_eq!(busy(d.attempt(&claim(2, "b"))), 1);
    assert_eq!(d.line(), [3]);
    assert_eq!(busy(d.attempt(&claim(3, "c"))), 0, "asking without waiting leaves the line");
    assert!(d.line().is_empty());
}

#[test]
fn each_hold_has_an_expiry_of_its_own() {
    let mut d = Desk::default();
    let short = Claim { ttl: s(2), ..claim(2, "a") };
    d.take(&claim(1, "a"));
    d.take(&short);
    d.pass(s(2)).settle();
    assert_eq!(d.holders(), [1]);
    assert!(matches!(d.renew(1), Reply::Renewed { .. }));
    assert_eq!(d.renew(2), Reply::Lost(LossReason::Gone), "the outer renewal keeps only itself");
    d.pass(s(9));
    waiting(d.ask(&claim(3, "b")));
    d.pass(s(1)).settle();
    assert_eq!(d.turns(), [3], "free when the last one ended");
}

#[test]
fn renew_extends_and_never_shortens() {
    let mut d = Desk::default();
    d.take(&Claim { ttl: s(60), ..claim(1, "a") });
    assert_eq!(d.renew(1), Reply::Renewed { remaining: s(60), waiters: 0 });
    waiting(d.pass(s(55)).ask(&claim(2, "b")));
    assert_eq!(d.renew(1), Reply::Renewed { remaining: s(10), waiters: 1 });
}

#[test]
fn renew_never_resurrects_even_what_nobody_took() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    d.pass(s(10));
    assert_eq!(d.renew(1), Reply::Lost(LossReason::Gone));
    assert!(d.holders().is_empty());
    assert_eq!(d.renew(7), Reply::Lost(LossReason::Gone), "nor does it create");
}

#[test]
fn release_is_idempotent_and_a_released_request_never_comes_back() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    assert_eq!(d.release(1), Reply::Released);
    assert_eq!(d.release(1), Reply::Released);
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Released));
    d.take(&claim(2, "b"));
    assert_eq!(d.release(1), Reply::Released, "the replay does not touch the next holder");
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Released));
    assert_eq!((d.holders(), d.line()), (vec![2], vec![]));
}

#[test]
fn a_release_ends_only_its_own_hold() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    d.pass(s(10)).take(&claim(2, "b"));
    assert_eq!(d.release(1), Reply::Lost(LossReason::Gone));
    assert_eq!(d.release(1), Reply::Lost(LossReason::Gone), "and says the same when repeated");
    assert_eq!(d.holders(), [2]);
}

#[test]
fn a_late_release_keeps_its_request_from_coming_back() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    d.pass(s(10));
    assert_eq!(d.release(1), Reply::Lost(LossReason::Gone));
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Cancelled), "a late duplicate");
    assert!(d.holders().is_empty());
}

#[test]
fn a_release_out_of_the_line_lets_the_next_one_in() {
    let mut d = Desk::default();
    d.take(&crate::desk::mode(1, "a", distlock_core::Mode::Shared));
    waiting(d.ask(&claim(2, "b")));
    waiting(d.ask(&crate::desk::mode(3, "c", distlock_core::Mode::Shared)));
    assert_eq!(d.release(2), Reply::Lost(LossReason::Gone));
    assert_eq!((d.turns(), d.line()), (vec![3], vec![]));
}

#[test]
fn cancel_undoes_a_hold_a_place_and_what_has_not_come_yet() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    waiting(d.ask(&claim(3, "c")));
    assert_eq!(d.cancel(2), Reply::Cancelled);
    assert_eq!(d.line(), [3]);
    assert_eq!(d.cancel(1), Reply::Cancelled);
    assert_eq!(d.turns(), [3]);
    assert_eq!(d.cancel(4), Reply::Cancelled, "before its acquire arrives");
    for (n, owner) in [(1, "a"), (2, "b"), (4, "d")] {
        assert_eq!(d.ask(&claim(n, owner)), Reply::Tombstoned(End::Cancelled));
        assert_eq!(d.attempt(&claim(n, owner)), Reply::Tombstoned(End::Cancelled));
    }
    assert_eq!((d.holders(), d.line()), (vec![3], vec![]));
}

#[test]
fn a_cancelled_request_stays_cancelled_also_after_a_release() {
    let mut d = Desk::default();
    d.rules.released_cap = 2;
    d.take(&claim(1, "a"));
    d.release(1);
    d.cancel(1);
    d.cancel(2);
    assert_eq!(d.release(2), Reply::Lost(LossReason::Gone));
    for n in 10..20 {
        d.take(&claim(n, "b"));
        d.release(n);
    }
    for n in [1, 2] {
        assert_eq!(
            d.ask(&claim(n, "a")),
            Reply::Tombstoned(End::Cancelled),
            "forgotten as released"
        );
    }
}

#[test]
fn memory_of_spent_requests_ends_and_is_bounded() {
    let mut d = Desk::default();
    d.cancel(1);
    d.pass(d.rules.tombstone);
    d.take(&claim(1, "a"));
    d.cancel(1);
    (d.rules.cancelled_cap, d.rules.released_cap) = (3, 2);
    for n in 10..20 {
        d.cancel(n);
        d.take(&claim(n + 10, "b"));
        d.release(n + 10);
    }
    let count = |end| d.state.tombstones.iter().filter(|s| s.end == end).count();
    assert_eq!((count(End::Cancelled), count(End::Released)), (3, 2));
    assert!(d.state.tombstones.iter().any(|s| s.req == req(19)), "the youngest are kept");
    assert!(!d.state.is_idle(d.now.lease));
    d.pass(d.rules.tombstone);
    assert!(d.state.is_idle(d.now.lease));
}

#[test]
fn revoke_tells_the_holder_and_grants_nobody_before_the_lease_ends() {
    let mut d = Desk::default();
    let held = d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    assert_eq!(d.force(Some(held.token + 1), Force::Revoke), Reply::NoMatch);
    assert_eq!(d.force(Some(held.token), Force::Revoke), Reply::Forced);
    assert_eq!(d.effects.revoked.len(), 1);
    assert_eq!(d.renew(1), Reply::Lost(LossReason::Revoked));
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Cancelled));
    waiting(d.ask(&claim(3, "a")));
    waiting(d.pass(s(9)).ask(&claim(2, "b")));
    d.pass(s(1)).settle();
    assert_eq!(d.turns(), [2]);
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Cancelled), "taken away for good");
}

#[test]
fn a_revoked_holder_that_gives_back_frees_at_once_and_hears_it_was_lost() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    d.force(None, Force::Revoke);
    assert_eq!(d.release(1), Reply::Lost(LossReason::Revoked));
    assert_eq!(d.turns(), [2]);
    assert_eq!(
        d.release(1),
        Reply::Lost(LossReason::Gone),
        "a replay does not turn it into released"
    );
}

#[test]
fn force_now_frees_at_once() {
    let mut d = Desk::default();
    assert_eq!(d.force(None, Force::Now), Reply::NoMatch);
    let held = d.take(&Claim { lock_delay: s(60), ..claim(1, "a") });
    waiting(d.ask(&claim(2, "b")));
    assert_eq!(d.force(Some(held.token), Force::Now), Reply::Forced);
    assert_eq!(d.turns(), [2]);
    let next = d.take(&claim(2, "b"));
    assert!(next.token > held.token);
    assert_eq!(d.renew(1), Reply::Lost(LossReason::Gone));
    assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Cancelled));
}

#[test]
fn a_block_is_forced_by_any_of_its_tokens() {
    let mut d = Desk::default();
    let held = d.take(&Claim { block: crate::desk::nz(5), ..claim(1, "a") });
    assert_eq!(d.force(Some(held.token + 5), Force::Revoke), Reply::NoMatch);
    assert_eq!(d.force(Some(held.token + 4), Force::Revoke), Reply::Forced);
}

#[test]
fn min_hold_lingers_after_a_release() {
    let mut d = Desk::default();
    let cron = |n, owner| Claim { min_hold: s(50), ..claim(n, owner) };
    d.take(&cron(1, "a"));
    assert_eq!(d.pass(s(2)).release(1), Reply::Released);
    assert_eq!(d.release(1), Reply::Released);
    assert_eq!(d.renew(1), Reply::Lost(LossReason::Gone));
    assert_eq!(d.ask(&cron(1, "a")), Reply::Tombstoned(End::Released));
    busy(d.attempt(&cron(2, "a")));
    busy(d.pass(s(47)).attempt(&cron(3, "b")));
    granted(d.pass(s(1)).attempt(&cron(4, "b")));
}

#[test]
fn a_lingering_request_stays_released_after_its_min_hold() {
    let mut d = Desk::default();
    d.rules.tombstone = s(60);
    d.take(&Claim { min_hold: s(100), ..claim(1, "a") });
    d.release(1);
    for wait in [101, 58] {
        d.pass(s(wait));
        assert_eq!(d.release(1), Reply::Released);
        assert_eq!(d.ask(&claim(1, "a")), Reply::Tombstoned(End::Released));
    }
}

#[test]
fn min_hold_does_not_hold_what_is_old_enough_or_was_cancelled() {
    let mut d = Desk::default();
    let cron = |n| Claim { min_hold: s(5), ..claim(n, "a") };
    d.take(&cron(1));
    d.pass(s(5)).release(1);
    assert!(d.holders().is_empty());
    d.take(&cron(2));
    d.cancel(2);
    assert!(d.holders().is_empty(), "nobody worked under it");
}

#[test]
fn lock_delay_follows_an_expiry_only() {
    let mut d = Desk::default();
    let slow = |n, owner| Claim { lock_delay: s(5), ..claim(n, owner) };
    d.take(&slow(1, "a"));
    d.release(1);
    d.take(&slow(2, "b"));
    d.pass(s(12));
    waiting(d.ask(&claim(3, "c")));
    d.pass(s(2)).settle();
    assert!(d.turns().is_empty());
    d.pass(s(1)).settle();
    assert_eq!(d.turns(), [3], "five seconds after the expiry, not after it was noticed");
}

#[test]
fn a_late_release_does_not_cut_the_lock_delay_short() {
    let mut d = Desk::default();
    d.take(&Claim { lock_delay: s(5), ..claim(1, "a") });
    d.pass(s(11));
    assert_eq!(d.release(1), Reply::Lost(LossReason::Gone));
    d.cancel(1);
    busy(d.attempt(&claim(2, "b")));
    busy(d.pass(s(3)).attempt(&claim(3, "b")));
    granted(d.pass(s(1)).attempt(&claim(4, "b")));
}

#[test]
fn a_restart_of_the_clock_ends_leases_and_keeps_the_token() {
    let mut d = Desk::default();
    let held = d.take(&claim(1, "a"));
    d.state = LockState::above(d.state.hi);
    (d.now.lease, d.now.wall) = (Default::default(), Default::default());
    assert_eq!(d.take(&claim(2, "b")).token, held.token + 1);
}
