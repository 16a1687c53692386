//! The rules of one node, by example.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Released};
use distlock_core::quorum::{
    Bid, Commit, Committed, Generation, Heal, NodeDue, NodeOp, NodeReply, NodeRules, NodeState,
    Position, Round, Vote,
};
use distlock_core::state::{Micros, Now};
use distlock_core::{QueueStatus, Token};

use crate::scene::{TTL, ask};

const SECOND: u64 = 1_000_000;

/// One node and its clock.
struct Desk {
    state: NodeState,
    rules: NodeRules,
    at: u64,
}

impl Desk {
    fn new() -> Self {
        Self { state: NodeState::default(), rules: NodeRules::default(), at: 1000 * SECOND }
    }

    fn step(&mut self, op: NodeOp) -> NodeReply {
        let now = Now { lease: Micros(self.at), wall: Micros(self.at) };
        self.state.step(&op, now, &self.rules).reply
    }

    fn bid(&mut self, ask: &Ask, round: u64, token: u64, place: Option<Position>) -> Vote {
        let (ask, token) = (Arc::new(ask.clone()), Token::new(token).expect("a token"));
        let bid = Bid { ask, round: Round(round), token, place };
        match self.step(NodeOp::Propose(bid, String::new())) {
            NodeReply::Vote(vote) => vote,
            other => panic!("{other:?}"),
        }
    }

    /// A bid that is surely granted: whether its token was accepted, the base, the generation.
    fn granted(&mut self, ask: &Ask, round: u64, token: u64) -> (bool, u64, Generation) {
        match self.bid(ask, round, token, None) {
            Vote::Granted { accepted, base, generation, .. } => {
                (accepted, base.expect("it counts"), generation)
            }
            other => panic!("{other:?}"),
        }
    }

    fn place(&self, ticket: u64, backed: bool) -> Option<Position> {
        Some(Position { ticket, wait: Duration::from_secs(3), backed })
    }

