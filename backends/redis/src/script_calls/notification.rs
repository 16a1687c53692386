//! The pub/sub messages that scripts send to waiters and holders.

use distlock_core::{Event, FullName, Key, LossReason, ReqId, Wake};

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// `t`: it may be this request's turn; `c`: somebody began to wait for this hold; `x`: this hold
    /// was taken away.
    pub(crate) kind: u8,
    pub(crate) key: Key,
}

impl Message {
    /// Reads a message: one byte for the kind, the request, the key of the lock's record. `None`
    /// for anything else, which somebody else must have sent.
    pub(crate) fn parse(
        bytes: &[u8],
        lock_of: impl FnOnce(&[u8]) -> Option<FullName>,
    ) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (req, lock) = rest.split_first_chunk::<16>()?;
        if !b"tcx".contains(kind) {
            return None;
        }
        Some(Self { kind: *kind, key: Key { lock: lock_of(lock)?, req: ReqId::from_bytes(*req) } })
    }

    /// What it means to a driver.
    pub(crate) fn wake(self) -> Wake {
        match self.kind {
            b't' => Wake::Confirm(self.key.req),
            b'c' => Wake::Event(Event::Contended(self.key)),
            _ => Wake::Event(Event::Lost(self.key, LossReason::Revoked)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    #[test]
    fn what_somebody_else_sent_is_no_message() {
        let text = |head: &[u8], key: &str| [head, &[7; 16], key.as_bytes()].concat();
        let turn = Message::parse(&text(b"t", "dl:{shop:a%7B}"), Keys::lock_of).expect("a message");
        assert_eq!((turn.kind, turn.key.req), (b't', ReqId::from_bytes([7; 16])));
        assert_eq!(turn.key.lock.to_string(), "shop:a{");
        for odd in [text(b"q", "dl:{:a}"), text(b"t", "dl:epoch"), text(b"", "x"), Vec::new()] {
            assert_eq!(Message::parse(&odd, Keys::lock_of), None);
        }
    }
}
