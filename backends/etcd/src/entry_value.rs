//! What an entry says of itself.

use std::time::Duration;

use distlock_core::backend::Ask;
use distlock_core::queue::Entry;
use distlock_core::{Label, Mode, Owner, ReqId, Token};
use serde::{Deserialize, Serialize};

use crate::keys;
use crate::wire::proto::KeyValue;

/// The low bits of a token are for hand-over inside a process. Fixed for ever.
const LOCAL_BITS: u32 = 16;

/// The value of an entry's key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Who sits there.
    pub(crate) req: ReqId,
    owner: Owner,
    label: Label,
    #[serde(default)]
    mode: Mode,
    /// The client's wall clock when it joined, in microseconds: for people.
    at: u64,
    /// In seconds.
    ttl: u64,
    /// Taken away by an operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
}

impl Meta {
    pub(crate) fn of(ask: &Ask, wall_micros: u64) -> Self {
        let (owner, label, mode) = (ask.owner.clone(), ask.label.clone(), ask.mode);
        let (req, ttl) = (ask.req, ask.ttl.as_secs());
        Self { req, owner, label, mode, at: wall_micros, ttl, revoked: false }
    }

    /// What a value says; `None` for one of another kind of client.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The token of an entry made at a revision.
pub(crate) fn token(created: i64) -> Token {
    let revision = u64::try_from(created).unwrap_or(0).max(1);
    Token::new(revision << LOCAL_BITS).unwrap_or(Token::MAX)
}

/// The revision behind a token.
pub(crate) fn revision(token: Token) -> i64 {
    i64::try_from(token.get() >> LOCAL_BITS).unwrap_or(i64::MAX)
}

/// An entry as it is told.
pub(crate) fn told(kv: &KeyValue, wall_micros: u64) -> Entry {
    let spot = keys::spot(&String::from_utf8_lossy(&kv.key), kv.create_revision);
    let meta = Meta::read(&kv.value);
    let age = |m: &Meta| Duration::from_micros(wall_micros.saturating_sub(m.at));
    Entry {
        token: token(kv.create_revision),
        req: meta.as_ref().map(|m| m.req),
        owner: meta.as_ref().map(|m| m.owner.clone()),
        label: meta.as_ref().map_or_else(|| Label::new("another client"), |m| m.label.clone()),
        mode: meta.as_ref().map_or(Mode::Exclusive, |m| m.mode),
        age: meta.as_ref().map_or(Duration::ZERO, age),
        left: meta.as_ref().map(|m| Duration::from_secs(m.ttl)),
        lingering: false,
        revoked: meta.as_ref().is_some_and(|m| m.revoked),
        spot,
    }
}
