//! What the scripts publish to a client's channel: one byte for the kind, the request, the key of
//! the lock's record.

use distlock_core::backend::{Event, Key};
use distlock_core::lease::Wake;
use distlock_core::{LossReason, ReqId};

use super::names;

/// What a message means; `None` for one that is not ours.
pub(crate) fn read(message: &[u8]) -> Option<Wake> {
    let (kind, rest) = message.split_first()?;
    let (req, lock) = rest.split_first_chunk::<16>()?;
    let key = Key { lock: names::lock_of(lock)?, req: ReqId::from_bytes(*req) };
    match kind {
        b't' => Some(Wake::Turn(key.req)),
        b'c' => Some(Wake::Event(Event::Contended(key))),
        b'x' => Some(Wake::Event(Event::Lost(key, LossReason::Revoked))),
        _ => None,
    }
}
