//! What a run showed, in one mark and a few words.

use super::escape::count;
use crate::record::{Expect, Run, Verdict, Violation, Write};

/// What can be counted in a run's history.
pub(super) struct Shown {
    /// Two guards of one lock were valid at once.
    pub(super) two_holders: bool,
    /// Writes to a resource that compares tokens.
    pub(super) fenced: usize,
    /// Those it refused.
    pub(super) refused: usize,
    /// Those it took although they came too late: the fence failed.
    pub(super) went_back: usize,
}

impl Shown {
    pub(super) fn by(run: &Run) -> Self {
        let fenced = || run.writes.iter().filter(|write| write.fenced);
        Shown {
            two_holders: !run.overlaps.is_empty(),
            fenced: fenced().count(),
            refused: fenced().filter(|write| !write.accepted).count(),
            went_back: fenced().filter(|write| came_late(run, write)).count(),
        }
    }
}

/// Whether the resource took a write that it should have refused: the checker of the resource says
/// so, of that moment. The tokens alone cannot tell, because a lock may guard several resources and
/// each knows only the tokens it has seen itself.
pub(super) fn came_late(run: &Run, write: &Write) -> bool {
    let at_the_resource = |found: &&Violation| found.checker.starts_with("C3");
    write.accepted
        && run.violations.iter().filter(at_the_resource).any(|found| found.at == Some(write.at))
}

/// A run's outcome at a glance. Each has a shape of its own: colour alone would not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Clean, as expected.
    Clean,
    /// Something went wrong, as expected.
    Harm,
    /// Two holders at once, as expected.
    TwoHolders,
    /// Not what was expected.
    Unexpected,
}

impl Mark {
    pub(super) fn of(run: &Run) -> Self {
        match (run.verdict, run.expect) {
            (Verdict::Unexpected, _) => Mark::Unexpected,
            // Also where no checker minds, because the store never promised otherwise.
            _ if !run.overlaps.is_empty() => Mark::TwoHolders,
            (_, Expect::Clean) => Mark::Clean,
            (_, Expect::Violates) => Mark::Harm,
        }
    }

    pub(super) fn glyph(self) -> &'static str {
        match self {
            Mark::Clean => "✓",
            Mark::Harm => "▲",
            Mark::TwoHolders => "◐",
            Mark::Unexpected => "✗",
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Mark::Clean => "clean",
            Mark::Harm => "harm",
            Mark::TwoHolders => "two",
            Mark::Unexpected => "bad",
        }
    }
}

/// `two holders, as expected; fence held`
pub(super) fn words(run: &Run) -> String {
    let shown = Shown::by(run);
    let came = match Mark::of(run) {
        Mark::Clean => "clean, as expected",
        Mark::Harm => "went wrong, as expected",
        Mark::TwoHolders => "two holders, as expected",
        Mark::Unexpected => match (run.expect, shown.two_holders) {
            (Expect::Violates, _) => "unexpected: nothing went wrong, and it had to",
            (Expect::Clean, true) => "unexpected: two holders",
            (Expect::Clean, false) if run.violations.is_empty() => {
                "unexpected: it did not come to its end"
            }
            (Expect::Clean, false) => "unexpected: a checker found something",
        },
    };
    let fence = match &shown {
        Shown { fenced: 0, .. } => String::new(),
        Shown { went_back: 0, refused: 0, .. } => "; fence held".to_owned(),
        Shown { went_back: 0, refused, .. } => {
            format!("; fence held ({} refused)", count(*refused, "late write", "late writes"))
        }
        Shown { went_back, .. } => {
            format!("; {} past the fence", count(*went_back, "late write", "late writes"))
        }
    };
    format!("{came}{fence}")
}

/// Nanoseconds as people read them.
pub(super) fn seconds(nanos: u64) -> String {
    let seconds = nanos as f64 / 1e9;
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{:.0} ms", s * 1e3),
    }
}
