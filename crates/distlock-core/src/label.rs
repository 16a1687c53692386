//! The label of a holder, shown to waiters.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// The longest label, in bytes; a longer one is cut.
pub const LABEL_MAX: usize = 200;

/// A line about the holder, shown to those who wait: who to ask, what is going on.
///
/// Any text makes a label: control characters become spaces and what is too long is cut, because
/// a label is for eyes alone and must never be the reason that a lock is refused.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Label(Arc<str>);

impl Label {
    /// Takes any text.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        let clean: String =
            text.as_ref().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let clean = clean.trim();
        Self(clean[..clean.floor_char_boundary(LABEL_MAX)].into())
    }

    /// Host, process, user and command of this process: the label nobody had to think of.
    #[must_use]
    pub fn of_this_process() -> Self {
        static LABEL: OnceLock<Label> = OnceLock::new();
        LABEL
            .get_or_init(|| {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
                let user =
                    user.unwrap_or_else(|_| format!("uid{}", rustix::process::getuid().as_raw()));
                let command = std::env::args_os().next().unwrap_or_default();
                let command = std::path::Path::new(&command).file_name().unwrap_or(&command);
                let command = command.to_string_lossy();
                Self::new(format!("{user}@{host} {command} pid {}", std::process::id()))
            })
            .clone()
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl From<String> for Label {
    fn from(s: String) -> Self {
        Self::new(s)
    }
}

impl From<Label> for String {
    fn from(l: Label) -> String {
        l.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_makes_a_label() {
        assert_eq!(Label::new(" a\nb ").as_str(), "a b");
        assert!(Label::new("é".repeat(200)).as_str().len() <= LABEL_MAX);
        assert!(Label::of_this_process().as_str().contains("pid"));
    }
}
