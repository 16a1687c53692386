//! What can be said about a PostgreSQL store besides where it is.

use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Kind, duration};

/// How the locks are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// A row a lock, a fair line, pushed hand-over.
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
    pub(crate) algorithm: Algorithm,
    pub(crate) schema: String,
    pub(crate) timeout: Duration,
    pub(crate) drift_percent: u8,
    pub(crate) sessions: u16,
    /// Whether this client only looks, and makes no tables.
    pub(crate) look_only: bool,
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
    /// The keys a URL may have.
    pub(crate) const KEYS: [&'static str; 5] =
        ["algorithm", "schema", "timeout", "drift", "sessions"];

    /// The defaults: the fair line, in the schema `distlock`, calls of at most 5 s.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which algorithm keeps the locks. Those of one algorithm know nothing of another's.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// The schema that holds the tables; made on first use.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// How long one call may take, connecting included.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How much of a TTL a guard gives up for clocks that run at different rates, in percent.
    #[must_use]
    pub fn drift_percent(mut self, percent: u8) -> Self {
        self.drift_percent = percent.min(50);
        self
    }

    /// How many connections the advisory and row locks of a process may use: one for each that is
    /// held or waited for.
    #[must_use]
    pub fn sessions(mut self, most: u16) -> Self {
        self.sessions = most.max(1);
        self
    }

    /// Takes its keys out of a URL's query.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a value that cannot be, with what can.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let mut options = Self::default();
        if let Some(word) = url.take("algorithm") {
            let known = Algorithm::ALL.into_iter().find(|a| a.word() == word);
            let hint = "queue (the default), version, advisory or row-lock";
            options.algorithm = known.ok_or_else(|| cannot_be("algorithm", &word, hint))?;
        }
        if let Some(schema) = url.take("schema") {
            options.schema = schema;
        }
        if let Some(text) = url.take("timeout") {
            let span = duration::parse(&text).map_err(|why| cannot_be("timeout", &text, &why))?;
            let (least, most) = (Duration::from_millis(100), Duration::from_secs(60));
            if span < least || span > most {
                return Err(cannot_be("timeout", &text, "100ms to 60s"));
            }
            options.timeout = span;
        }
        if let Some(text) = url.take("drift") {
            let percent = text.parse().ok().filter(|n| *n <= 50);
            let hint = "percent of a TTL, 0 to 50";
            options.drift_percent = percent.ok_or_else(|| cannot_be("drift", &text, hint))?;
        }
        if let Some(text) = url.take("sessions") {
            let most = text.parse().ok().filter(|n| *n > 0);
            options.sessions = most.ok_or_else(|| cannot_be("sessions", &text, "1 to 65535"))?;
        }
        Ok(options)
    }
}

fn cannot_be(key: &str, value: &str, hint: &str) -> Error {
    Error::new(Kind::Usage, format!("invalid {key}={value}")).with_hint(hint.to_owned())
}
