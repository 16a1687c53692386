//! The options of a file store, and how a URL sets them.

use std::time::Duration;

use distlock_core::{Clock, Error, StoreUrl};

/// How a [`FileStore`](crate::FileStore) is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The clock `min_hold`, lock-delay and patience are counted on.
    pub clock: Clock,
    /// Lock files that were free for this long are removed; an hour unless said otherwise.
    pub retention: Duration,
    /// Whether this client only looks: it makes no directory.
    pub look_only: bool,
    /// Whether to use a directory although other users can write in it or above it. Links are not
    /// followed even then.
    pub trust_all: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        let retention = Duration::from_secs(3600);
        Self { clock: Clock::system(), retention, look_only: false, trust_all: false }
    }
}

impl FileOptions {
    /// Takes the options out of a URL's query: `trust=all` sets [`trust_all`](Self::trust_all).
    ///
    /// # Errors
    /// [`Kind::Usage`](distlock_core::Kind::Usage) for an unknown option or value.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let trust_all = url.take_word("trust", &[("owner", false), ("all", true)])?;
        url.finish(&["namespace", "require"])?;
        Ok(Self { trust_all: trust_all.unwrap_or(false), ..Self::default() })
    }
}
