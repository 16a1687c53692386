//! C4: whether one fenced mutex explains what the clients saw.
//!
//! Wing and Gong's search: take the requests one by one, always one that began before any other
//! that is left had ended, such that the mutex allows it; remember what was tried in vain. The mutex
//! lets one in when it is free, with a token above every earlier one; lets its holder in again with
//! the same token; and becomes free when its holder gives it back. A hold that nobody acknowledged to
//! have been given back may end at any moment: that it did not end too early for its holder is C2.

use std::collections::{BTreeMap, HashMap, HashSet};

use distlock_testkit::history::What;

use crate::evidence::Evidence;
use distlock_lab::record::Violation;

/// Something a client did, between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) what: Do,
}

/// What it did. Holds are numbered; those of one owner, entered into each other, have one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    Acquire { hold: usize, token: u64 },
    Enter { hold: usize, token: u64 },
    Release { hold: usize },
}

/// One hold: whether the store said, to every request in it, that it was held up to its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) firm: bool,
}

/// How many states are looked at before the search gives up, which it says.
const LIMIT: usize = 300_000;

pub(super) fn check(evidence: &Evidence, ordered: bool, excused: bool) -> Vec<Violation> {
    let mut found = Vec::new();
    for (lock, (steps, holds)) in requests(evidence, excused) {
        let answer = linearizable(&steps, &holds, ordered);
        let what = match answer {
            Answer::Yes => continue,
            Answer::No(stuck) => format!("{lock:?}: nothing explains {:?}", steps[stuck].what),
            Answer::TooMany => {
                format!("{lock:?}: more than {LIMIT} orders, none of them tried fits")
            }
        };
        let at = match answer {
            Answer::No(stuck) => Some(evidence.since(steps[stuck].to)),
            _ => None,
        };
        found.push(Violation { checker: "C4".to_owned(), what, at });
    }
    found
}

/// The steps at each lock, in the order of their beginnings.
fn requests(evidence: &Evidence, excused: bool) -> BTreeMap<&str, (Vec<Step>, Vec<Hold>)> {
    #[derive(Default)]
    struct Request<'a> {
        asked: u64,
        granted: Option<(u64, u64)>,
        outer: Option<&'a str>,
        sent: Option<u64>,
        released: Option<u64>,
    }
    let mut locks: BTreeMap<&str, BTreeMap<&str, Request<'_>>> = BTreeMap::new();
    for e in &evidence.events {
        if e.lock.is_empty() {
            continue;
        }
        let r = locks.entry(&e.lock).or_default().entry(&e.who).or_default();
        match &e.what {
            What::Asked => r.asked = e.at,
            What::Granted { token, .. } => r.granted = Some((e.at, *token)),
            What::Entered { token, outer, .. } => {
                r.granted = Some((e.at, *token));
                r.outer = Some(outer);
            }
            What::ReleaseSent => r.sent = Some(e.at),
            What::Released => r.released = Some(e.at),
            _ => {}
        }
    }
    let mut all = BTreeMap::new();
    for (lock, requests) in locks {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut holds: Vec<Hold> = Vec::new();
        for (who, r) in requests.iter().filter(|(_, r)| r.outer.is_none() && r.granted.is_some()) {
            numbers.insert(who, holds.len());
            holds.push(Hold { firm: !excused && r.released.is_some() });
        }
        let mut steps = Vec::new();
        for (who, r) in &requests {
            let Some((granted, token)) = r.granted else { continue };
            let Some(&hold) = numbers.get(r.outer.unwrap_or(who)) else { continue };
            holds[hold].firm &= r.released.is_some();
            let what = match r.outer {
                None => Do::Acquire { hold, token },
                Some(_) => Do::Enter { hold, token },
            };
            steps.push(Step { from: r.asked, to: granted, what });
        }
        for (who, r) in &requests {
            let Some(&hold) = numbers.get(r.outer.unwrap_or(who)) else { continue };
            if let (true, Some(from), Some(to)) = (holds[hold].firm, r.sent, r.released) {
                steps.push(Step { from, to, what: Do::Release { hold } });
            }
        }
        steps.sort_by_key(|s| s.from);
        all.insert(lock, (steps, holds));
    }
    all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    /// The step that the longest attempt could not get past.
    No(usize),
    TooMany,
}

