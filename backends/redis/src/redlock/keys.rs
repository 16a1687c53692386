//! How a lock's name becomes keys at a node: as at one server, under a prefix of its own, so that
//! `redis://` and `redlock://` never share a key.

use distlock_core::FullName;

use crate::keys::{self, Keys};

/// What stands before every key of a Redlock node.
pub(crate) const PREFIX: &str = "rl:";

/// The key of a lock's record. The other keys begin with it.
pub(crate) fn record(lock: &FullName) -> String {
    let key = Keys::of(lock).lock;
    format!("{PREFIX}{}", key.strip_prefix(keys::PREFIX).unwrap_or(&key))
}

/// The lock that a record's key is of; `None` for a key of something else.
pub(crate) fn lock_of(key: &[u8]) -> Option<FullName> {
    let rest = key.strip_prefix(PREFIX.as_bytes())?;
    Keys::lock_of(&[keys::PREFIX.as_bytes(), rest].concat())
}

#[cfg(test)]
mod tests {
    use distlock_core::{Name, Namespace};

    use super::*;

    #[test]
    fn keys_are_those_of_one_server_under_another_prefix() {
        for name in ["a", "{", "a}b{c", "a:b", "l\nb", "锁"] {
            let (space, name) = (Namespace::new("shop").unwrap(), Name::new(name).unwrap());
            let lock = FullName { space, name };
            let key = record(&lock);
            assert!(key.starts_with("rl:{shop:"), "{key}");
            assert_eq!(lock_of(key.as_bytes()), Some(lock));
        }
        assert_eq!(lock_of(b"dl:{:a}"), None);
        assert_eq!(lock_of(b"rl:epoch"), None);
        assert_eq!(lock_of(b"rl:{:a}:l"), None);
    }
}
