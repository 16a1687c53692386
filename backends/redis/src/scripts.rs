//! The moves of a lock as scripts: [`LockState::step`](distlock_core::state::LockState::step) in
//! Lua, one script a move.
//!
//! Each script is put together from three parts: the usual case, which touches the record alone
//! and stands before anything else is defined, because defining costs; of the rules what it needs;
//! and the move itself. `@NAME` in their text is a number from here.

use std::sync::LazyLock;

use distlock_core::Rules;

use crate::connection::Script;

/// Where a script has its time from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The server's clock: the only one that counts.
    Server,
    /// A key that a test sets.
    #[cfg(test)]
    Key,
}

/// How many released requests a lock remembers: calls are hardly ever delivered twice.
pub(crate) const RELEASED_CAP: usize = 8;
/// What one remembered request takes.
const RELEASED_BYTES: usize = 24;
/// What is added to the place of a waiter that is passed over. It stands behind all others then,
/// and the sum is still exact in a double.
pub(crate) const UNREACHABLE: u64 = 4_000_000_000_000_000;
/// At most so many waiters are dropped or tried in one call.
const STEP: usize = 1000;

/// The rules of this store.
pub(crate) fn rules() -> Rules {
    Rules { released_cap: RELEASED_CAP, ..Rules::default() }
}

/// What a name in the scripts stands for.
fn value(name: &str, source: Source) -> String {
    let rules = rules();
    let number = match name {
        "NOW" => return source.line().to_owned(),
        "HELD" => 0,
        "CLAIMED" => 1,
        "LINGERING" => 2,
        "REVOKED" => 3,
        "CLAIM" => rules.claim.as_micros(),
        "TOMBSTONE" => rules.tombstone.as_micros(),
        "AHEAD" => rules.ahead.as_micros(),
        "STONES" => rules.cancelled_cap as u128,
        "RING" => RELEASED_CAP as u128,
        "RINGBYTES" => (RELEASED_CAP * RELEASED_BYTES) as u128,
        "UNREACHABLE" => u128::from(UNREACHABLE),
        "STEP" => STEP as u128,
        "HOUR" => 3_600_000_000,
        "LEAST" => 120_000_000,
        other => unreachable!("the scripts speak of @{other}"),
    };
    number.to_string()
}

/// The line that keeps a script from running when the server's marker says another `max_ttl` than
/// its client has, or none: `@AGREED(N)` for the marker's key in the N-th argument and `max_ttl` in
/// the next. A quarantine is as long as the longest lease only if there is none longer.
pub(crate) fn agreed(text: &str) -> String {
    let mut parts = text.split("@AGREED(");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (at, rest) = part.split_once(')').unwrap_or_default();
        let max = at.parse::<usize>().unwrap_or_default() + 1;
        out += &format!(
            "if ARGV[{at}] ~= '' and redis.call('HGET', ARGV[{at}], 'max') ~= ARGV[{max}] then return redis.error_reply('DLMAX another max_ttl was agreed on') end{rest}"
        );
    }
    out
}

/// Fills in the names.
fn fill(text: &str, source: Source) -> String {
    let text = agreed(text);
    let mut parts = text.split('@');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(part.len());
        out += &value(&part[..end], source);
        out += &part[end..];
    }
    out
}

impl Source {
    /// The line that reads it, in microseconds since 1970.
    pub(crate) const fn line(self) -> &'static str {
        match self {
            Source::Server => "local now = redis.call('TIME') now = now[1] * 1000000 + now[2]",
            #[cfg(test)]
            Source::Key => "local now = tonumber(redis.call('GET', 'dl:clock'))",
        }
    }
}

/// The scripts of all moves.
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) acquire_many: Script,
    pub(crate) heartbeat: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) release_many: Script,
    pub(crate) cancel: Script,
    pub(crate) force: Script,
    pub(crate) inspect: Script,
}

/// What grants or queues must not run on a server that is out of memory.
pub(crate) const GROWS: &str = "#!lua\n";
/// What frees or keeps must.
pub(crate) const FREES: &str = "#!lua flags=allow-oom\n";
/// What only looks can run on a replica.
pub(crate) const LOOKS: &str = "#!lua flags=no-writes\n";

/// The keys of a lock that is waited for, without the tombstones.
const QUEUE: usize = 4;
/// The record alone.
const RECORD: usize = 1;

macro_rules! text {
    ($($part:literal),*) => {
        &[$(include_str!(concat!("scripts/", $part, ".lua"))),*]
    };
}

/// What stands before the rules where there is no usual case.
const BEGIN: &[&str] =
    &["local call, pack, unpack = redis.call, struct.pack, struct.unpack\nlocal v\n@NOW\n"];
/// The rules that every move needs.
const RULES: &[&str] =
    text!("rules/record", "rules/queue", "rules/holds", "rules/expire", "rules/promote");

impl Scripts {
    /// Puts the scripts together.
    pub(crate) fn new(source: Source) -> Self {
        let script = |name, flags: &str, parts: &[&[&str]]| {
            Script::new(name, flags.to_owned() + &fill(&parts.concat().concat(), source))
        };
        let acquire =
            text!("rules/waiter_heartbeat", "rules/ended", "rules/queue_status", "acquire");
        let heartbeat = text!("rules/waiter_heartbeat", "rules/queue_status", "heartbeat");
        let release = text!("rules/ended", "rules/tombstones", "rules/cancel_request", "release");
        let cancel = text!("rules/ended", "rules/tombstones", "rules/cancel_request", "cancel");
        let force = text!("rules/ended", "rules/tombstones", "force");
        Self {
            acquire: script("acquire", GROWS, &[text!("acquire.fast"), RULES, acquire])
                .fewer(&[QUEUE, RECORD]),
            acquire_many: script("acquire_many", GROWS, &[text!("acquire.many")]),
            release_many: script("release_many", FREES, &[text!("release.many")]),
            heartbeat: script("heartbeat", FREES, &[BEGIN, RULES, heartbeat]).fewer(&[QUEUE]),
            renew: script("renew", FREES, &[text!("renew.fast"), RULES, text!("renew")])
                .fewer(&[QUEUE, RECORD]),
            release: script("release", FREES, &[text!("release.fast"), RULES, release])
                .fewer(&[QUEUE, RECORD]),
            cancel: script("cancel", FREES, &[BEGIN, RULES, cancel]),
            force: script("force", FREES, &[BEGIN, RULES, force]),
            inspect: script("inspect", LOOKS, &[text!("inspect")]).fewer(&[QUEUE, RECORD]),
        }
    }
}

/// The scripts, on the server's clock.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Source::Server));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_in_production_knows_no_clock_but_the_servers() {
        let s = &*SCRIPTS;
        let some = [&s.acquire_many, &s.release_many, &s.heartbeat, &s.renew];
        for script in
            some.into_iter().chain([&s.acquire, &s.release, &s.cancel, &s.force, &s.inspect])
        {
            assert!(!script.code.contains("dl:"), "{}", script.name);
            assert_eq!(script.code.matches("'TIME'").count(), 1, "{}", script.name);
            assert!(!script.code.contains('@'), "{}", script.name);
        }
    }
}