/// The mutex: who holds it, how many times over, and the highest token so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Mutex {
    holder: Option<(usize, u32, u64)>,
    highest: u64,
}

impl Mutex {
    fn takes(self, what: Do, holds: &[Hold], ordered: bool) -> Option<Self> {
        match (what, self.holder) {
            (Do::Acquire { hold, token }, holder) => {
                // A hold that nobody gave back for certain may have ended by itself.
                let free = holder.is_none_or(|(h, ..)| !holds[h].firm);
                let above = !ordered || token > self.highest;
                (free && above).then_some(Self {
                    holder: Some((hold, 1, token)),
                    highest: token.max(self.highest),
                })
            }
            (Do::Enter { hold, token }, Some((h, n, t))) if h == hold => {
                (token == t).then_some(Self { holder: Some((h, n + 1, t)), ..self })
            }
            // Of a hold that ended by itself what is entered may be told late.
            (Do::Enter { hold, .. }, _) => (!holds[hold].firm).then_some(self),
            (Do::Release { hold }, Some((h, n, t))) if h == hold => {
                let holder = (n > 1).then_some((h, n - 1, t));
                Some(Self { holder, ..self })
            }
            (Do::Release { .. }, _) => None,
        }
    }
}

/// Whether some order of the steps, each within its time, is one that the mutex allows. The steps are
/// in the order of their beginnings.
pub(super) fn linearizable(steps: &[Step], holds: &[Hold], ordered: bool) -> Answer {
    let mut tried: HashSet<(Vec<u64>, Mutex)> = HashSet::new();
    // A path of choices: the mutex before, and which candidate to try next.
    let mut path: Vec<(Mutex, usize)> = Vec::new();
    let mut done = Done::new(steps.len());
    let (mut mutex, mut from, mut furthest) = (Mutex::default(), 0, 0);
    loop {
        if done.count == steps.len() {
            return Answer::Yes;
        }
        if tried.len() > LIMIT {
            return Answer::TooMany;
        }
        // Nothing may be put before what had ended when it began.
        let mut bound = u64::MAX;
        let open = done.left().take_while(|i| {
            let began = steps[*i].from <= bound;
            bound = bound.min(steps[*i].to);
            began
        });
        let next = open
            .filter(|i| *i >= from)
            .find_map(|i| Some((i, mutex.takes(steps[i].what, holds, ordered)?)));
        match next {
            Some((i, after)) => {
                done.put(i);
                if tried.insert((done.key(), after)) {
                    path.push((mutex, i));
                    furthest = furthest.max(done.first());
                    (mutex, from) = (after, 0);
                } else {
                    done.take(i);
                    from = i + 1;
                }
            }
            None => {
                let Some((before, i)) = path.pop() else {
                    return Answer::No(furthest.min(steps.len() - 1));
                };
                done.take(i);
                (mutex, from) = (before, i + 1);
            }
        }
    }
}

/// Which steps have been put in order.
struct Done {
    bits: Vec<u64>,
    count: usize,
    len: usize,
}

impl Done {
    fn new(len: usize) -> Self {
        Self { bits: vec![0; len.div_ceil(64)], count: 0, len }
    }

    fn has(&self, i: usize) -> bool {
        self.bits[i / 64] & (1 << (i % 64)) != 0
    }

    fn put(&mut self, i: usize) {
        self.bits[i / 64] |= 1 << (i % 64);
        self.count += 1;
    }

    fn take(&mut self, i: usize) {
        self.bits[i / 64] &= !(1 << (i % 64));
        self.count -= 1;
    }

    /// The first that is left.
    fn first(&self) -> usize {
        let word = self.bits.iter().position(|w| *w != u64::MAX).unwrap_or(self.bits.len());
        let ones = self.bits.get(word).map_or(0, |w| w.trailing_ones() as usize);
        (word * 64 + ones).min(self.len)
    }

