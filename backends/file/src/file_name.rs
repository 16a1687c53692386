//! How a lock is called in the directory: its [`Stem`].

use std::fmt;
use std::path::{Path, PathBuf};

use distlock_core::{FullName, Namespace};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
/// File names end at 255 bytes, and ours carry a suffix.
const LONGEST: usize = 200;
const PREFIX: usize = 120;

/// The path of a lock below the directory, without suffix: `_<space>/<encoded name>`.
///
/// Every byte that means something to the file system is percent-encoded, so `orders` and
/// `orders/42` are two files. What gets too long is a prefix, `~` and a hash; a `~` of the name
/// itself is encoded, so the two kinds never meet. The full name stands in the lock file.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Stem(Box<str>);

impl Stem {
    pub(crate) fn of(lock: &FullName) -> Self {
        let space = space_dir(&lock.space);
        let mut name = utf8_percent_encode(lock.name.as_str(), PLAIN).to_string();
        if name.len() > LONGEST {
            name.truncate(PREFIX);
            name = format!("{name}~{:032x}", fnv(lock.name.as_str().as_bytes()));
        }
        Self(format!("{space}/{name}").into())
    }

    /// From the text of a datagram: only ever compared, never used as a path.
    pub(crate) fn heard(text: &str) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn lock_file(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{self}.lock"))
    }

    pub(crate) fn line(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{self}.q"))
    }
}

impl fmt::Display for Stem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The directory of a namespace. The `_` keeps namespaces apart from our own files, and `.` and
/// `..`, which are namespaces too, from being paths.
pub(crate) fn space_dir(space: &Namespace) -> String {
    format!("_{space}")
}

/// The name behind the file name of a lock, unless only its hash is in there.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    if encoded.contains('~') {
        return None;
    }
    percent_decode_str(encoded).decode_utf8().ok().map(|name| name.into_owned())
}

/// FNV-1a, 128 bits. A collision would be found by the full name in the lock file and refused.
fn fnv(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |h, b| {
        (h ^ u128::from(*b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B)
    })
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

    use super::*;

    fn stem(name: &str) -> String {
        let lock = FullName { space: Namespace::default(), name: Name::new(name).unwrap() };
        Stem::of(&lock).as_str().to_owned()
    }

    #[test]
    fn names_become_file_names_and_back() {
        assert_eq!(stem("orders"), "_/orders");
        assert_eq!(stem("orders/42"), "_/orders%2F42");
        for name in ["a b", "..", ".", "line\nbreak", "100%", "a~b", "锁", "{x}\"'`", "a.lock"] {
            let s = stem(name);
            assert!(!s[2..].contains(['/', '~', '\n']), "{s}");
            assert_eq!(decode(&s[2..]).as_deref(), Some(name));
        }
    }

    #[test]
    fn long_names_stay_apart_and_fit_a_file_name() {
        let (a, b) = (stem(&"锁".repeat(85)), stem(&("锁".repeat(84) + "x")));
        assert_ne!(a, b);
        assert!(a.len() < 200 && decode(&a[2..]).is_none());
        assert_eq!(a[..90], b[..90]);
    }
}
