//! What the scripts publish to a client's channel.

use distlock_core::ReqId;
use distlock_core::backend::Key;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_sent_is_no_message() {
        let text = |head: &[u8], key: &str| [head, &[7; 16], key.as_bytes()].concat();
        let turn = Message::parse(&text(b"t", "dl:{shop:a%7B}")).expect("a message");
        assert_eq!((turn.kind, turn.key.req), (Kind::Turn, ReqId::from_bytes([7; 16])));
        assert_eq!(turn.key.lock.to_string(), "shop:a{");
        for odd in [text(b"q", "dl:{:a}"), text(b"t", "dl:epoch"), text(b"", "x"), Vec::new()] {
            assert_eq!(Message::parse(&odd), None);
        }
    }
}
