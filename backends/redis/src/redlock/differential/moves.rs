//! Generated moves.

use distlock_core::Force;
use proptest::collection::vec;
use proptest::prelude::*;

pub(super) const LOCKS: [&str; 2] = ["a", "b {x}"];
pub(super) const SLOTS: usize = 6;
/// Two that are listened to, one that is not, and none.
pub(super) const VIAS: [&str; 4] = ["via-1", "via-2", "deaf", ""];

/// A request's properties; its id changes when it is taken up anew.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) lock: usize,
    pub(super) ttl: u64,
    pub(super) min_hold: u64,
    pub(super) via: usize,
}

/// Which round of a slot is meant: its last one, the next one, or an earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Last,
    Next,
    Before,
}

/// A number near another one, or near the clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    /// Milliseconds from the clock.
    Clock(i64),
    /// From the highest token of the lock.
    Highest(i64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Quoted {
    Right,
    Wrong,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stands {
    /// A ticket of now plus so many milliseconds; `None` keeps the one it has.
    pub(super) ticket: Option<i64>,
    /// The same number as everybody's who has this.
    pub(super) tie: bool,
    pub(super) wait: u64,
    pub(super) backed: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Move {
    Propose {
        slot: usize,
        fresh: bool,
        round: Which,
        token: Number,
        stands: Option<Stands>,
    },
    Heal {
        slots: Vec<usize>,
        round: Which,
        token: Number,
    },
    Commit {
        slot: usize,
        quoted: Quoted,
        round: Which,
        token: Number,
    },
    Renew {
        slots: Vec<usize>,
        quoted: Quoted,
        ttl: u64,
    },
    Release {
        slot: usize,
        back: usize,
    },
    Cancel {
        slot: usize,
        back: usize,
        all: bool,
        round: Which,
    },
    /// With the holder's token, or somebody else's, or without.
    Force {
        lock: usize,
        token: Quoted,
        how: Force,
    },
}

pub(super) fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 3 => 1..400u64, 2 => 400..3_000u64, 1 => 3_000..15_000u64,
        1 => Just(1_000), 1 => 15_000..70_000u64]
}

pub(super) fn slot() -> impl Strategy<Value = Slot> {
    let ttl = prop_oneof![Just(100), Just(2_000), Just(10_000)];
    let min_hold = prop_oneof![3 => Just(0), 1 => Just(700), 1 => Just(2_500)];
    (0..3usize, ttl, min_hold, 0..VIAS.len()).prop_map(|(lock, ttl, min_hold, via)| Slot {
        lock: lock / 2,
        ttl,
        min_hold,
        via,
    })
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![3 => Just(Which::Last), 2 => Just(Which::Next), 1 => Just(Which::Before)]
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        3 => (-1_100..1_100i64).prop_map(Number::Clock),
        1 => prop_oneof![Just(-1_000), Just(1_000), Just(5_000)].prop_map(Number::Clock),
        2 => (-2..3i64).prop_map(Number::Highest)
    ]
}

fn stands() -> impl Strategy<Value = Stands> {
    let ticket = prop_oneof![4 => Just(None), 4 => (-1_100..1_100i64).prop_map(Some)];
    let wait = prop_oneof![Just(300), Just(2_000), Just(9_000)];
    (ticket, proptest::bool::weighted(0.2), wait, any::<bool>())
        .prop_map(|(ticket, tie, wait, backed)| Stands { ticket, tie, wait, backed })
}

fn quoted() -> impl Strategy<Value = Quoted> {
    prop_oneof![3 => Just(Quoted::Right), 1 => Just(Quoted::Wrong), 2 => Just(Quoted::Nothing)]
}

pub(super) fn some_move() -> impl Strategy<Value = Move> {
    let one = 0..SLOTS;
    let some = || vec(0..SLOTS, 1..4);
    let back = || prop_oneof![4 => Just(0), 1 => 1..4usize];
    let how = prop_oneof![Just(Force::Now), Just(Force::Revoke)];
    let ttl = prop_oneof![Just(50), Just(2_000), Just(20_000)];
    prop_oneof![
        10 => (one.clone(), any::<bool>(), which(), number(),
            proptest::option::weighted(0.7, stands()))
            .prop_map(|(slot, fresh, round, token, stands)|
                Move::Propose { slot, fresh, round, token, stands }),
        2 => (some(), which(), number())
            .prop_map(|(slots, round, token)| Move::Heal { slots, round, token }),
        2 => (one.clone(), quoted(), which(), number())
            .prop_map(|(slot, quoted, round, token)| Move::Commit { slot, quoted, round, token }),
        3 => (some(), quoted(), ttl)
            .prop_map(|(slots, quoted, ttl)| Move::Renew { slots, quoted, ttl }),
        5 => (one.clone(), back()).prop_map(|(slot, back)| Move::Release { slot, back }),
        3 => (one, back(), any::<bool>(), which())
            .prop_map(|(slot, back, all, round)| Move::Cancel { slot, back, all, round }),
        1 => (0..LOCKS.len(), quoted(), how)
            .prop_map(|(lock, token, how)| Move::Force { lock, token, how }),
    ]
}
