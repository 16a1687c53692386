//! Re-entry, readers and permits.

use distlock_core::Mode;
use distlock_core::state::{Claim, Refusal, Reply};

use crate::desk::{Desk, claim, granted, mode, nz, s, waiting};

const SHARED: Mode = Mode::Shared;

fn permit(n: u32) -> Mode {
    Mode::Permit(nz(n))
}

#[test]
fn the_same_owner_enters_again_with_the_same_token() {
    let mut d = Desk::default();
    let outer = d.take(&claim(1, "a"));
    waiting(d.ask(&claim(2, "b")));
    let inner = d.pass(s(1)).take(&claim(3, "a"));
    assert_eq!((inner.token, inner.left), (outer.token, s(10)));
    assert_eq!(d.state.hi, outer.token, "re-entry takes no new token");
    assert_eq!(d.release(1), Reply::Released);
    assert_eq!(d.holders(), [3], "held until the last one ends");
    d.release(3);
    assert_eq!(d.turns(), [2]);
}

#[test]
fn a_waiter_whose_owner_holds_is_let_in_out_of_the_line() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    for (n, owner) in [(2, "b"), (3, "c"), (4, "b")] {
        waiting(d.ask(&claim(n, owner)));
    }
    d.release(1);
    let outer = d.take(&claim(2, "b"));
    assert_eq!(d.turns(), [4], "2 is confirmed, which lets its owner's 4 in before 3");
    assert_eq!(d.take(&claim(4, "b")).token, outer.token);
    assert_eq!((d.holders(), d.line()), (vec![2, 4], vec![3]));
}

#[test]
fn nested_ids_do_not_pile_up_under_a_long_hold() {
    let mut d = Desk::default();
    d.take(&Claim { ttl: s(3600), ..claim(1, "a") });
    for n in 2..=200 {
        d.take(&claim(n, "a"));
        d.release(n);
    }
    assert_eq!(d.holders(), [1]);
    assert_eq!(d.state.tombstones.len(), d.rules.released_cap);
}

#[test]
fn an_owner_does_not_wait_for_itself_in_another_mode() {
    let mut d = Desk::default();
    d.take(&mode(1, "a", SHARED));
    let refused = Reply::Refused(Refusal::ModeDiffers(SHARED));
    assert_eq!(d.ask(&claim(2, "a")), refused);
    assert!(d.line().is_empty());
}

#[test]
fn a_refusal_leaves_nothing_in_line() {
    let mut d = Desk::default();
    d.take(&claim(1, "a"));
    waiting(d.ask(&mode(2, "b", SHARED)));
    waiting(d.ask(&claim(3, "b")));
    waiting(d.ask(&mode(4, "c", SHARED)));
    d.release(1);
    d.take(&mode(2, "b", SHARED));
    assert_eq!(d.ask(&claim(3, "b")), Reply::Refused(Refusal::ModeDiffers(SHARED)));
    assert_eq!((d.turns(), d.line()), (vec![4], vec![]), "and whom it kept waiting gets in");
}

#[test]
fn readers_share_and_a_waiting_writer_keeps_later_readers_out() {
    let mut d = Desk::default();
    let one = d.take(&mode(1, "a", SHARED));
    let two = d.take(&mode(2, "b", SHARED));
    assert!(two.token > one.token, "tokens of readers are unique and rising");
    waiting(d.ask(&claim(3, "c")));
    assert_eq!(waiting(d.ask(&mode(4, "d", SHARED))), 1);
    assert_eq!(waiting(d.ask(&mode(5, "e", SHARED))), 2);
    d.release(1);
    assert!(d.turns().is_empty());
    d.release(2);
    assert_eq!(d.turns(), [3]);
    d.take(&claim(3, "c"));
    d.release(3);
    assert_eq!(d.turns(), [4, 5], "all readers up to the next writer");
}

#[test]
fn a_dead_reader_lapses_though_another_renews() {
    let mut d = Desk::default();
    d.take(&mode(1, "a", SHARED));
    d.take(&mode(2, "b", SHARED));
    d.pass(s(6)).renew(2);
    waiting(d.ask(&claim(3, "c")));
    d.pass(s(4)).settle();
    assert_eq!(d.holders(), [2]);
    assert_eq!(d.release(2), Reply::Released);
    assert_eq!(d.turns(), [3]);
}

#[test]
fn n_permits_and_no_more() {
    let mut d = Desk::default();
    let one = d.take(&mode(1, "a", permit(2)));
    let two = d.take(&mode(2, "b", permit(2)));
    assert!(two.token > one.token);
    assert_eq!((one.floor, two.floor), (one.token, one.token));
    waiting(d.ask(&mode(3, "c", permit(2))));
    assert_eq!(granted(d.ask(&mode(4, "a", permit(2)))).token, one.token, "re-entry, no permit");
    d.release(4);
    assert!(d.turns().is_empty());
    d.release(1);
    assert_eq!(d.turns(), [3]);
    let three = d.take(&mode(3, "c", permit(2)));
    assert_eq!(three.floor, two.token, "the floor is the lowest live token");
}

#[test]
fn an_expired_permit_that_is_released_does_not_make_another() {
    let mut d = Desk::default();
    d.take(&mode(1, "a", permit(1)));
    d.pass(s(10)).take(&mode(2, "b", permit(1)));
    d.release(1);
    waiting(d.ask(&mode(3, "c", permit(1))));
    assert_eq!(d.holders(), [2]);
}

#[test]
fn the_first_permit_fixes_their_number() {
    let mut d = Desk::default();
    d.take(&mode(1, "a", permit(2)));
    let differs = Reply::Refused(Refusal::PermitsDiffer(nz(2)));
    assert_eq!(d.ask(&mode(2, "b", permit(3))), differs);
    waiting(d.ask(&claim(3, "c")));
    waiting(d.ask(&mode(4, "d", SHARED)));
    d.release(1);
    d.take(&claim(3, "c"));
    waiting(d.ask(&mode(5, "e", permit(3))));
    let differs = Reply::Refused(Refusal::PermitsDiffer(nz(3)));
    assert_eq!(d.ask(&mode(6, "f", permit(2))), differs, "in use again, with another number");
}
