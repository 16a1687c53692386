//! How a lock's name becomes keys.
//!
//! A lock is the prefix `/distlock/NAME/`, in a namespace `/distlock/SPACE:NAME/`, and every entry in
//! its line a key below it. `etcdctl lock /distlock/NAME` does the same, so the two exclude each
//! other. What could be read as structure is percent-encoded: `orders` and `orders/42` are two
//! locks, neither below the other.

use distlock_core::{FullName, Name, Namespace, ReqId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

/// What every key of ours begins with: one prefix in the cluster's access rules covers them.
pub(crate) const PREFIX: &str = "/distlock/";
/// The version of this layout. No lock can be called so: an empty namespace writes no colon.
pub(crate) const LAYOUT: &str = "/distlock/:layout";
const GONE: &str = "/distlock/:gone/";

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
pub(crate) fn line(lock: &FullName) -> String {
    format!("{}/", of_names(&lock.space, lock.name.as_str()))
}

/// A request's entry.
pub(crate) fn entry(lock: &FullName, req: ReqId) -> String {
    format!("{}{req}", line(lock))
}

/// The prefix that an entry is below.
pub(crate) fn line_of(entry: &str) -> &str {
    &entry[..entry.rfind('/').map_or(0, |slash| slash + 1)]
}

/// What says that a request left for good.
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
                let key = entry(&lock, req);
                assert_eq!(key.matches('/').count(), 3, "{key}");
                assert_eq!(line_of(&key), line(&lock));
                let (back, rest) = parse(key.as_bytes()).unwrap();
                assert_eq!((back, rest.parse().unwrap()), (lock, req));
                assert!(seen.insert(key));
            }
        }
        assert_eq!(parse(tombstone(req).as_bytes()), None);
        assert_eq!(parse(LAYOUT.as_bytes()), None);
        assert_eq!(after("/a/"), b"/a0");
    }
}
