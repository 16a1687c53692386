//! What a lock's items are called: `dl1:<namespace>:l:<name>` and `dl1:<namespace>:f:<name>`.
//!
//! memcached's keys are at most 250 bytes without spaces and control characters, so names are
//! percent-encoded. What gets too long is a readable beginning, `~` and a hash; a `~` of the name
//! itself is encoded, so that the two kinds never meet. The full name stands in the lock's item.

use distlock_core::{FullName, Name, Namespace};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b':');
/// With the longest namespace and the rest of the key this stays below 250.
const LONGEST: usize = 170;
const BEGINNING: usize = 100;

/// The key of the item that is the lock.
#[must_use]
pub fn lock(lock: &FullName) -> String {
    format!("{}{}", locks_of(&lock.space), encoded(&lock.name))
}

/// The key of the item that remembers the highest token.
#[must_use]
pub fn fence(lock: &FullName) -> String {
    format!("dl1:{}:f:{}", lock.space, encoded(&lock.name))
}

/// What the keys of all locks of a namespace begin with.
pub(crate) fn locks_of(space: &Namespace) -> String {
    format!("dl1:{space}:l:")
}

/// The name that was encoded; `None` when only a hash of it is there.
pub(crate) fn decoded(encoded: &str) -> Option<Name> {
    if encoded.contains('~') {
        return None;
    }
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    Name::new(name).ok()
}

fn encoded(name: &Name) -> String {
    let mut text = utf8_percent_encode(name.as_str(), PLAIN).to_string();
    if text.len() > LONGEST {
        text.truncate(BEGINNING);
        text.push('~');
        for byte in Sha256::digest(name.as_str().as_bytes()) {
            text.push_str(&format!("{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use distlock_testkit::laws::names::awkward;

    use super::*;

    #[test]
    fn every_name_is_a_key_of_its_own_that_memcached_takes() {
        let space = Namespace::new("s".repeat(64)).unwrap();
        let names = awkward();
        let full = |n: &String| FullName { space: space.clone(), name: Name::new(n).unwrap() };
        let keys: BTreeSet<String> =
            names.iter().flat_map(|n| [lock(&full(n)), fence(&full(n))]).collect();
        assert_eq!(keys.len(), names.len() * 2);
        for key in &keys {
            assert!(key.len() <= 250 && key.bytes().all(|b| b.is_ascii_graphic()), "{key}");
        }
    }

    #[test]
    fn what_is_not_hashed_can_be_read_back() {
        for name in awkward() {
            let name = Name::new(name).unwrap();
            let text = encoded(&name);
            match decoded(&text) {
                Some(back) => assert_eq!(back, name),
                None => assert!(text.len() > BEGINNING && text.contains('~')),
            }
        }
        let long = |last: &str| Name::new("x".repeat(200) + last).unwrap();
        assert_ne!(encoded(&long("a")), encoded(&long("b")));
    }
}
