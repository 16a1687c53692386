//! The moves of a lock as scripts: [`LockState::step`](distlock_core::state::LockState::step) in
//! Lua, one script a move.
//!
//! Each script is put together from three parts: the usual case, which touches the record alone
//! and stands before anything else is defined, because defining costs; the rules, shared by all;
//! and the move itself.

use std::sync::LazyLock;

use crate::call::Script;

/// Where a script has its time from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The server's clock: the only one that counts.
    Server,
    /// A key that a test sets.
    #[cfg(test)]
    Key,
}

impl Source {
    /// The line that reads it, in microseconds since 1970.
    const fn line(self) -> &'static str {
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
    pub(crate) heartbeat: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) cancel: Script,
    pub(crate) force: Script,
    pub(crate) inspect: Script,
}

/// What grants or queues must not run on a server that is out of memory.
const GROWS: &str = "#!lua\n";
/// What frees or keeps must.
const FREES: &str = "#!lua flags=allow-oom\n";
/// What only looks can run on a replica.
const LOOKS: &str = "#!lua flags=no-writes\n";

/// The keys of a lock that is waited for, without the tombstones.
const LINE: usize = 4;
/// The record alone.
const RECORD: usize = 1;

const RULES: &str = include_str!("scripts/rules.lua");

impl Scripts {
    /// Puts the scripts together.
    pub(crate) fn new(source: Source) -> Self {
        let script = |name, flags: &str, parts: &[&str]| {
            let code = flags.to_owned() + &parts.concat().replace("--@now", source.line());
            Script::new(name, code)
        };
        macro_rules! full {
            ($name:literal, $flags:expr) => {
                script(
                    $name,
                    $flags,
                    &[
                        include_str!(concat!("scripts/", $name, ".fast.lua")),
                        RULES,
                        include_str!(concat!("scripts/", $name, ".lua")),
                    ],
                )
            };
        }
        Self {
            acquire: full!("acquire", GROWS).fewer(&[LINE, RECORD]),
            heartbeat: full!("heartbeat", FREES).fewer(&[LINE]),
            renew: full!("renew", FREES).fewer(&[LINE, RECORD]),
            release: full!("release", FREES).fewer(&[LINE, RECORD]),
            cancel: full!("cancel", FREES),
            force: full!("force", FREES),
            inspect: script("inspect", LOOKS, &[include_str!("scripts/inspect.lua")])
                .fewer(&[LINE, RECORD]),
        }
    }
}

/// The scripts, on the server's clock.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Source::Server));
