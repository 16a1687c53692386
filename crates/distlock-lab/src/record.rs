//! What a run of the lab leaves behind: the JSON of `--json`, and all that the report is made of.
//!
//! Times are nanoseconds from the start of their run, on the host's shared clock. Clients and locks
//! are named once a run and then spoken of by their place in those lists.

use serde::{Deserialize, Serialize};

/// Everything one or several runs of the lab found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The seed all plans of faults come from.
    pub seed: u64,
    /// When the lab started, in RFC 3339.
    pub started: String,
    /// The version of distlock that was tried.
    pub version: String,
    /// The stores, in the order to show them.
    pub stores: Vec<String>,
    /// The stories, in the order to show them.
    pub stories: Vec<Story>,
    /// Each run, in the order they were made.
    pub runs: Vec<Run>,
    /// The seeded bugs, when they were tried.
    pub teeth: Vec<Tooth>,
}

/// A failure story: the same chain of events told on every store it fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// Its short name, as given to `--story`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// What one learns from it, in plain words.
    pub teaches: String,
}

/// One run: a store, a workload, faults, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The store it ran on.
    pub store: String,
    /// The story's id; for a random round the workload's.
    pub story: String,
    /// What sort of run it was.
    pub kind: Kind,
    /// Which round of its kind.
    pub round: u32,
    /// The seed of its own plan.
    pub seed: u64,
    /// What had to come out.
    pub expect: Expect,
    /// Whether it did.
    pub verdict: Verdict,
    /// What happened, in one sentence.
    pub said: String,
    /// How long it took.
    pub nanos: u64,
    /// The clients' names.
    pub clients: Vec<String>,
    /// How many times a lock was granted.
    pub grants: u32,
    /// The locks' names.
    pub locks: Vec<String>,
    /// When which client's guard was valid.
    pub holds: Vec<Hold>,
    /// When which client waited.
    pub waits: Vec<Wait>,
    /// What was done to clients, servers and the ways between them.
    pub faults: Vec<Fault>,
    /// What reached the resource that the lock protects.
    pub writes: Vec<Write>,
    /// Where two guards of one lock were valid at once.
    pub overlaps: Vec<Overlap>,
    /// What the checkers found.
    pub violations: Vec<Violation>,
}

/// What sort of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A story as a user would live it.
    Story,
    /// A story with a protection taken away: it must go wrong, or the checkers are blind.
    Control,
    /// A round of random faults.
    Random,
}

/// What has to come out of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// No checker finds anything.
    Clean,
    /// A checker finds something.
    Violates,
}

/// Whether what had to come out did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It did.
    AsExpected,
    /// It did not.
    Unexpected,
}

/// A guard, for as long as it was valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Whose.
    pub client: usize,
    /// Of which lock.
    pub lock: usize,
    /// With which fencing token.
    pub token: u64,
    /// Valid from.
    pub from: u64,
    /// Valid until.
    pub until: u64,
    /// How it ended.
    pub end: End,
}

/// How a guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Its client gave it back.
    Released,
    /// Its client was told that it is lost.
    Lost,
    /// Its client died.
    Killed,
    /// Its deadline passed.
    Expired,
    /// It was still valid when the run ended.
    Open,
}

/// A wait for a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Whose.
    pub client: usize,
    /// For which lock.
    pub lock: usize,
    /// Since.
    pub from: u64,
    /// Until granted, given up or cut short.
    pub until: u64,
}

/// Something that was broken on purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it began.
    pub at: u64,
    /// When it was healed, for one that lasts.
    pub until: Option<u64>,
    /// What was done, in a word or two.
    pub what: String,
    /// To whom: a client's name, or a server's.
    pub whom: String,
}

/// A write that reached the resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// When.
    pub at: u64,
    /// By whom.
    pub client: usize,
    /// Under which lock.
    pub lock: usize,
    /// With which token, when it carried one.
    pub token: Option<u64>,
    /// Whether the resource took it.
    pub accepted: bool,
    /// Whether the resource compared tokens.
    pub fenced: bool,
}

/// Two guards of one lock, valid at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Which lock.
    pub lock: usize,
    /// From.
    pub from: u64,
    /// Until.
    pub until: u64,
}

/// What a checker found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Which checker.
    pub checker: String,
    /// What it found, in words.
    pub what: String,
    /// When, where it has a moment.
    pub at: Option<u64>,
}

/// A bug put in on purpose, and whether the lab noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tooth {
    /// Its name.
    pub bug: String,
    /// What it does wrong, in words.
    pub says: String,
    /// The checker that caught it, if one did.
    pub caught_by: Option<String>,
    /// After how many rounds.
    pub rounds: u32,
    /// After how many seconds.
    pub seconds: f64,
}
