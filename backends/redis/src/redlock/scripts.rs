//! The moves of a node as scripts: [`NodeState::step`](distlock_core::quorum::NodeState::step) in
//! Lua, one script a move.
//!
//! Each is put together from the usual case, which touches the record alone and stands before
//! anything else is defined, because defining costs; the rules, shared by all; and the move itself.

use std::sync::LazyLock;

use crate::connection::Script;
pub(crate) use crate::scripts::Source;
use crate::scripts::{FREES, GROWS, LOOKS, agreed};

/// The scripts of all moves.
pub(crate) struct Scripts {
    pub(crate) propose: Script,
    pub(crate) heal: Script,
    pub(crate) commit: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) cancel: Script,
    pub(crate) force: Script,
    pub(crate) inspect: Script,
}

/// What stands before the rules where there is no usual case.
const BEGIN: &str = "local call, pack, unpack = redis.call, struct.pack, struct.unpack\n--@now\n";
const RULES: &str = include_str!("scripts/rules.lua");

impl Scripts {
    /// Puts the scripts together.
    pub(crate) fn new(source: Source) -> Self {
        let script = |name, flags: &str, parts: &[&str]| {
            let text = agreed(&parts.concat());
            let code = flags.to_owned() + &text.replace("--@now", source.line());
            Script::new(name, code)
        };
        macro_rules! text {
            ($name:literal) => {
                include_str!(concat!("scripts/", $name, ".lua"))
            };
        }
        let propose = [text!("propose.fast"), RULES, text!("propose")];
        let release = [text!("release.fast"), RULES, text!("release")];
        Self {
            propose: script("propose", GROWS, &propose),
            // Taking a lock again is keeping it: a full server must not lose what is held.
            heal: script("heal", FREES, &[BEGIN, RULES, text!("heal")]),
            commit: script("commit", FREES, &[BEGIN, RULES, text!("commit")]),
            renew: script("renew", FREES, &[BEGIN, RULES, text!("renew")]),
            release: script("release", FREES, &release),
            cancel: script("cancel", FREES, &[BEGIN, RULES, text!("cancel")]),
            force: script("force", FREES, &[BEGIN, RULES, text!("force")]),
            inspect: script("inspect", LOOKS, &[text!("inspect")]),
        }
    }
}

/// The scripts, on the server's clock.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Source::Server));
