//! The quarantine: after a server may have lost locks, nobody is granted one until every lock that
//! could have been lost has run out.
//!
//! 1. Every new connection reads the server's epoch: run id, start time, and the replication id it
//!    followed before a promotion.
//! 2. A marker in the store, replicated like the locks, says which life was seen last.
//! 3. Another life: a lock granted before it began may be missing here. A restart began with the
//!    server; when a promotion happened is not known, so it counts from now.
//! 4. Until `max_ttl` (and a slack, at a node of a quorum) after that this client grants nothing: it
//!    does not even ask. Renewals and releases go on.
//! 5. The marker also holds the `max_ttl` that all clients agreed on, those without a quarantine too.
//!    Every script that writes a lease compares it, so that no lease outlives a quarantine; every
//!    client puts off the marker's end while it is connected.
//!
//! A grant becomes a guard only through an acquire of a client that has passed this, so promotions
//! by the scripts need no check. What cannot be seen: `FLUSHALL`, and keys deleted by hand.

use std::sync::LazyLock;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Human, Kind};
use redis::Value;

use crate::connection::{Call, Script};
use crate::server_info::{Facts, START_ERROR};

static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new("quarantine", include_str!("quarantine.lua").to_owned()));

/// How long the marker outlives the last connected client.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// The time in which nothing is granted, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quarantine {
    pub(crate) until: BootInstant,
    /// Why: a replica was promoted, or the server started.
    pub(crate) promoted: bool,
}

impl Quarantine {
    /// How long it still lasts, and why, in words.
    pub(crate) fn left(&self, clock: &Clock) -> Option<(Duration, String)> {
        let left = self.until.since(clock.now());
        if left.is_zero() {
            return None;
        }
        let what = match self.promoted {
            true => "a replica was promoted and may lack the latest locks",
            false => "the server started a moment ago without durable data",
        };
        Some((left, format!("{what}: granting in {}", Human(left))))
    }
}

/// What the clients of a server agreed on, as its scripts hold them to it: the longest TTL. And how
/// long a name is remembered, which each may say for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agreed {
    /// The key of the marker that says so at the server; `None` where no script can read it with a
    /// lock, because in a cluster it is in another slot.
    pub(crate) marker: Option<String>,
    pub(crate) max_ttl: Duration,
    /// How long a name that nobody uses is remembered.
    pub(crate) keep: Duration,
}

impl Agreed {
    /// No bound, for tests of the scripts alone.
    #[cfg(test)]
    pub(crate) const NONE: Self =
        Self { marker: None, max_ttl: Duration::MAX, keep: Duration::from_secs(24 * 3600) };

    /// The three arguments of every script that writes a lease: the marker's key or nothing, the
    /// longest TTL, and how long to remember, in microseconds. A script refuses to run when the marker
    /// says another TTL.
    pub(crate) fn args(&self) -> [Vec<u8>; 3] {
        let marker = self.marker.clone().unwrap_or_default();
        let micros = |d: Duration| d.as_micros().to_string().into_bytes();
        [marker.into_bytes(), micros(self.max_ttl), micros(self.keep)]
    }
}

/// The marker's key where there is one server.
pub(crate) fn marker(prefix: &str) -> String {
    format!("{prefix}epoch")
}

/// The question whether this life of the server is known.
pub(crate) fn ask(marker: &str, facts: &Facts, max_ttl: Duration, slack: Duration) -> Call {
    let flag = |b: bool| if b { "1" } else { "0" }.to_owned();
    let args = [
        facts.epoch(),
        facts.boot.to_string(),
        flag(facts.promoted()),
        flag(facts.durable),
        max_ttl.as_micros().to_string(),
        KEEP.as_millis().to_string(),
        slack.as_micros().to_string(),
        START_ERROR.to_string(),
    ];
    Call {
        script: &SCRIPT,
        keys: vec![marker.into()],
        args: args.into_iter().map(String::into_bytes).collect(),
    }
}

/// What must be assumed of a server where no marker can be: one that is about to get its first slot
/// of a cluster, or whose slots have just moved.
pub(crate) fn unmarked(facts: &Facts, max_ttl: Duration, clock: &Clock) -> Quarantine {
    let since = match facts.promoted() {
        true => Duration::ZERO,
        false if facts.durable => max_ttl,
        false => Duration::from_micros(facts.now.saturating_sub(facts.boot)),
    };
    let until = clock.now().plus(max_ttl.saturating_sub(since));
    Quarantine { until, promoted: facts.promoted() }
}

/// What the answer means.
pub(crate) fn read(
    answer: Value,
    marker: &str,
    facts: &Facts,
    max_ttl: Duration,
    clock: &Clock,
) -> Result<Quarantine, Error> {
    let (word, number): (String, u64) = redis::from_redis_value(answer).map_err(|e| {
        Error::new(Kind::Layout, "the marker of the server's life makes no sense")
            .because(e)
            .with_hint(format!("delete the key {marker} while no client runs"))
    })?;
    if word == "MAX" {
        let theirs = Duration::from_micros(number);
        return Err(Error::new(
            Kind::Refused,
            format!("the clients of this server agreed on max_ttl={}", Human(theirs)),
        )
        .with_hint(format!(
            "connect with the same ?max_ttl= (this client has {}), or delete the key {marker} \
             while no client runs",
            Human(max_ttl)
        )));
    }
    let until = clock.now().plus(Duration::from_micros(number));
    Ok(Quarantine { until, promoted: facts.promoted() })
}
