//! A promotion is a claim that its waiter confirms by asking again.

use distlock_core::LossReason;
use distlock_core::backend::Force;
use distlock_core::state::{Claim, End, Pulse, Reply};

use crate::desk::{Desk, claim, granted, s, waiting};

/// 1 has released; 2 is promoted; 3 waits.
fn promoted() -> Desk {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    let slow = Claim { lock_delay: s(60), min_hold: s(5), ..claim(2, "b") };
    waiting(d.ask(&slow));
    waiting(d.ask(&claim(3, "c")));
    d.release(1);
    assert_eq!(d.turns(), [2]);
    d
}

#[test]
fn a_claim_is_confirmed_by_asking_again_and_then_lasts_a_whole_ttl() {
    let mut d = promoted();
    let token = d.state.holds[0].token;
    assert_eq!(d.pass(s(1) / 2).beat(2), Pulse::Turn);
    let held = d.take(&claim(2, "b"));
    assert_eq!((held.token, held.left), (token, s(10)));
    assert_eq!(d.pass(s(1)).take(&claim(2, "b")).left, s(9), "and from there on it is a replay");
}

#[test]
fn a_claim_not_confirmed_in_time_passes_on_without_a_lock_delay() {
    let mut d = promoted();
    d.pass(s(1)).settle();
    assert_eq!((d.turns(), d.holders()), (vec![3], vec![3]));
}

#[test]
fn a_waiter_that_missed_its_turn_keeps_its_place_until_its_deadline() {
    let mut d = promoted();
    d.pass(s(1)).settle();
    assert_eq!(d.line(), [2], "the wake-up may have been lost: it is only a hint");
    d.take(&claim(3, "c"));
    waiting(d.ask(&claim(4, "d")));
    assert_eq!(waiting(d.ask(&claim(2, "b"))), 0, "heard of again, before those who came later");
    d.release(3);
    assert_eq!(d.turns(), [2]);
    let mut d = promoted();
    d.take(&claim(2, "b"));
    d.release(2);
    d.pass(s(10)).settle();
    assert!(d.line().is_empty(), "and is dropped when that has passed");
}

#[test]
fn a_waiter_that_missed_its_turn_takes_a_free_lock_by_asking() {
    let mut d = promoted();
    d.cancel(3);
    d.pass(s(1)).settle();
    assert!(d.holders().is_empty() && d.line() == [2]);
    assert!(!d.state.is_idle(d.now.lease));
    granted(d.ask(&claim(2, "b")));
}

#[test]
fn a_heartbeat_during_a_claim_counts_as_heard_of() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    d.pass(s(9)).release(1);
    assert_eq!(d.pass(s(1) / 2).beat(2), Pulse::Turn);
    d.withdraw(2, false);
    d.pass(s(2)).settle();
    assert_eq!(d.line(), [2]);
}

#[test]
fn a_state_with_a_lapsed_claim_is_not_idle_while_its_waiter_lives() {
    let mut d = promoted();
    d.cancel(3);
    d.state.tombstones.clear();
    d.pass(s(2));
    assert!(!d.state.is_idle(d.now.lease));
    d.pass(s(8));
    assert!(d.state.is_idle(d.now.lease));
}

#[test]
fn a_claim_cannot_be_renewed_and_can_be_given_back() {
    let mut d = promoted();
    assert_eq!(d.renew(2), Reply::Lost(LossReason::Gone));
    assert_eq!(d.release(2), Reply::Released);
    assert_eq!(d.turns(), [3]);
    assert_eq!(d.ask(&claim(2, "b")), Reply::Tombstoned(End::Released));
}

#[test]
fn nobody_believes_in_a_claim_so_force_ends_it_at_once() {
    let mut d = promoted();
    assert_eq!(d.force(None, Force::Revoke), Reply::Forced);
    assert_eq!((d.turns(), d.holders()), (vec![3], vec![3]));
    assert_eq!(d.ask(&claim(2, "b")), Reply::Tombstoned(End::Cancelled));
}
