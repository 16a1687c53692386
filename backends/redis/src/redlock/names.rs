//! How a lock's name becomes keys at a node: as at one server, under a prefix of its own, so that
//! `redis://` and `redlock://` never share a key.

use distlock_core::{Error, FullName, Kind, Namespace};
use redis::Value;

use crate::keys::{self, Keys};
use crate::link::Link;

/// What stands before every key of a Redlock node.
pub(crate) const PREFIX: &str = "rl:";

/// How many keys the server looks at in one step: a step must not delay others.
const STEP: usize = 1000;

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

/// The key of the quarantine's marker.
pub(crate) fn marker() -> String {
    format!("{PREFIX}epoch")
}

/// The locks of a namespace whose names start with `prefix`: those with a record, or with the given
/// further key. In order of name.
pub(crate) async fn scan(
    link: &Link,
    space: &Namespace,
    prefix: &str,
    part: &str,
) -> Result<Vec<FullName>, Error> {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | ':');
    let sure: String = prefix.chars().take_while(plain).collect();
    // The end of the prefix may be encoded: what is found is looked at again.
    let pattern = format!("{PREFIX}{{{space}:{sure}*}}{part}");
    let (mut cursor, mut found) = (0u64, Vec::new());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let answer = link.wire.send(&cmd).await.map_err(|fault| fault.told())?;
        let (next, keys): (u64, Vec<Value>) = redis::from_redis_value(answer)
            .map_err(|e| Error::new(Kind::Store, "SCAN makes no sense").because(e))?;
        let ours = keys.iter().filter_map(|key| match key {
            Value::BulkString(key) => lock_of(key.strip_suffix(part.as_bytes())?),
            _ => None,
        });
        found.extend(ours.filter(|l| l.space == *space && l.name.as_str().starts_with(prefix)));
        cursor = next;
        if cursor == 0 {
            found.sort();
            found.dedup();
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

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
