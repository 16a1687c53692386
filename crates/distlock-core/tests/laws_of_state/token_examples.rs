//! Tokens follow the wall, and never go back.

use distlock_core::Token;
use distlock_core::state::{Claim, LockState, Micros};

use crate::desk::{Desk, claim, ms, nz, s};

#[test]
fn a_token_is_the_wall_or_one_more_than_the_last() {
    let mut d = Desk::default();
    let first = d.take(&claim(1, "a"));
    assert_eq!(first.token, d.now.wall.0);
    d.release(1);
    assert_eq!(d.take(&claim(2, "b")).token, first.token + 1, "same microsecond");
    d.release(2);
    d.pass(s(1));
    assert_eq!(d.take(&claim(3, "c")).token, d.now.wall.0);
}

#[test]
fn a_wall_that_steps_back_never_lowers_a_token() {
    let mut d = Desk::default();
    let first = d.take(&claim(1, "a"));
    d.release(1);
    d.now.wall = Micros(5);
    assert_eq!(d.take(&claim(2, "b")).token, first.token + 1);
    d.pass(s(10)).settle();
    assert_eq!(d.take(&claim(3, "c")).token, first.token + 2, "nor after an expiry");
}

#[test]
fn tokens_survive_a_lock_that_nobody_wants() {
    let mut d = Desk::default();
    let first = d.take(&claim(1, "a"));
    d.pass(s(3600)).settle();
    assert!(d.state.is_idle(d.now.lease));
    assert_eq!(d.state, LockState { hi: first.token, ..LockState::default() });
    d.now.wall = Micros(0);
    assert_eq!(d.take(&claim(2, "b")).token, first.token + 1);
}

#[test]
fn a_block_is_cut_so_that_tokens_do_not_run_ahead_of_the_wall() {
    let mut d = Desk::default();
    let big = |n| Claim { block: nz(400_000), ..claim(n, "a") };
    let mut last = 0;
    for n in 1..=4 {
        let held = d.take(&big(n));
        assert!(held.token > last);
        last = held.token + u64::from(held.block) - 1;
        assert_eq!(d.state.hi, last);
        assert!(last <= d.now.wall.plus(s(1)).0 + 1, "at most a second ahead");
        d.release(n);
    }
    let cut = d.take(&big(5));
    assert_eq!(cut.block, 1, "never none");
    d.release(5);
    d.pass(ms(500));
    assert!((1..=500_000).contains(&d.take(&big(6)).block), "what half a second gives back");
}

#[test]
fn re_entry_shares_the_block() {
    let mut d = Desk::default();
    let outer = d.take(&Claim { block: nz(8), ..claim(1, "a") });
    let inner = d.take(&Claim { block: nz(100), ..claim(2, "a") });
    assert_eq!((inner.token, inner.block), (outer.token, 8));
    assert_eq!(d.state.hi, outer.token + 7);
    d.release(1);
    d.release(2);
    assert_eq!(d.take(&claim(3, "b")).token, outer.token + 8);
}

#[test]
fn tokens_start_above_a_floor_and_stay_in_their_range() {
    let mut d = Desk { state: LockState::above(1 << 52), ..Desk::default() };
    assert_eq!(d.take(&claim(1, "a")).token, (1 << 52) + 1);
    let mut d = Desk { state: LockState::above(u64::MAX), ..Desk::default() };
    assert_eq!(d.take(&claim(1, "a")).token, Token::MAX.get());
}
