//! Who is measured on which store.

use serde::{Deserialize, Serialize};

/// The language of a contender's program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Language {
    /// A part of this benchmark.
    Rust,
    /// A Rust program of its own, for a crate whose dependencies the workspace does not need.
    #[serde(rename = "Rust (apart)")]
    RustApart,
    Go,
    Java,
    Python,
    #[serde(rename = "Node.js")]
    Node,
}

impl Language {
    /// As the page calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Rust | Self::RustApart => "Rust",
            Self::Go => "Go",
            Self::Java => "Java",
            Self::Python => "Python",
            Self::Node => "Node.js",
        }
    }
}

/// Ours, somebody else's lock, or raw calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contender {
    pub(crate) peer: &'static str,
    pub(crate) language: Language,
    /// Ours alone: whether tasks of a process hand a lock over without the store.
    pub(crate) hand_over: Option<bool>,
}

/// The name of ours.
pub(crate) const OURS: &str = "distlock";
/// Ours in strict order, to its program.
pub(crate) const STRICT: &str = "distlock-strict";
/// The name of the raw calls.
pub(crate) const RAW: &str = "raw calls";

/// The stores that have peers.
pub(crate) const STORES: [&str; 4] = ["redis", "postgres", "etcd", "zookeeper"];

const fn peer(peer: &'static str, language: Language) -> Contender {
    Contender { peer, language, hand_over: None }
}

/// As it is used without a word.
const HANDED_OVER: Contender = Contender { hand_over: Some(true), ..peer(OURS, Language::Rust) };
/// In strict order: every grant comes from the store.
const FROM_THE_STORE: Contender =
    Contender { hand_over: Some(false), ..peer(OURS, Language::Rust) };

impl Contender {
    /// What its program is told to be.
    pub(crate) fn role(&self) -> &'static str {
        if self.hand_over == Some(false) { STRICT } else { self.peer }
    }
}

/// Who is measured there, ours and the raw calls first.
pub(crate) fn contenders(store: &str) -> Vec<Contender> {
    let peers: &[Contender] = match store {
        "redis" => &[
            peer("rslock", Language::Rust),
            peer("distributed-lock-redis", Language::RustApart),
            peer("redsync", Language::Go),
            peer("RLock", Language::Java),
            peer("RFencedLock", Language::Java),
            peer("redis-py", Language::Python),
            peer("redlock", Language::Node),
        ],
        "postgres" => &[peer("PgAdvisoryLock", Language::Rust)],
        "etcd" => &[peer("lock service", Language::Rust), peer("concurrency.Mutex", Language::Go)],
        "zookeeper" => &[
            peer("zookeeper-client", Language::Rust),
            peer("InterProcessMutex", Language::Java),
            peer("kazoo", Language::Python),
        ],
        _ => &[],
    };
    let ours = [peer(RAW, Language::Rust), HANDED_OVER, FROM_THE_STORE];
    ours.into_iter().chain(peers.iter().copied()).collect()
}
