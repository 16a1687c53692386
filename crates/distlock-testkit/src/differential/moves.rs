//! What can happen to a lock: generated requests and moves.

use std::num::NonZeroU32;

use distlock_core::Mode;
use distlock_core::backend::Force;
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: usize = 9;

pub(super) const LOCKS: [&str; 2] = ["a", "b {x}"];
/// How many ways there are to be reached: two that are listened to, one that is not, and none.
const VIAS: usize = 4;

/// A request's properties; its id changes when it is taken up anew.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) lock: usize,
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) ttl: u64,
    pub(super) min_hold: u64,
    pub(super) lock_delay: u64,
    pub(super) block: u32,
    pub(super) via: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Move {
    /// `fresh` takes the slot up anew, under another id; `moved` listens elsewhere this once.
    Acquire {
        slot: usize,
        wait: Option<u64>,
        fresh: bool,
        moved: Option<usize>,
    },
    Heartbeat {
        slots: Vec<usize>,
        wait: u64,
        via: usize,
    },
    Renew {
        slots: Vec<usize>,
        ttl: u64,
    },
    /// `back` speaks of an earlier id of the slot.
    Release {
        slot: usize,
        back: usize,
    },
    Cancel {
        slot: usize,
        back: usize,
    },
    /// With the token of the n-th hold, or of nobody, or without.
    Force {
        lock: usize,
        token: Option<usize>,
        how: Force,
    },
    Settle {
        lock: usize,
    },
}

pub(super) fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 1..400u64, 2 => 400..3_000u64, 1 => 3_000..15_000u64,
        1 => Just(1_000), 1 => 15_000..70_000u64]
}

/// All kinds, or all alike: then they meet in one line, and few owners meet themselves.
pub(super) fn slots() -> impl Strategy<Value = Vec<Slot>> {
    let alike = (vec(slot(), SLOTS), 1..4u8).prop_map(|(mut slots, owners)| {
        let first = slots[0].clone();
        for s in &mut slots {
            (s.lock, s.mode, s.owner) = (first.lock, first.mode, s.owner % owners);
        }
        slots
    });
    let all = (vec(slot(), SLOTS), any::<bool>()).prop_map(|(mut slots, apart)| {
        for (i, s) in slots.iter_mut().enumerate().filter(|_| apart) {
            s.owner = i as u8;
        }
        slots
    });
    prop_oneof![2 => all, 1 => alike]
}

fn slot() -> impl Strategy<Value = Slot> {
    let permit = |n| Mode::Permit(NonZeroU32::new(n).expect("not none"));
    let mode = prop_oneof![5 => Just(Mode::Exclusive), 3 => Just(Mode::Shared),
        3 => Just(permit(2)), 1 => Just(permit(3))];
    let some = |ms: u64| prop_oneof![3 => Just(0), 1 => Just(ms), 1 => Just(3 * ms)];
    let block = prop_oneof![4 => Just(1), 1 => Just(5), 1 => Just(3_000_000)];
    let ttl = prop_oneof![Just(100), Just(2_000), Just(10_000)];
    let owner = prop_oneof![3 => 0..2u8, 3 => 2..SLOTS as u8 + 2];
    (0..3usize, owner, mode, ttl, some(700), some(900), block, 0..VIAS).prop_map(
        |(lock, owner, mode, ttl, min_hold, lock_delay, block, via)| Slot {
            lock: lock / 2,
            owner,
            mode,
            ttl,
            min_hold,
            lock_delay,
            block,
            via,
        },
    )
}

pub(super) fn some_move() -> impl Strategy<Value = Move> {
    let one = 0..SLOTS;
    let back = prop_oneof![4 => Just(0), 1 => 1..4usize];
    let how = prop_oneof![Just(Force::Now), Just(Force::Revoke)];
    let wait = prop_oneof![Just(300), Just(2_000), Just(9_000)];
    let moved = prop_oneof![5 => Just(None), 1 => (0..VIAS).prop_map(Some)];
    prop_oneof![
        9 => (one.clone(), proptest::option::weighted(0.8, wait.clone()),
            any::<bool>(), moved)
            .prop_map(|(slot, wait, fresh, moved)| Move::Acquire { slot, wait, fresh, moved }),
        2 => (vec(one.clone(), 1..4), wait, 0..VIAS)
            .prop_map(|(slots, wait, via)| Move::Heartbeat { slots, wait, via }),
        3 => (vec(one.clone(), 1..4), prop_oneof![Just(50), Just(2_000), Just(20_000)])
            .prop_map(|(slots, ttl)| Move::Renew { slots, ttl }),
        6 => (one.clone(), back.clone()).prop_map(|(slot, back)| Move::Release { slot, back }),
        2 => (one, back).prop_map(|(slot, back)| Move::Cancel { slot, back }),
        1 => (0..LOCKS.len(), proptest::option::of(0..3usize), how)
            .prop_map(|(lock, token, how)| Move::Force { lock, token, how }),
        1 => (0..LOCKS.len()).prop_map(|lock| Move::Settle { lock }),
    ]
}
