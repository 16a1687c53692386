//! The queue as a store tells it, and whose turn it is: a pure function of the queue.
//!
//! Entries ahead of one can only leave, so a turn, once come, stays as long as the entry does. A
//! queue that was read a while ago is therefore no danger: it shows too many ahead, never too few.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::{Label, Mode, Owner, ReqId, Token};

/// The store's own word for an entry: its key or node. What a watch is put on.
pub type Spot = Arc<str>;

/// One entry in a queue: a holder or a waiter, which of the two [`turn`](turn()) decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The store's own word for it.
    pub spot: Spot,
    /// Its fencing token: unique, and rising in the order of the queue. It is what tells entries
    /// apart.
    pub token: Token,
    /// How many tokens its request asked for: several where its process may hand the lock on.
    pub tokens: NonZeroU32,
    /// The request it is of; `None` for one of another kind of client.
    pub req: Option<ReqId>,
    /// Its owner; `None` for one of another kind of client.
    pub owner: Option<Owner>,
    /// What others may see of it.
    pub label: Label,
    /// How it is to be held. Exclusive for one of another kind of client: they know nothing else.
    pub mode: Mode,
    /// How long it has been there, as far as the store can tell.
    pub age: Duration,
    /// How long it could outlast its client's silence, at most.
    pub left: Option<Duration>,
    /// Released already, kept by its `min_hold`.
    pub lingering: bool,
    /// Taken away by an operator.
    pub revoked: bool,
}

/// A queue, first entry first.
///
/// A store may leave out what an exclusive request has no need of: what lies between the first
/// entry and the one just ahead of it, and what is behind it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The entries, in the order of their tokens.
    pub entries: Vec<Entry>,
    /// How many were left out after the first.
    pub skipped: u32,
    /// How many were left out at the end.
    pub behind: u32,
    /// The store's count of changes when it read this: a watch that starts here misses nothing.
    pub seen: u64,
}

impl Snapshot {
    /// Where an entry stands among those that are told.
    #[must_use]
    pub fn place(&self, me: Token) -> Option<usize> {
        self.entries.binary_search_by_key(&me, |e| e.token).ok()
    }

    /// How many stand behind an entry.
    #[must_use]
    pub fn waiting_behind(&self, me: Token) -> u32 {
        let told = self.place(me).map_or(0, |i| self.entries.len() - 1 - i);
        u32::try_from(told).unwrap_or(u32::MAX).saturating_add(self.behind)
    }
}

/// What a queue means for one of its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is its turn.
    Mine,
    /// It is not before one of these has left.
    Behind(Vec<Spot>),
    /// It is not in the queue.
    Gone,
    /// It asks for one of another number of permits than this, which is in use.
    Refused(NonZeroU32),
}

/// Whose turn it is: of the entry with this token.
///
/// * Exclusive: the first in the queue. It watches the one just ahead.
/// * Shared: nobody of another mode ahead. It watches the nearest such.
/// * One of n permits: fewer than n ahead, all of them permits. It watches the nearest of another
///   mode, or the n just ahead: for its turn to come one of these must leave.
#[must_use]
pub fn turn(line: &Snapshot, me: Token) -> Turn {
    let Some(at) = line.place(me) else { return Turn::Gone };
    let ahead = &line.entries[..at];
    let watch = |e: &Entry| Turn::Behind(vec![e.spot.clone()]);
    match line.entries[at].mode {
        Mode::Exclusive => ahead.last().map_or(Turn::Mine, watch),
        Mode::Shared => ahead.iter().rfind(|e| e.mode != Mode::Shared).map_or(Turn::Mine, watch),
        Mode::Permit(n) => permit(ahead, n),
    }
}

fn permit(ahead: &[Entry], n: NonZeroU32) -> Turn {
    let number = |e: &Entry| match e.mode {
        Mode::Permit(n) => Some(n),
        _ => None,
    };
    // The first fixes the number. A request that came with another since is about to leave.
    if let Some(other) = ahead.iter().find_map(number).filter(|first| *first != n) {
        return Turn::Refused(other);
    }
    let most = usize::try_from(n.get()).unwrap_or(usize::MAX);
    let other = ahead.iter().rposition(|e| number(e) != Some(n));
    let permits = &ahead[other.map_or(0, |i| i + 1)..];
    if permits.len() >= most {
        let near = &permits[permits.len() - most..];
        return Turn::Behind(near.iter().map(|e| e.spot.clone()).collect());
    }
    other.map_or(Turn::Mine, |i| Turn::Behind(vec![ahead[i].spot.clone()]))
}

