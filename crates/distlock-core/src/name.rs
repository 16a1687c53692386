//! What a lock is called: a [`Name`], in a [`Namespace`], together a [`FullName`].

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::text::checked_text;
use crate::{Error, Kind};

/// The longest name, in bytes of UTF-8.
pub const NAME_MAX: usize = 255;
/// The longest namespace, in bytes.
pub const NAMESPACE_MAX: usize = 64;

/// The name of a lock: any UTF-8 but NUL, 1 to 255 bytes.
///
/// A name and its prefix (`orders` and `orders/42`) are two locks on every store.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is empty, longer than 255 bytes or holds a NUL.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let fault = if name.is_empty() {
            "a lock's name cannot be empty".to_owned()
        } else if name.len() > NAME_MAX {
            format!("this lock's name has {} bytes", name.len())
        } else if name.contains('\0') {
            "a lock's name cannot hold a NUL byte".to_owned()
        } else {
            return Ok(Self(name.into()));
        };
        Err(Error::new(Kind::Usage, fault)
            .with_hint("a name is 1 to 255 bytes of any UTF-8 but NUL"))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A prefix that keeps the locks of one client apart from those of others on the same store.
///
/// Empty (the default), or 1 to 64 of `A–Z a–z 0–9 . _ -`, so that one pattern in the store's
/// access rules covers it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks and takes a namespace; the empty one is the default.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is too long or holds another character.
    pub fn new(space: impl AsRef<str>) -> Result<Self, Error> {
        let space = space.as_ref();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if space.len() <= NAMESPACE_MAX && space.bytes().all(plain) {
            return Ok(Self(space.into()));
        }
        Err(Error::new(Kind::Usage, format!("{space:?} is not a namespace"))
            .with_hint("a namespace is at most 64 of A-Z a-z 0-9 . _ -"))
    }

    /// The namespace as text; empty for the default one.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A lock's full address in a store: namespace and name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct FullName {
    /// Whose locks it stands among.
    pub space: Namespace,
    /// What it is called there.
    pub name: Name,
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.space.0.is_empty() {
            write!(f, "{}:", self.space)?;
        }
        write!(f, "{}", self.name)
    }
}

checked_text!(Name, new);
checked_text!(Namespace, new);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awkward_names_are_names_and_bad_ones_say_what_is_allowed() {
        for good in ["a", "orders/42", "{x}", "two words", "line\nbreak", "\"'`", "замок", "锁"]
        {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        assert!(Name::new("x".repeat(NAME_MAX)).is_ok());
        for bad in ["", "a\0b", &"x".repeat(NAME_MAX + 1)] {
            let e = Name::new(bad).unwrap_err();
            assert_eq!(e.kind(), Kind::Usage);
            assert!(e.hint().is_some_and(|h| h.contains("255")));
        }
        assert!(Namespace::new("").is_ok() && Namespace::new("shop-1.eu_w").is_ok());
        assert!(Namespace::new("a/b").is_err() && Namespace::new("x".repeat(65)).is_err());
    }
}
