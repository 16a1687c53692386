//! How the name of a lock becomes its keys, and back.
//!
//! The keys of a lock are `dl:{SPACE:NAME}`, with everything that could end the hash tag
//! percent-encoded, and others that begin so: all keys of one lock share one slot, and every name has
//! keys of its own.

use distlock_core::{FullName, Name, Namespace};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

/// What stands before every key of ours: one pattern in the server's access rules covers them.
pub(crate) const PREFIX: &str = "dl:";

/// Braces would move or end the hash tag; the percent sign is what we write them with; the colon
/// parts the namespace from the name and cannot be in the former.
const AWKWARD: &AsciiSet = &CONTROLS.add(b'%').add(b'{').add(b'}');

/// The keys of one lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Keys {
    /// The record of the lock: a string. The other keys begin with it.
    pub(crate) lock: String,
}

impl Keys {
    /// The keys of a lock.
    pub(crate) fn of(lock: &FullName) -> Self {
        let name = utf8_percent_encode(lock.name.as_str(), AWKWARD);
        Self { lock: format!("{PREFIX}{{{}:{name}}}", lock.space) }
    }

    /// Every key of the lock, in the order in which the scripts expect them: the record, the queue
    /// by place, by deadline and by claim, and the tombstones.
    pub(crate) fn all(&self) -> [Vec<u8>; 5] {
        let part = |p: &[u8]| [self.lock.as_bytes(), p].concat();
        [part(b""), part(b":q"), part(b":d"), part(b":w"), part(b":z")]
    }

    /// The lock that a record's key is of; `None` for a key of something else.
    pub(crate) fn lock_of(key: &[u8]) -> Option<FullName> {
        let key = key.strip_prefix(PREFIX.as_bytes())?.strip_prefix(b"{")?.strip_suffix(b"}")?;
        let colon = key.iter().position(|b| *b == b':')?;
        let space = std::str::from_utf8(&key[..colon]).ok()?;
        let name = percent_decode(&key[colon + 1..]).decode_utf8().ok()?;
        Some(FullName { space: Namespace::new(space).ok()?, name: Name::new(name).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_key_of_its_own_and_comes_back() {
        for space in ["", "shop"] {
            for name in
                ["a", "{", "}", "{}", "a}b{c", "%7B", "a:b", "two words", "l\nb", "锁", "*?["]
            {
                let lock = FullName {
                    space: Namespace::new(space).unwrap(),
                    name: Name::new(name).unwrap(),
                };
                let keys = Keys::of(&lock);
                let tag = &keys.lock[PREFIX.len() + 1..keys.lock.len() - 1];
                assert!(!tag.contains(['{', '}']) && !tag.is_empty(), "{keys:?}");
                assert_eq!(Keys::lock_of(keys.lock.as_bytes()), Some(lock));
            }
        }
        assert_eq!(Keys::lock_of(b"dl:epoch"), None);
        assert_eq!(Keys::lock_of(b"dl:{:a}:q"), None);
    }
}
