//! Whether a history can have been one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::{Event, What};

/// What the store promised, so that only broken promises are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Waiters are served in the order of their arrival.
    pub fifo: bool,
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Two holds of one lock were valid at one moment.
    Overlap {
        /// The lock.
        lock: String,
        /// Who had it first.
        first: String,
        /// Who had it besides.
        second: String,
        /// From when on, on the boot clock.
        at: u64,
        /// For how many nanoseconds.
        nanos: u64,
    },
    /// A later grant has a token that is not higher.
    TokenBack {
        /// The lock.
        lock: String,
        /// The earlier grant and its token.
        before: (String, u64),
        /// The later one and its token.
        after: (String, u64),
        /// When it was granted.
        at: u64,
        /// The later one was asked for before the earlier was granted: the store may have granted
        /// them in the order of their tokens, and told the later of them first.
        concurrent: bool,
    },
    /// The same owner entered again and got another token.
    Reentry {
        /// The lock.
        lock: String,
        /// The hold it entered, and its token.
        outer: (String, u64),
        /// The request, and its token.
        inner: (String, u64),
        /// When it was granted.
        at: u64,
    },
    /// A hold that its holder knew to be lost was believed in again.
    CameBack {
        /// The lock.
        lock: String,
        /// The request.
        who: String,
        /// When it was believed in again.
        at: u64,
    },
    /// Somebody who asked after another was known to stand in line was served before it.
    OutOfTurn {
        /// The lock.
        lock: String,
        /// Who was passed.
        passed: String,
        /// By whom.
        by: String,
        /// When it asked.
        asked: u64,
        /// Since when it was known to stand in line.
        since: u64,
        /// When the other was granted.
        at: u64,
    },
    /// A request of a process that ended in order has no end itself.
    Forgotten {
        /// The lock.
        lock: String,
        /// The request.
        who: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap { lock, first, second, nanos, .. } => {
                write!(f, "{lock:?}: {first} and {second} both held it for {nanos} ns")
            }
            Violation::TokenBack { lock, before, after, .. } => write!(
                f,
                "{lock:?}: {} had token {}, after it {} had {}",
                before.0, before.1, after.0, after.1
            ),
            Violation::Reentry { lock, outer, inner, .. } => write!(
                f,
                "{lock:?}: {} held it with token {}, and its owner entered as {} with {}",
                outer.0, outer.1, inner.0, inner.1
            ),
            Violation::CameBack { lock, who, .. } => {
                write!(f, "{lock:?}: {who} was lost and believed in again")
            }
            Violation::OutOfTurn { lock, passed, by, .. } => {
                write!(f, "{lock:?}: {by} asked after {passed} stood in line and was served first")
            }
            Violation::Forgotten { lock, who } => {
                write!(f, "{lock:?}: {who} asked and was never answered")
            }
        }
    }
}

/// One request, put together from its events.
#[derive(Default)]
struct Request<'a> {
    who: &'a str,
    asked: Option<u64>,
    enqueued: Option<u64>,
    granted: Option<u64>,
    token: u64,
    until: u64,
    release_sent: Option<u64>,
    /// The hold of the same owner that it entered.
    outer: Option<&'a str>,
    lost: bool,
    told: u64,
    /// When it was last seen to be valid.
    seen: u64,
    back: Option<u64>,
    ended: bool,
}

impl Request<'_> {
    /// Whose hold it is part of.
    fn group(&self) -> &str {
        self.outer.unwrap_or(self.who)
    }

    /// `[grant, min(release sent, deadline)]`: when it believed in its hold.
    fn valid(&self) -> Option<(u64, u64)> {
        let from = self.granted?;
        // Whoever was told before its deadline believed up to some moment between its last look and
        // the one that found it lost: only the last look is certain.
        let told = if self.told < self.until { self.seen } else { self.until };
        let to = self.release_sent.unwrap_or(u64::MAX).min(told);
        (from < to).then_some((from, to))
    }
}