    fn heal(&mut self, ask: &Ask, token: u64) -> Vote {
        let (ask, token) = (Arc::new(ask.clone()), Token::new(token).expect("a token"));
        match self.step(NodeOp::Heal(Heal { ask, round: Round(1), token }, String::new())) {
            NodeReply::Vote(vote) => vote,
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, ask: &Ask, generation: Option<Generation>) -> bool {
        let due = NodeDue { key: ask.key(), generation, ttl: TTL };
        matches!(self.step(NodeOp::Renew(due)), NodeReply::Kept { .. })
    }

    fn commit(&mut self, ask: &Ask, generation: Generation, token: u64) -> Committed {
        let token = Token::new(token).expect("a token");
        let commit = Commit { key: ask.key(), round: Round(1), generation, token };
        match self.step(NodeOp::Commit(commit)) {
            NodeReply::Committed(done) => done,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_same_round_is_the_same_grant_and_a_later_one_ends_it() {
    let (mut desk, one) = (Desk::new(), ask());
    let at = desk.at;
    let first = desk.granted(&one, 1, at);
    assert_eq!(first, (true, at, Generation(at)));
    desk.at += SECOND;
    let Vote::Granted { generation, left, .. } = desk.bid(&one, 1, at + 5, None) else {
        panic!("a replay is granted")
    };
    assert_eq!((generation, left), (first.2, TTL - Duration::from_secs(1)));
    let second = desk.granted(&one, 2, at + SECOND);
    assert!(second.2 > first.2);
    assert_eq!(desk.bid(&one, 1, at, None), Vote::Tombstoned, "a late arrival of the first");
    assert_eq!(desk.commit(&one, first.2, at), Committed::Lost);
    assert!(!desk.renew(&one, Some(first.2)) && desk.renew(&one, Some(second.2)));
}

#[test]
fn a_cancelled_round_is_spent_and_the_next_one_is_not() {
    let (mut desk, one) = (Desk::new(), ask());
    desk.step(NodeOp::Cancel(one.req, Round(1)));
    assert_eq!(desk.bid(&one, 1, 1, None), Vote::Tombstoned, "it overtook the bid");
    desk.granted(&one, 2, 1);
    desk.step(NodeOp::Cancel(one.req, Round(1)));
    assert!(desk.state.hold.is_some(), "a cancel of an earlier round");
    assert_eq!(desk.step(NodeOp::Release(one.req)), NodeReply::Released(Released::Released));
    assert_eq!(desk.bid(&one, 3, 1, None), Vote::Tombstoned, "a released request never comes back");
    assert_eq!(desk.step(NodeOp::Release(one.req)), NodeReply::Released(Released::Released));
    let other = ask();
    assert_eq!(desk.step(NodeOp::Release(other.req)), NodeReply::Released(Released::WasLost));
    assert_eq!(desk.bid(&other, 1, 1, None), Vote::Tombstoned);
}

#[test]
fn a_token_is_accepted_above_all_others_and_near_the_clock() {
    let mut desk = Desk::new();
    let at = desk.at;
    for (token, accepted) in [
        (at - 2 * SECOND, false),
        (at + 2 * SECOND, false),
        (at - SECOND / 2, true),
        (at - SECOND / 2, false),
        (at + SECOND / 2, true),
        (at + SECOND / 4, false),
    ] {
        let one = ask();
        let known = desk.state.hi;
        let (yes, base, _) = desk.granted(&one, 1, token);
        assert_eq!((yes, base), (accepted, known.max(at)), "{token}");
        assert_eq!(desk.state.hi, if accepted { token } else { known });
        desk.step(NodeOp::Cancel(one.req, Round::ALL));
    }
}

#[test]
fn a_write_back_needs_the_very_ownership() {
    let (mut desk, one, two) = (Desk::new(), ask(), ask());
    let generation = desk.granted(&one, 1, 1).2;
    assert_eq!(desk.commit(&one, Generation(generation.0 + 1), 7), Committed::Lost);
    assert_eq!(desk.commit(&two, generation, 7), Committed::Lost);
    assert_eq!(desk.commit(&one, generation, 7), Committed::Yes);
    assert_eq!(desk.state.hi, 7);
    desk.at += 10 * SECOND;
    assert_eq!(desk.commit(&one, generation, 9), Committed::Lost, "its lease is over");
    assert_eq!(desk.state.hi, 7, "and nothing was stored");
}

#[test]
fn the_holder_is_not_ahead_of_those_who_wait_for_it() {
    let (mut desk, first, second) = (Desk::new(), ask(), ask());
    let at = desk.at;
    // It had a place to wait at, in case that it is not granted elsewhere.
    let place = desk.place(at, false);
    assert!(matches!(desk.bid(&ask(), 1, 1, place), Vote::Granted { .. }));
    for (who, ticket, expected) in [(&first, at + 1, 0), (&second, at + 2, 1)] {
        let place = desk.place(ticket, false);
        let Vote::Busy { status, queued: true } = desk.bid(who, 1, 1, place) else {
            panic!("it is held")
        };
        assert_eq!(status.ahead, Some(expected));
    }
}

#[test]
fn nobody_passes_a_lower_ticket_that_is_backed() {
    let (mut desk, held) = (Desk::new(), ask());
    let (early, late) = (ask(), ask());
    let at = desk.at;
    desk.granted(&held, 1, 1);
    for (who, ticket) in [(&late, at + 2), (&early, at + 1)] {
        let place = desk.place(ticket, false);
        assert!(matches!(desk.bid(who, 1, 1, place), Vote::Busy { queued: true, .. }));
    }
    let place = desk.place(at + 1, true);
    let Vote::Busy { status: QueueStatus { ahead, .. }, .. } = desk.bid(&early, 1, 1, place) else {
        panic!("it is held")
    };
    assert_eq!(ahead, Some(0), "ordered by ticket, not by arrival");
    desk.step(NodeOp::Release(held.req));
    let place = desk.place(at + 2, true);
    assert!(matches!(desk.bid(&late, 1, 1, place), Vote::Busy { .. }));
    assert!(matches!(desk.bid(&ask(), 1, 1, None), Vote::Busy { .. }), "no barging");
    // A client that reaches no majority stops nobody.
    let place = desk.place(at + 1, false);
    assert!(matches!(desk.bid(&early, 1, 1, place), Vote::Granted { .. }));
    desk.step(NodeOp::Cancel(early.req, Round(1)));
    let place = desk.place(at + 2, true);
    assert!(matches!(desk.bid(&late, 1, 1, place), Vote::Granted { .. }));
}

#[test]
fn a_ticket_far_from_the_clock_gets_no_place() {
    let (mut desk, held) = (Desk::new(), ask());
    desk.granted(&held, 1, 1);
    for ticket in [desk.at - 2 * SECOND, desk.at + 2 * SECOND] {
        let place = desk.place(ticket, true);
        assert!(matches!(desk.bid(&ask(), 1, 1, place), Vote::Busy { queued: false, .. }));
    }
    assert!(desk.state.line.is_empty());
    // One that waits long keeps its old ticket.
    let (waiter, ticket) = (ask(), desk.at);
    for _ in 0..4 {
        let place = desk.place(ticket, true);
        assert!(matches!(desk.bid(&waiter, 1, 1, place), Vote::Busy { queued: true, .. }));
        desk.at += 2 * SECOND;
    }
    desk.at += 3 * SECOND;
    desk.bid(&ask(), 1, 1, None);
    assert!(desk.state.line.is_empty(), "dropped when not heard of");
}

#[test]
fn a_healed_ownership_counts_for_a_ticket_only_when_its_holder_counted_it() {
    let (mut desk, one) = (Desk::new(), ask());
    let Vote::Granted { generation, .. } = desk.heal(&one, 5) else { panic!("it is free") };
    assert_eq!(desk.state.hi, 5);
    assert!(!desk.renew(&one, None), "a heal that came too late would revive it");
    assert!(desk.renew(&one, Some(generation)));
    assert!(desk.renew(&one, None));
    let other = ask();
    assert!(matches!(desk.heal(&other, 6), Vote::Busy { .. }));
    desk.step(NodeOp::Cancel(one.req, Round::ALL));
    assert_eq!(desk.heal(&one, 5), Vote::Tombstoned);
}

#[test]
fn a_node_that_may_have_forgotten_leases_grants_and_heals_nothing() {
    let (mut desk, one) = (Desk::new(), ask());
    desk.rules.opens = Micros(desk.at + 4 * SECOND);
    assert!(matches!(desk.bid(&one, 1, 1, None), Vote::NotYet { left, .. } if left.as_secs() == 4));
    assert!(matches!(desk.heal(&one, 5), Vote::NotYet { .. }));
    assert_eq!(desk.step(NodeOp::Release(one.req)), NodeReply::Released(Released::WasLost));
    desk.at += 4 * SECOND;
    desk.granted(&ask(), 1, 1);
}

#[test]
fn a_release_before_min_hold_lingers() {
    let (mut desk, mut one) = (Desk::new(), ask());
    one.min_hold = Duration::from_secs(5);
    desk.granted(&one, 1, 1);
    assert_eq!(desk.step(NodeOp::Release(one.req)), NodeReply::Released(Released::Released));
    desk.step(NodeOp::Cancel(one.req, Round::ALL));
    assert!(matches!(desk.bid(&ask(), 1, 1, None), Vote::Busy { .. }));
    assert!(!desk.renew(&one, None));
    desk.at += 5 * SECOND;
    desk.granted(&ask(), 1, 1);
}
