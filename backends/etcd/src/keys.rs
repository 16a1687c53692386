//! How a lock's name becomes keys.
//!
//! A lock is the prefix `/distlock/NAME/`, in a namespace `/distlock/SPACE:NAME/`, and every entry in
//! its queue a key below it. `etcdctl lock /distlock/NAME` does the same, so the two exclude each
//! other. What could be read as structure is percent-encoded: `orders` and `orders/42` are two
//! locks, neither below the other.
//!
//! The key of an entry ends in `LEASE-NUMBER` and serves one request after the other: etcd keeps every
//! key it ever saw until it compacts, and walks over those of a lock with each join. The value says
//! which request an entry is of; the create revision tells the entries at one key apart. So an entry is
//! remembered and watched by both: its spot.

use distlock_core::queue::Spot;
use distlock_core::{FullName, Name, Namespace, ReqId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

/// What every key of ours begins with: one prefix in the cluster's access rules covers them.
pub(crate) const PREFIX: &str = "/distlock/";
/// The version of this layout. No lock can be called so: an empty namespace writes no colon.
pub(crate) const LAYOUT: &str = "/distlock/:layout";
const GONE: &str = "/distlock/:gone/";
/// A key that is never there: to delete it makes a transaction a write that changes nothing.
pub(crate) const NOTHING: &str = "/distlock/:nothing";

/// The slash ends a name, the colon ends a namespace, the percent sign is what we write them with.
const AWKWARD: &AsciiSet = &CONTROLS.add(b'%').add(b'/').add(b':');

/// What a name, or the beginning of one, is in a key.
fn encoded(name: &str) -> String {
    utf8_percent_encode(name, AWKWARD).to_string()
}

/// The prefix of all locks of a namespace whose names begin so. Without a namespace it covers
/// those of every namespace, too.
pub(crate) fn of_names(space: &Namespace, beginning: &str) -> String {
    match space.as_str() {
        "" => format!("{PREFIX}{}", encoded(beginning)),
        space => format!("{PREFIX}{space}:{}", encoded(beginning)),
    }
}

/// The prefix of a lock's entries.
pub(crate) fn queue(lock: &FullName) -> String {
    format!("{}/", of_names(&lock.space, lock.name.as_str()))
}

/// The key of an entry in a lock's queue.
pub(crate) fn entry(lock: &FullName, lease: i64, number: u32) -> String {
    format!("{}{lease:x}-{number}", queue(lock))
}

/// The spot of an entry: its key and create revision.
pub(crate) fn spot(key: &str, created: i64) -> Spot {
    format!("{key}@{created}").into()
}

/// The key of a spot.
pub(crate) fn of_spot(spot: &str) -> &str {
    spot.rsplit_once('@').map_or(spot, |(key, _)| key)
}

/// The create revision of a spot.
pub(crate) fn created(spot: &str) -> i64 {
    spot.rsplit_once('@').and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
}

/// The prefix that an entry is below.
pub(crate) fn queue_of(entry: &str) -> &str {
    &entry[..entry.rfind('/').map_or(0, |slash| slash + 1)]
}

/// The tombstone of a request: it left for good.
pub(crate) fn tombstone(req: ReqId) -> String {
    format!("{GONE}{req}")
}

/// The first key after all that begin with a prefix.
pub(crate) fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// The lock that an entry is of, and what follows; `None` for a key of something else.
pub(crate) fn parse(key: &[u8]) -> Option<(FullName, &str)> {
    let (lock, rest) = std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?.split_once('/')?;
    let (space, name) = lock.split_once(':').map_or(("", lock), |(space, name)| (space, name));
    if lock.starts_with(':') {
        return None;
    }
    let name = percent_decode(name.as_bytes()).decode_utf8().ok()?;
    let lock = FullName { space: Namespace::new(space).ok()?, name: Name::new(name).ok()? };
    Some((lock, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_keys_of_its_own_and_comes_back() {
        let req = ReqId::random();
        let mut seen = std::collections::BTreeSet::new();
        for space in ["", "shop"] {
            for name in ["a", "a/b", "a:b", "%2F", "shop:a", ":gone", "two words", "l\nb", "锁"] {
                let lock = FullName {
                    space: Namespace::new(space).unwrap(),
                    name: Name::new(name).unwrap(),
                };
                let key = entry(&lock, i64::MAX, 7);
                assert_eq!(key.matches('/').count(), 3, "{key}");
                assert_eq!(queue_of(&key), queue(&lock));
                assert_eq!(parse(key.as_bytes()), Some((lock, "7fffffffffffffff-7")));
                assert_eq!((of_spot(&spot(&key, 42)), created(&spot(&key, 42))), (&*key, 42));
                assert!(seen.insert(key));
            }
        }
        assert_eq!(parse(tombstone(req).as_bytes()), None);
        assert_eq!(parse(LAYOUT.as_bytes()), None);
        assert_eq!(parse(NOTHING.as_bytes()), None);
        assert_eq!(of_spot(&spot("/a/b@c", 42)), "/a/b@c");
        assert_eq!(after("/a/"), b"/a0");
    }
}
