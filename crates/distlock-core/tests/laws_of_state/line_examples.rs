//! The line: first come, first served, and what happens to those who fall silent.

use distlock_core::Mode;
use distlock_core::state::{Claim, Pulse, Reply};

use crate::desk::{Desk, busy, claim, mode, ms, s, waiting};

fn held_with_line(line: &[u8]) -> Desk {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    for n in line {
        waiting(d.ask(&claim(*n, &format!("w{n}"))));
    }
    d
}

#[test]
fn first_come_first_served() {
    let mut d = held_with_line(&[2, 3, 4]);
    for n in 1..4 {
        assert_eq!(d.release(n), Reply::Released);
        assert_eq!(d.turns(), [n + 1]);
        d.take(&claim(n + 1, &format!("w{}", n + 1)));
    }
}

#[test]
fn a_newcomer_never_overtakes_the_line() {
    let mut d = held_with_line(&[2]);
    d.release(1);
    busy(d.attempt(&claim(3, "c")));
    assert_eq!(waiting(d.ask(&claim(4, "d"))), 0, "the claimant has left the line");
    d.pass(s(1));
    busy(d.attempt(&claim(5, "e")));
    assert_eq!(d.holders(), [4], "the next in line, not whoever came by");
}

#[test]
fn a_newcomer_waits_behind_a_head_that_is_kept_waiting() {
    let mut d = Desk::default();
    d.take(&mode(1, "a", Mode::Shared));
    waiting(d.ask(&claim(2, "b")));
    assert_eq!(waiting(d.ask(&mode(3, "c", Mode::Shared))), 1);
    assert_eq!(d.holders(), [1]);
}

#[test]
fn the_first_waiter_is_announced_to_the_holder_once() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    assert_eq!(d.effects.contended.len(), 1);
    waiting(d.ask(&claim(3, "c")));
    assert!(d.effects.contended.is_empty());
}

#[test]
fn all_silent_waiters_are_dropped_at_once() {
    let mut d = held_with_line(&[2, 3, 4, 5, 6]);
    d.pass(s(6));
    d.renew(1);
    assert!(matches!(d.beat(6), Pulse::Queued { ahead: 4, .. }));
    d.pass(s(5));
    assert_eq!(d.release(1), Reply::Released);
    assert_eq!((d.turns(), d.line()), (vec![6], vec![]), "five died, the live one is served");
}

#[test]
fn an_expired_waiter_is_not_granted_by_the_step_that_finds_it() {
    let mut d = held_with_line(&[2, 3]);
    d.pass(s(10));
    assert_eq!(d.settle(), Reply::Settled);
    assert!(d.turns().is_empty() && d.line().is_empty() && d.holders().is_empty());
}

#[test]
fn a_heartbeat_keeps_a_place_and_never_makes_one() {
    let mut d = held_with_line(&[2]);
    assert_eq!(d.beat(3), Pulse::Unknown);
    assert_eq!(d.line(), [2]);
    d.pass(s(5));
    d.renew(1);
    d.beat(2);
    d.pass(s(6));
    d.renew(1);
    assert!(matches!(d.beat(2), Pulse::Queued { ahead: 0, .. }));
    d.cancel(2);
    assert_eq!(d.beat(2), Pulse::Unknown, "overtaken by its cancel");
    assert!(d.line().is_empty());
}

#[test]
fn a_deaf_waiter_is_passed_over_and_keeps_its_place() {
    let mut d = held_with_line(&[2, 3]);
    d.release(1);
    d.withdraw(2, false);
    assert_eq!((d.turns(), d.line()), (vec![3], vec![2]));
    d.take(&claim(3, "w3"));
    waiting(d.ask(&claim(4, "w4")));
    assert_eq!(d.line(), [2, 4]);
    assert!(matches!(d.beat(2), Pulse::Queued { ahead: 0, .. }), "heard of, first again");
    d.release(3);
    assert_eq!(d.turns(), [2]);
}

#[test]
fn two_deaf_in_a_row_keep_their_order() {
    let mut d = held_with_line(&[2, 3, 4]);
    d.release(1);
    d.withdraw(2, false);
    d.withdraw(3, false);
    assert_eq!((d.holders(), d.line()), (vec![4], vec![2, 3]));
    d.beat(3);
    d.beat(2);
    d.release(4);
    assert_eq!(d.turns(), [2]);
}

#[test]
fn those_who_came_at_the_same_instant_keep_their_order_too() {
    let mut d = held_with_line(&[2]);
    d.release(1);
    waiting(d.ask(&claim(3, "w3")));
    d.withdraw(2, false);
    d.withdraw(3, false);
    assert_eq!(d.line(), [2, 3], "2 came first, though it had left the line when 3 joined");
}

#[test]
fn a_newcomer_may_pass_a_line_of_the_deaf() {
    let mut d = held_with_line(&[2]);
    d.release(1);
    d.withdraw(2, false);
    d.take(&claim(3, "c"));
    assert_eq!((d.holders(), d.line()), (vec![3], vec![2]));
}

#[test]
fn a_waiter_that_is_gone_for_certain_is_dropped() {
    let mut d = held_with_line(&[2, 3]);
    d.release(1);
    d.withdraw(2, true);
    assert_eq!((d.turns(), d.line()), (vec![3], vec![]));
}

#[test]
fn whoever_leaves_the_line_lets_in_whom_it_kept_waiting() {
    let readers_behind_a_writer = || {
        let mut d = Desk::default();
        d.take(&mode(1, "a", Mode::Shared));
        waiting(d.ask(&claim(2, "b")));
        waiting(d.ask(&mode(3, "c", Mode::Shared)));
        d
    };
    let mut d = readers_behind_a_writer();
    busy(d.attempt(&claim(2, "b")));
    assert_eq!(d.turns(), [3], "left by asking without waiting");
    let mut d = readers_behind_a_writer();
    d.withdraw(2, true);
    assert_eq!(d.turns(), [3], "left by dying");
    let mut d = readers_behind_a_writer();
    d.cancel(2);
    assert_eq!(d.turns(), [3], "left by a cancel");
}

#[test]
fn a_wait_shorter_than_before_does_not_cut_the_place_short() {
    let mut d = held_with_line(&[2]);
    let short = distlock_core::state::Op::Acquire { claim: claim(2, "w2"), wait: Some(ms(1)) };
    waiting(d.step(&short));
    d.pass(s(9)).settle();
    assert_eq!(d.line(), [2]);
}

#[test]
fn a_withdrawn_waiter_whose_time_is_over_has_no_place_to_keep() {
    let mut d = held_with_line(&[2]);
    d.pass(ms(9_500)).release(1);
    d.pass(ms(500)).withdraw(2, false);
    assert!(d.line().is_empty());
}

#[test]
fn a_waiter_is_told_where_it_last_asked_from() {
    let via = |n: u8, via: &str| Claim { via: via.to_owned(), ..claim(n, &format!("w{n}")) };
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&via(2, "old")));
    waiting(d.ask(&via(3, "third")));
    waiting(d.ask(&via(2, "new")));
    d.release(1);
    let told = |d: &Desk| d.effects.turns.iter().map(|(_, via)| via.clone()).collect::<Vec<_>>();
    assert_eq!(told(&d), ["new"]);
    // Nor does one that was promoted and asks from elsewhere lose its address: put back in line, it
    // is told there.
    assert_eq!(d.state.holds[0].claim.via, "new");
}
