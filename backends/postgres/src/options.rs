//! Options of a `postgres://` URL and their defaults: algorithm, timeouts, login, TLS.

use std::time::Duration;

use distlock_core::{Error, StoreUrl};

/// How the locks are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// A row a lock, a fair queue, pushed hand-over.
    #[default]
    Queue,
    /// The whole state in one row, changed by compare-and-set on its version.
    Version,
    /// A session of the server's own holds an advisory lock.
    Advisory,
    /// A transaction that stays open holds a row.
    RowLock,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Version, Self::Advisory, Self::RowLock];

    /// The word used in URLs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Version => "version",
            Self::Advisory => "advisory",
            Self::RowLock => "row-lock",
        }
    }
}

/// Options of every PostgreSQL store; all of them can stand in the URL's query.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Which algorithm keeps the locks. Those of one algorithm know nothing of another's.
    pub algorithm: Algorithm,
    /// The schema of the tables.
    pub schema: String,
    /// The bound of one call.
    pub timeout: Duration,
    /// How much of a TTL a guard gives up for clocks that run at different rates, in percent.
    pub drift_percent: u8,
    /// With an algorithm that keeps a session a lock: how many may be held or waited for at once.
    pub sessions: u16,
    /// Whether this client only looks, and makes no tables.
    pub look_only: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Queue,
            schema: "distlock".to_owned(),
            timeout: Duration::from_secs(5),
            drift_percent: 10,
            sessions: 32,
            look_only: false,
        }
    }
}

impl PostgresOptions {
    /// Takes its keys out of a URL's query.
    ///
    /// # Errors
    /// [`Kind::Usage`](distlock_core::Kind::Usage) for an invalid value, with what is allowed.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let mut options = Self::default();
        let words = Algorithm::ALL.map(|algorithm| (algorithm.word(), algorithm));
        options.algorithm = url.take_word("algorithm", &words)?.unwrap_or(options.algorithm);
        if let Some(schema) = url.take("schema") {
            options.schema = schema;
        }
        let timeouts = Duration::from_millis(100)..=Duration::from_secs(60);
        options.timeout = url.take_duration("timeout", timeouts)?.unwrap_or(options.timeout);
        options.drift_percent = url.take_number("drift", 0..=50)?.unwrap_or(options.drift_percent);
        options.sessions = url.take_number("sessions", 1..=u16::MAX)?.unwrap_or(options.sessions);
        Ok(options)
    }
}