    fn left(&self) -> impl Iterator<Item = usize> + '_ {
        (self.first()..self.len).filter(|i| !self.has(*i))
    }

    /// Short for long histories: all before the first that is left are done.
    fn key(&self) -> Vec<u64> {
        let first = self.first();
        let mut key = vec![first as u64];
        key.extend(self.bits.iter().skip(first / 64).rev().skip_while(|b| **b == 0));
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRM: Hold = Hold { firm: true };
    const LOOSE: Hold = Hold { firm: false };

    fn step(from: u64, to: u64, what: Do) -> Step {
        Step { from, to, what }
    }

    fn run(mut steps: Vec<Step>, holds: &[Hold]) -> Answer {
        steps.sort_by_key(|s| s.from);
        linearizable(&steps, holds, true)
    }

    fn acquire(hold: usize, token: u64) -> Do {
        Do::Acquire { hold, token }
    }

    #[test]
    fn one_after_the_other() {
        let steps = vec![
            step(0, 2, acquire(0, 5)),
            step(1, 9, acquire(1, 6)),
            step(4, 8, Do::Release { hold: 0 }),
            step(10, 12, Do::Release { hold: 1 }),
        ];
        assert_eq!(run(steps, &[FIRM, FIRM]), Answer::Yes);
    }

    #[test]
    fn a_grant_inside_an_acknowledged_hold() {
        // Granted, and the release of the first was not even sent.
        let steps = vec![
            step(0, 2, acquire(0, 5)),
            step(1, 3, acquire(1, 6)),
            step(4, 8, Do::Release { hold: 0 }),
        ];
        assert!(matches!(run(steps.clone(), &[FIRM, FIRM]), Answer::No(_)));
        // If the first may have ended by itself, it explains it.
        let steps = steps[..2].to_vec();
        assert_eq!(run(steps, &[LOOSE, LOOSE]), Answer::Yes);
    }

    #[test]
    fn tokens_follow_the_order_and_overlapping_asks_may_be_swapped() {
        let both = |a, b| vec![step(0, 9, acquire(0, a)), step(1, 8, acquire(1, b))];
        assert_eq!(run(both(6, 5), &[LOOSE, LOOSE]), Answer::Yes);
        assert_eq!(run(both(5, 6), &[LOOSE, LOOSE]), Answer::Yes);
        assert!(matches!(run(both(5, 5), &[LOOSE, LOOSE]), Answer::No(_)));
        let apart = vec![step(0, 2, acquire(0, 6)), step(3, 4, acquire(1, 5))];
        assert!(matches!(run(apart.clone(), &[LOOSE, LOOSE]), Answer::No(_)));
        assert_eq!(linearizable(&apart, &[LOOSE, LOOSE], false), Answer::Yes);
    }

    #[test]
    fn entering_again_needs_the_hold_and_its_token() {
        let enter = |token| {
            vec![
                step(0, 2, acquire(0, 5)),
                step(3, 4, Do::Enter { hold: 0, token }),
                step(5, 6, Do::Release { hold: 0 }),
                step(7, 8, acquire(1, 9)),
                // Moments that touch overlap: it was sent after the second was told.
                step(9, 10, Do::Release { hold: 0 }),
            ]
        };
        // The second got in while the first had one of two holds left.
        assert!(matches!(run(enter(5), &[FIRM, LOOSE]), Answer::No(_)));
        let mut good = enter(5);
        good[3].to = 12;
        assert_eq!(run(good.clone(), &[FIRM, LOOSE]), Answer::Yes);
        good[1].what = Do::Enter { hold: 0, token: 6 };
        assert!(matches!(run(good, &[FIRM, LOOSE]), Answer::No(_)));
    }

    #[test]
    fn long_histories_are_quick() {
        // Six clients that ask all the time, served in turn.
        let mut steps = Vec::new();
        for n in 0..2000_usize {
            let at = n as u64 * 10;
            steps.push(step(at.saturating_sub(50), at + 3, acquire(n, 100 + n as u64)));
            steps.push(step(at + 4, at + 9, Do::Release { hold: n }));
        }
        assert_eq!(run(steps.clone(), &vec![FIRM; 2000]), Answer::Yes);
        steps[2001].what = acquire(1000, 3);
        assert!(matches!(run(steps, &vec![FIRM; 2000]), Answer::No(_)));
    }
}
