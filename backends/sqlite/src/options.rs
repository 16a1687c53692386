//! How a database is opened.

use distlock_core::{Clock, Error, StoreUrl};

/// When a commit is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sync {
    /// Before it is answered. The default, because the fence is promised always.
    #[default]
    Full,
    /// At the next checkpoint. A power cut may undo the last commits, but ends every lease anyway;
    /// tokens stay below a ceiling that is itself written as [`Sync::Full`] would, and start above
    /// it after a reboot.
    Normal,
}

/// How a database is opened.
#[derive(Clone, Debug, Default)]
pub struct SqliteOptions {
    /// When a commit is on the disk.
    pub sync: Sync,
    /// The clock; tests may hold it.
    pub clock: Clock,
    /// Whether this client only looks: it creates no database and no socket, so it can list and
    /// show locks but must not wait for one.
    pub look_only: bool,
    /// Whether to use a directory although other users can write in it or above it.
    pub trust_all: bool,
    /// Stands in for the machine's boot id: lets a test reboot.
    #[doc(hidden)]
    pub boot_id: Option<String>,
}

impl SqliteOptions {
    /// Reads the options of a URL.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let words = [("full", Sync::Full), ("normal", Sync::Normal)];
        let sync = url.take_word("synchronous", &words)?.unwrap_or_default();
        let trust_all = url.take_word("trust", &[("owner", false), ("all", true)])?;
        url.finish(&["namespace", "require"])?;
        Ok(Self { sync, trust_all: trust_all.unwrap_or(false), ..Self::default() })
    }
}
