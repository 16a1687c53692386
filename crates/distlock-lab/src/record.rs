//! What a run of the lab leaves behind: one JSON file, from which the report page is made.
//!
//! Times are nanoseconds from the start of their run, on the host's boot clock.

use serde::{Deserialize, Serialize};

/// Everything of one call of the lab.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The seed that all plans came from.
    pub seed: u64,
    /// When it began, as in RFC 3339.
    pub started: String,
    /// The version of distlock.
    pub version: String,
    /// The stores, in the order of the lab.
    pub stores: Vec<String>,
    /// The stories, in the order of the lab.
    pub stories: Vec<Story>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// One story.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Story {
    /// Its name on the command line.
    pub id: String,
    /// Its title.
    pub title: String,
    /// What one learns from it, in a sentence.
    pub teaches: String,
}

/// What a run was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A story as it should be.
    Story,
    /// The same without what keeps it safe: it must go wrong.
    Control,
    /// Random faults under random work.
    Random,
}

/// What a run was expected to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// No violation.
    Clean,
    /// A violation, of the kind the story names.
    Violates,
}

/// Whether it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It did.
    AsExpected,
    /// It did not, or it did not come to its end.
    Unexpected,
}

/// One run of one story, or one round of random faults.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The store.
    pub store: String,
    /// The story; `random` for a round.
    pub story: String,
    /// What it was for.
    pub kind: Kind,
    /// Which of several.
    pub round: u32,
    /// The seed that gives the same plan again.
    pub seed: u64,
    /// What was expected.
    pub expect: Expect,
    /// Whether it came so.
    pub verdict: Verdict,
    /// What happened, in one sentence.
    pub said: String,
    /// How long it took.
    pub nanos: u64,
    /// The names of the clients.
    pub clients: Vec<String>,
    /// How many grants there were.
    pub grants: u32,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// Who held what and when.
    pub holds: Vec<Hold>,
    /// Who waited for what and when.
    pub waits: Vec<Wait>,
    /// What was done to whom.
    pub faults: Vec<Fault>,
    /// What was written to what the locks protect.
    pub writes: Vec<Write>,
    /// When two held one lock.
    pub overlaps: Vec<Overlap>,
    /// What the checkers found.
    pub violations: Vec<Violation>,
}

/// How a hold ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Given back.
    Released,
    /// Its holder found out that it was lost.
    Lost,
    /// Its process was killed.
    Killed,
    /// It ran out, and its holder did not look.
    Expired,
    /// It was valid to the end of the run.
    Open,
}

/// A client believed in a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// Which client.
    pub client: usize,
    /// Which lock.
    pub lock: usize,
    /// With which token.
    pub token: u64,
    /// From when.
    pub from: u64,
    /// Until when.
    pub until: u64,
    /// How it ended.
    pub end: End,
}

/// A client waited for a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// Which client.
    pub client: usize,
    /// For which lock.
    pub lock: usize,
    /// From when.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

/// Something was done to a client or a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// When.
    pub at: u64,
    /// When it was over, if it was.
    pub until: Option<u64>,
    /// What.
    pub what: String,
    /// To whom.
    pub whom: String,
}

/// A write to what a lock protects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// When.
    pub at: u64,
    /// By which client.
    pub client: usize,
    /// To what this lock protects.
    pub lock: usize,
    /// With which token.
    pub token: Option<u64>,
    /// Whether it was let in.
    pub accepted: bool,
    /// Whether the token was looked at.
    pub fenced: bool,
}

/// Two believed in one lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Overlap {
    /// Which lock.
    pub lock: usize,
    /// From when.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

/// What a checker found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// Which checker: `C1` to `C8`.
    pub checker: String,
    /// What is wrong.
    pub what: String,
    /// When, if it has a moment.
    pub at: Option<u64>,
}
