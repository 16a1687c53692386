//! What the scripts publish to a client's channel.

use distlock_core::ReqId;
use distlock_core::seam::Key;

use crate::keys::Keys;

/// What a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It may be this request's turn.
    Turn,
    /// Somebody began to wait for this hold.
    Contended,
    /// This hold was taken away.
    Revoked,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
}

impl Message {
    /// Reads a message: one byte for the kind, the request, the key of the lock's record. `None`
    /// for anything else, which somebody else must have sent.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (req, lock) = rest.split_first_chunk::<16>()?;
        let kind = match kind {
            b't' => Kind::Turn,
            b'c' => Kind::Contended,
            b'x' => Kind::Revoked,
            _ => return None,
        };
        Some(Self { kind, key: Key { lock: Keys::lock_of(lock)?, req: ReqId::from_bytes(*req) } })
    }
}