/// Reads events together, in any order, and reports what cannot be.
#[must_use]
pub fn check(events: &[Event], rules: Rules) -> Vec<Violation> {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|e| e.at);
    let mut locks: BTreeMap<&str, HashMap<&str, Request<'_>>> = BTreeMap::new();
    let mut in_order = HashSet::new();
    let mut killed: HashMap<&str, u64> = HashMap::new();
    for event in sorted {
        let who = event.who.as_str();
        let process = who.trim_end_matches('-');
        match &event.what {
            What::End => {
                in_order.insert(process);
                continue;
            }
            What::Killed => {
                killed.insert(process, event.at);
                continue;
            }
            _ => {}
        }
        let new = || Request { who, told: u64::MAX, ..Request::default() };
        let r = locks.entry(&event.lock).or_default().entry(who).or_insert_with(new);
        match &event.what {
            What::Asked => r.asked = Some(event.at),
            What::Enqueued => r.enqueued = r.enqueued.or(Some(event.at)),
            What::Granted { token, until } => {
                (r.granted, r.token, r.until) = (Some(event.at), *token, *until);
                r.seen = event.at;
            }
            What::Entered { token, until, outer } => {
                (r.granted, r.token, r.until) = (Some(event.at), *token, *until);
                (r.seen, r.outer) = (event.at, Some(outer.as_str()));
            }
            What::Valid { until } => {
                r.seen = event.at;
                r.until = r.until.max(*until);
                r.back = r.back.or(r.lost.then_some(event.at));
            }
            What::ReleaseSent => r.release_sent = Some(event.at),
            What::Lost => {
                r.lost = true;
                r.told = r.told.min(event.at);
            }
            What::Released | What::Killed => {}
            What::GaveUp | What::End => r.ended = true,
        }
    }
    for r in locks.values_mut().flat_map(HashMap::values_mut) {
        let process = r.who.split('-').next().unwrap_or_default();
        r.until = r.until.min(killed.get(process).copied().unwrap_or(u64::MAX));
    }
    let mut found = Vec::new();
    for (lock, requests) in &locks {
        let mut all: Vec<&Request<'_>> = requests.values().collect();
        all.sort_by_key(|r| (r.granted, r.asked));
        overlaps(lock, &all, &mut found);
        came_back(lock, &all, &mut found);
        tokens(lock, &all, &mut found);
        if rules.fifo {
            turns(lock, &all, &mut found);
        }
        forgotten(lock, &all, &in_order, &mut found);
    }
    found
}

