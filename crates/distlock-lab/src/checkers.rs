//! What must be true of every history. Each checker has a number, a name and a sentence; the table
//! in docs/lab.md is made from here.

mod linear;
mod resource;

use distlock::Fence;
use distlock::capability::Order;
use distlock_testkit::history::{self, Rules};

use crate::evidence::{Evidence, Log};
use crate::place::Place;
use distlock_lab::record::{Hold, Overlap, Violation};

/// A checker: its number, its name, and what it means when it finds something.
pub(crate) const ALL: [(&str, &str, &str); 8] = [
    (
        "C1",
        "tokens",
        "A later grant has a token that is not higher, or an owner that entered again got another one: no fence can tell the two apart.",
    ),
    (
        "C2",
        "overlap",
        "Two guards of one lock were valid at one moment, or one that was lost was believed in again.",
    ),
    (
        "C3",
        "resource",
        "The resource took a write of an older holder after one of a younger, or one that nobody with that token made.",
    ),
    (
        "C4",
        "linearizable",
        "No order of the grants and acknowledged releases explains what the clients saw: it was not one fenced mutex.",
    ),
    (
        "C5",
        "conservation",
        "An update of a counter or a stock was lost, or a stock went below nothing.",
    ),
    (
        "C6",
        "bounded wait",
        "After everything was healed somebody who waited was not served in time, or a lock that was kept up was lost.",
    ),
    (
        "C7",
        "leaks",
        "After everybody had gone a lock was still held, somebody still stood in line, or something was left that never ends.",
    ),
    (
        "C8",
        "order",
        "While nothing was wrong somebody was served before another who stood in line already.",
    ),
];

/// A moment when something was wrong on purpose, on the boot clock: the order of service says nothing
/// then, and two holders may be possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// When two holders are possible because of it, by what the store promises.
    pub(crate) two_holders: Option<(u64, u64)>,
}

impl Window {
    /// Whether there may be two holders at a moment.
    pub(crate) fn permits(&self, at: u64) -> bool {
        self.two_holders.is_some_and(|(from, until)| from <= at && at <= until)
    }

    fn meets(&self, from: u64, until: u64) -> bool {
        self.from <= until && from <= self.until
    }
}

/// What the checkers found, and the overlaps to be drawn.
pub(crate) fn all(
    evidence: &Evidence,
    place: &Place,
    windows: &[Window],
    unplanned: bool,
) -> (Vec<Violation>, Vec<Overlap>) {
    let capability = place.capability();
    let ordered = capability.fence != Fence::Unordered;
    let rules = Rules { fifo: capability.order == Order::Fifo };
    let (mut found, mut overlaps) = (Vec::new(), Vec::new());
    let stalls = stalls(evidence);
    for violation in history::check(&evidence.events, rules) {
        let (checker, at) = match &violation {
            history::Violation::Overlap { lock, at, nanos, .. } => {
                if let Some(lock) = evidence.lock(lock) {
                    let (from, until) = (evidence.since(*at), evidence.since(at + nanos));
                    overlaps.push(Overlap { lock, from, until });
                }
                let within = |w: &Window| {
                    w.two_holders.is_some_and(|(from, until)| from <= *at && at + nanos <= until)
                };
                if windows.iter().any(within) {
                    continue;
                }
                ("C2", Some(*at))
            }
            history::Violation::CameBack { at, .. } => ("C2", Some(*at)),
            history::Violation::TokenBack { .. } if !ordered => continue,
            // Its hold had ended at the store when the other began: an overlap by another name.
            history::Violation::TokenBack { at, concurrent: true, .. }
                if windows.iter().any(|w| w.permits(*at)) =>
            {
                continue;
            }
            history::Violation::TokenBack { at, .. } | history::Violation::Reentry { at, .. } => {
                ("C1", Some(*at))
            }
            history::Violation::OutOfTurn { lock, asked, at, .. } => {
                // Who asked while something was wrong may have been told late where it stands.
                let stalled = stalls.iter().any(|(l, w)| l == lock && w.meets(*asked, *at));
                if stalled || windows.iter().any(|w| w.meets(*asked, *at)) {
                    continue;
                }
                ("C8", Some(*at))
            }
            history::Violation::Forgotten { .. } => ("C6", None),
        };
        let at = at.map(|at| evidence.since(at));
        found.push(Violation { checker: checker.to_owned(), what: violation.to_string(), at });
    }
    // At random, what nobody guards is there to show what becomes of it; in a story it is the point.
    let guarded = |log: &&Log| !unplanned || log.kind != "unfenced";
    let logs: Vec<&Log> = evidence.logs.iter().filter(guarded).collect();
    found.extend(resource::order(evidence, &logs, ordered));
    found.extend(resource::conservation(evidence, &logs));
    let excused = windows.iter().any(|w| w.two_holders.is_some());
    found.extend(linear::check(evidence, ordered, excused));
    (found, overlaps)
}

/// A waiter whose turn it is has a second to take it before the next is called: when a lock that is
/// waited for stays free for nearly as long, the machine stood still, and somebody was passed over.
const STALL: u64 = 700_000_000;

fn stalls(evidence: &Evidence) -> Vec<(String, Window)> {
    let (mut holds, _) = evidence.lanes();
    holds.sort_by_key(|h| (h.lock, h.from));
    let gap = |pair: &[Hold]| {
        let (before, after) = (&pair[0], &pair[1]);
        let stalled = before.lock == after.lock && before.until + STALL <= after.from;
        let (from, until) = (evidence.start + before.until, evidence.start + after.from);
        let window = Window { from, until, two_holders: None };
        stalled.then(|| (evidence.locks[before.lock].clone(), window))
    };
    holds.windows(2).filter_map(gap).collect()
}

/// How many updates of unguarded registers were lost, of how many.
pub(crate) fn unguarded(evidence: &Evidence) -> (usize, usize) {
    let logs: Vec<&Log> = evidence.logs.iter().filter(|log| log.kind == "unfenced").collect();
    let all = logs.iter().map(|log| log.writes.len()).sum();
    (resource::conservation(evidence, &logs).len(), all)
}
