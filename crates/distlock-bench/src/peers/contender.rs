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
/// The name of the raw calls.
pub(crate) const RAW: &str = "raw calls";

/// The stores that have peers.
pub(crate) const STORES: [&str; 4] = ["redis", "postgres", "etcd", "zookeeper"];

const fn peer(peer: &'static str, language: Language) -> Contender {
    Contender { peer, language, hand_over: None }
}

/// Every grant comes from the store. A row with `hand_over: Some(true)` goes beside it once there is a
/// hand-over within the process.
const FROM_THE_STORE: Contender =
    Contender { hand_over: Some(false), ..peer(OURS, Language::Rust) };

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
    let ours = [peer(RAW, Language::Rust), FROM_THE_STORE];
    ours.into_iter().chain(peers.iter().copied()).collect()
}
