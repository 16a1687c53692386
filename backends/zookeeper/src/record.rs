//! The content of an entry's node: the request. Other kinds of clients put there what they like.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::{Ask, Label, Owner, ReqId};
use serde::{Deserialize, Serialize};

/// The layout's version.
const VERSION: u32 = 1;

/// An entry's data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(rename = "distlock")]
    version: u32,
    pub(crate) req: ReqId,
    pub(crate) owner: Owner,
    pub(crate) label: Label,
    /// The session's timeout, in milliseconds.
    ttl: u64,
    /// How many tokens it asked for.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) tokens: NonZeroU32,
    /// An operator took it away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
}

/// The default of `tokens`: an entry without the field has a single token.
pub(crate) fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn is_one(tokens: &NonZeroU32) -> bool {
    *tokens == one()
}

impl Record {
    pub(crate) fn of(ask: &Ask, ttl: Duration) -> Self {
        Self {
            version: VERSION,
            req: ask.req,
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            ttl: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            tokens: ask.block,
            revoked: false,
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `None` for what another kind of client wrote, or a newer one of ours: such an entry is
    /// somebody's, and that is all that is known of it.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok().filter(|r: &Self| r.version == VERSION)
    }

    /// The same, taken away by an operator.
    pub(crate) fn marked(self) -> Self {
        Self { revoked: true, ..self }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }
}