fn overlaps(lock: &str, all: &[&Request<'_>], found: &mut Vec<Violation>) {
    let mut latest: Option<(&Request<'_>, u64)> = None;
    for (r, (from, to)) in all.iter().filter_map(|r| r.valid().map(|v| (r, v))) {
        if let Some((first, end)) = latest
            && from < end
            && first.group() != r.group()
        {
            found.push(Violation::Overlap {
                lock: lock.to_owned(),
                first: first.who.to_owned(),
                second: r.who.to_owned(),
                at: from,
                nanos: end.min(to) - from,
            });
        }
        if latest.is_none_or(|(_, end)| to > end) {
            latest = Some((r, to));
        }
    }
}

fn came_back(lock: &str, all: &[&Request<'_>], found: &mut Vec<Violation>) {
    for r in all {
        if let Some(at) = r.back {
            found.push(Violation::CameBack { lock: lock.to_owned(), who: r.who.to_owned(), at });
        }
    }
}

fn tokens(lock: &str, all: &[&Request<'_>], found: &mut Vec<Violation>) {
    let mut seen: HashMap<u64, &Request<'_>> = HashMap::new();
    let mut highest: Option<&Request<'_>> = None;
    for r in all {
        let Some(at) = r.granted else { continue };
        if let Some(outer) = r.outer {
            let held = all.iter().find(|o| o.who == outer);
            if let Some(held) = held.filter(|o| o.token != r.token) {
                found.push(Violation::Reentry {
                    lock: lock.to_owned(),
                    outer: (outer.to_owned(), held.token),
                    inner: (r.who.to_owned(), r.token),
                    at,
                });
            }
            continue;
        }
        let back = |before: &Request<'_>| Violation::TokenBack {
            lock: lock.to_owned(),
            before: (before.who.to_owned(), before.token),
            after: (r.who.to_owned(), r.token),
            at,
            concurrent: r.token < before.token && r.asked < before.granted,
        };
        if let Some(other) = seen.insert(r.token, r) {
            found.push(back(other));
        } else if let Some(before) = highest
            && r.valid().is_some()
            && r.token < before.token
        {
            // A grant that was over when its process wrote it down says nothing about the order.
            found.push(back(before));
        }
        if r.valid().is_some() && highest.is_none_or(|h| r.token > h.token) {
            highest = Some(r);
        }
    }
}

fn turns(lock: &str, all: &[&Request<'_>], found: &mut Vec<Violation>) {
    // In the order of the grants, which is that of the tokens.
    let first = |r: &&&Request<'_>| r.granted.is_some() && r.outer.is_none();
    let mut granted: Vec<_> = all.iter().filter(first).collect();
    granted.sort_by_key(|r| r.token);
    let mut youngest: Option<(&Request<'_>, u64)> = None;
    for r in granted {
        if let (Some(since), Some((other, asked))) = (r.enqueued, youngest)
            && since < asked
        {
            let (passed, by) = (r.who.to_owned(), other.who.to_owned());
            let (lock, at) = (lock.to_owned(), other.granted.unwrap_or(asked));
            let asked = r.asked.unwrap_or(since);
            found.push(Violation::OutOfTurn { lock, passed, by, asked, since, at });
        }
        if let Some(asked) = r.asked
            && youngest.is_none_or(|(_, y)| asked > y)
        {
            youngest = Some((r, asked));
        }
    }
}

fn forgotten(
    lock: &str,
    all: &[&Request<'_>],
    in_order: &HashSet<&str>,
    found: &mut Vec<Violation>,
) {
    for r in all.iter().filter(|r| r.granted.is_none() && !r.ended) {
        let process = r.who.rsplit_once('-').map_or(r.who, |(process, _)| process);
        if in_order.contains(process) {
            found.push(Violation::Forgotten { lock: lock.to_owned(), who: r.who.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIFO: Rules = Rules { fifo: true };

    fn event(at: u64, who: &str, what: What) -> Event {
        Event { at, who: who.into(), lock: "l".into(), what }
    }

    /// Two requests, one after the other, the second of which waited.
    fn good() -> Vec<Event> {
        vec![
            event(1, "a-1", What::Asked),
            event(2, "a-1", What::Granted { token: 10, until: 100 }),
            event(3, "b-1", What::Asked),
            event(4, "b-1", What::Enqueued),
            event(5, "c-1", What::Asked),
            event(6, "c-1", What::Enqueued),
            event(8, "a-1", What::Valid { until: 130 }),
            event(9, "a-1", What::ReleaseSent),
            event(11, "b-1", What::Granted { token: 11, until: 110 }),
            event(12, "b-1", What::ReleaseSent),
            event(14, "c-1", What::Granted { token: 12, until: 115 }),
            event(15, "c-1", What::ReleaseSent),
            event(16, "a-", What::End),
            event(16, "b-", What::End),
            event(16, "c-", What::End),
        ]
    }

    fn with(change: impl Fn(&mut Vec<Event>)) -> Vec<Violation> {
        let mut events = good();
        change(&mut events);
        check(&events, FIFO)
    }

    #[test]
    fn what_can_have_been_is_not_reported() {
        assert_eq!(check(&good(), FIFO), []);
        let mut backwards = good();
        backwards.reverse();
        assert_eq!(check(&backwards, FIFO), []);
    }

    #[test]
    fn two_holds_at_one_moment() {
        // Granted before the other's release was sent, while its lease ran.
        let found = with(|e| e[8].at = 7);
        assert!(matches!(&found[..], [Violation::Overlap { nanos: 2, .. }]), "{found:?}");
        // The same after a pause: the lease was over, so it is none.
        let found = with(|e| {
            e[1].what = What::Granted { token: 10, until: 5 };
            e[6].what = What::Valid { until: 6 };
            e[8].at = 7;
        });
        assert_eq!(found, []);
        // A holder that fell silent counts until its deadline …
        let silent = |e: &mut Vec<Event>| {
            e.retain(|e| !(e.who == "a-1" && e.what == What::ReleaseSent));
        };
        let found = with(silent);
        assert!(matches!(&found[..], [Violation::Overlap { .. }, ..]), "{found:?}");
        assert!(found[0].to_string().contains("a-1 and b-1"));
        // … unless it was told before, and had not looked since the other was granted.
        let told_after = |look: u64| {
            with(|e| {
                silent(e);
                e.push(event(look, "a-1", What::Valid { until: 130 }));
                e.push(event(20, "a-1", What::Lost));
            })
        };
        assert_eq!(told_after(10), []);
        assert!(matches!(&told_after(12)[..], [Violation::Overlap { nanos: 1, .. }]));
        // … or until it was killed.
        let killed_at = |at| {
            with(|e| {
                silent(e);
                e.push(event(at, "a-", What::Killed));
            })
        };
        assert_eq!(killed_at(10), []);
        assert!(matches!(&killed_at(12)[..], [Violation::Overlap { nanos: 1, .. }]));
    }

    #[test]
    fn tokens_that_go_back_or_repeat() {
        let found = with(|e| e[8].what = What::Granted { token: 9, until: 110 });
        assert!(found.iter().any(|v| matches!(v, Violation::TokenBack { .. })), "{found:?}");
        let found = with(|e| e[8].what = What::Granted { token: 10, until: 110 });
        assert!(matches!(&found[..], [Violation::TokenBack { .. }]), "{found:?}");
        // Asked for while the other was: the store may have granted them in order.
        let late = |asked| {
            let found = with(|e| {
                e[2].at = asked;
                e[8].what = What::Granted { token: 9, until: 110 };
            });
            found.iter().any(|v| matches!(v, Violation::TokenBack { concurrent: true, .. }))
        };
        assert!(late(1) && !late(2));
        // Also when the repeated one was over before it was written down.
        let found = with(|e| e[8].what = What::Granted { token: 10, until: 11 });
        assert!(matches!(&found[..], [Violation::TokenBack { .. }]), "{found:?}");
    }

    #[test]
    fn a_hold_that_was_lost_stays_lost() {
        let found = with(|e| e.push(event(7, "a-1", What::Lost)));
        assert!(matches!(&found[..], [Violation::CameBack { at: 8, .. }]), "{found:?}");
        // Found out at its release is no coming back.
        assert_eq!(with(|e| e.push(event(10, "a-1", What::Lost))), []);
    }

    #[test]
    fn the_same_owner_enters_again_with_the_same_token() {
        let enter = |token, until| {
            let what = What::Entered { token, until, outer: "a-1".into() };
            vec![event(3, "a-2", What::Asked), event(4, "a-2", what)]
        };
        let ends = || event(5, "a-2", What::ReleaseSent);
        assert_eq!(with(|e| e.extend(enter(10, 100).into_iter().chain([ends()]))), []);
        let found = with(|e| e.extend(enter(11, 100).into_iter().chain([ends()])));
        assert!(matches!(&found[..], [Violation::Reentry { .. }]), "{found:?}");
        // What goes on after the outer hold ended is in the way of the next.
        let found = with(|e| e.extend(enter(10, 12)));
        assert!(matches!(&found[..], [Violation::Overlap { nanos: 1, .. }]), "{found:?}");
    }

    #[test]
    fn served_out_of_turn() {
        let swap = |e: &mut Vec<Event>| {
            for event in e.iter_mut().filter(|e| e.at > 10 && e.at < 16) {
                event.who = if event.who == "b-1" { "c-1".into() } else { "b-1".into() };
            }
        };
        let found = with(swap);
        assert!(
            matches!(&found[..], [Violation::OutOfTurn { passed, by, .. }]
                if passed == "b-1" && by == "c-1"),
            "{found:?}"
        );
        let mut events = good();
        swap(&mut events);
        assert_eq!(check(&events, Rules { fifo: false }), []);
        // Who asked before the other was known to stand in line passed nobody.
        let found = with(|e| {
            swap(e);
            e[3].at = 5;
        });
        assert_eq!(found, []);
    }

    #[test]
    fn forgotten_requests() {
        let found = with(|e| e.retain(|e| e.who != "c-1" || e.at < 10));
        assert!(
            matches!(&found[..], [Violation::Forgotten { who, .. }] if who == "c-1"),
            "{found:?}"
        );
        // A process that was killed forgot by itself, and one that gave up was answered.
        let killed =
            |e: &mut Vec<Event>| e.retain(|e| e.who != "c-" && (e.who != "c-1" || e.at < 10));
        assert_eq!(with(killed), []);
        let gave_up = |e: &mut Vec<Event>| {
            e.retain(|e| e.who != "c-1" || e.at < 10);
            e.push(event(13, "c-1", What::GaveUp));
        };
        assert_eq!(with(gave_up), []);
    }
}