/// How many of the entries told hold the lock: a beginning of the queue, since nobody overtakes.
#[must_use]
pub fn holders(line: &Snapshot) -> usize {
    let Some(first) = line.entries.first() else { return 0 };
    // What was left out might not be of the first's mode: then only the first is sure.
    let most = match (first.mode, line.skipped) {
        (Mode::Exclusive, _) => 1,
        (_, 1..) => 1,
        (Mode::Shared, 0) => usize::MAX,
        (Mode::Permit(n), 0) => usize::try_from(n.get()).unwrap_or(usize::MAX),
    };
    line.entries.iter().take(most).take_while(|e| e.mode == first.mode).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(n: usize, mode: Mode) -> Entry {
        Entry {
            spot: n.to_string().into(),
            token: Token::new(n as u64 + 1).unwrap(),
            tokens: NonZeroU32::MIN,
            req: None,
            owner: None,
            label: Label::new("x"),
            mode,
            age: Default::default(),
            left: None,
            lingering: false,
            revoked: false,
        }
    }

    fn line(modes: &[Mode]) -> Snapshot {
        let entries = modes.iter().enumerate().map(|(n, m)| entry(n, *m)).collect();
        Snapshot { entries, ..Snapshot::default() }
    }

    fn modes() -> impl Strategy<Value = Vec<Mode>> {
        let n = |n| Mode::Permit(NonZeroU32::new(n).unwrap());
        let one = prop_oneof![
            3 => Just(Mode::Exclusive),
            3 => Just(Mode::Shared),
            4 => Just(n(2)),
            1 => Just(n(3)),
        ];
        proptest::collection::vec(one, 0..10)
    }

    /// The rule as one would say it: from the first on, each is let in as long as it agrees with
    /// all that are in; one that is not let in stops all behind it.
    fn let_in(line: &Snapshot) -> Vec<Token> {
        let mut inside: Vec<&Entry> = Vec::new();
        for e in &line.entries {
            let agrees = match e.mode {
                Mode::Exclusive => inside.is_empty(),
                Mode::Shared => inside.iter().all(|i| i.mode == Mode::Shared),
                Mode::Permit(n) => {
                    inside.iter().all(|i| i.mode == e.mode) && inside.len() < n.get() as usize
                }
            };
            if !agrees {
                break;
            }
            inside.push(e);
        }
        inside.iter().map(|e| e.token).collect()
    }

    fn without(line: &Snapshot, gone: impl Fn(usize) -> bool) -> Snapshot {
        let kept = line.entries.iter().enumerate().filter(|(i, _)| !gone(*i));
        Snapshot { entries: kept.map(|(_, e)| e.clone()).collect(), ..Snapshot::default() }
    }

    proptest! {
        #[test]
        fn a_turn_has_come_exactly_for_those_a_doorman_would_let_in(modes in modes()) {
            let line = line(&modes);
            let inside = let_in(&line);
            let mine = |e: &&Entry| turn(&line, e.token) == Turn::Mine;
            let turns: Vec<_> = line.entries.iter().filter(mine).map(|e| e.token).collect();
            prop_assert_eq!(&turns, &inside);
            prop_assert_eq!(holders(&line), inside.len());
        }

        /// No wake-up is missing: a waiter whose turn comes by some departures watched one of them.
        #[test]
        fn a_turn_comes_only_with_a_departure_that_is_watched(modes in modes(), gone in any::<u16>()) {
            let line = line(&modes);
            let gone = |i: usize| gone & (1 << i) != 0;
            let later = without(&line, gone);
            for e in &later.entries {
                if let (Turn::Behind(watch), Turn::Mine) = (turn(&line, e.token), turn(&later, e.token)) {
                    let left = |s: &Spot| gone(s.parse().unwrap());
                    prop_assert!(watch.iter().any(left), "{watch:?} of {:?}", e.spot);
                }
            }
        }

        /// No herd: one departure wakes at most one exclusive waiter.
        #[test]
        fn one_departure_wakes_one_exclusive_waiter_at_most(modes in modes()) {
            let line = line(&modes);
            for leaving in &line.entries {
                let woken = line.entries.iter().filter(|e| e.mode == Mode::Exclusive).filter(
                    |e| matches!(turn(&line, e.token), Turn::Behind(w) if w.contains(&leaving.spot)),
                );
                prop_assert!(woken.count() <= 1);
            }
        }

        /// A turn, once come, stays: what a stale queue says is still true.
        #[test]
        fn a_turn_stays(modes in modes(), gone in any::<u16>()) {
            let line = line(&modes);
            let later = without(&line, |i| gone & (1 << i) != 0);
            for e in &later.entries {
                if turn(&line, e.token) == Turn::Mine {
                    prop_assert_eq!(turn(&later, e.token), Turn::Mine);
                }
            }
        }

        /// What a store may leave out for an exclusive request changes nothing for it.
        #[test]
        fn a_shortened_line_says_the_same(modes in modes()) {
            let whole = line(&modes);
            for (i, e) in whole.entries.iter().enumerate() {
                if e.mode != Mode::Exclusive || i < 2 {
                    continue;
                }
                let entries = [0, i - 1, i].map(|i| whole.entries[i].clone());
                let mut entries = entries.to_vec();
                entries.dedup();
                let short = Snapshot { skipped: u32::try_from(i - 2).unwrap_or(0), entries, ..Snapshot::default() };
                prop_assert_eq!(turn(&short, e.token), turn(&whole, e.token));
            }
        }
    }

    #[test]
    fn a_stranger_has_no_turn_and_another_number_is_refused() {
        let n = |n| Mode::Permit(NonZeroU32::new(n).unwrap());
        let line = line(&[n(2), Mode::Exclusive, n(3)]);
        assert_eq!(turn(&line, Token::new(99).unwrap()), Turn::Gone);
        assert_eq!(turn(&line, line.entries[2].token), Turn::Refused(NonZeroU32::new(2).unwrap()));
    }

    /// Somebody with another number, about to leave, is waited for: that is no reason to refuse
    /// those behind it.
    #[test]
    fn who_is_refused_does_not_make_others_refused() {
        let n = |n| Mode::Permit(NonZeroU32::new(n).unwrap());
        let line = line(&[n(2), n(3), n(2)]);
        assert_eq!(turn(&line, line.entries[2].token), Turn::Behind(vec!["1".into()]));
    }

    /// Permits behind a full house and behind a writer: only those that may get in are woken.
    #[test]
    fn permits_watch_as_few_as_they_can() {
        let two = Mode::Permit(NonZeroU32::new(2).unwrap());
        let line = line(&[Mode::Exclusive, two, two, two]);
        let watched = |i: usize| match turn(&line, line.entries[i].token) {
            Turn::Behind(w) => w.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(","),
            other => panic!("{other:?}"),
        };
        assert_eq!([watched(1), watched(2), watched(3)], ["0", "0", "1,2"]);
    }
}
