//! What can be set.

use std::time::Duration;

use distlock_core::url::invalid;
use distlock_core::{Error, Kind, StoreUrl};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// How the lock is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// A lock row, one statement to take it when it is free, and a table with the queue.
    #[default]
    Queue,
    /// One row that holds the whole state, changed by compare-and-set.
    Version,
    /// `SELECT … FOR UPDATE` on a connection of its own.
    RowLock,
}

/// How a database is used for locks.
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    /// How the lock is kept.
    pub algorithm: Algorithm,
    /// What the names of the tables begin with.
    pub prefix: String,
    /// The bound of one call, connecting included.
    pub timeout: Duration,
    /// How much of a TTL a guard gives up for clocks that run at different rates, in percent.
    pub drift_percent: u8,
    /// With [`Algorithm::RowLock`]: how many locks may be held or waited for at once, each on a
    /// connection of its own.
    pub sessions: u16,
    /// Whether this client only looks, and makes no tables.
    pub look_only: bool,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            prefix: "distlock_".to_owned(),
            timeout: Duration::from_secs(5),
            drift_percent: 10,
            sessions: 32,
            look_only: false,
        }
    }
}

impl MysqlOptions {
    /// Takes its keys out of a URL's query.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid value, with what is allowed.
    pub fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let mut options = Self::default();
        let words = [
            ("queue", Algorithm::Queue),
            ("line", Algorithm::Queue), // its name before
            ("version", Algorithm::Version),
            ("row-lock", Algorithm::RowLock),
        ];
        options.algorithm = url.take_word("algorithm", &words)?.unwrap_or(options.algorithm);
        if let Some(prefix) = url.take("prefix") {
            options.prefix = checked_prefix(&prefix)?.to_owned();
        }
        let timeouts = Duration::from_millis(100)..=Duration::from_secs(60);
        options.timeout = url.take_duration("timeout", timeouts)?.unwrap_or(options.timeout);
        options.drift_percent = url.take_number("drift", 0..=50)?.unwrap_or(options.drift_percent);
        options.sessions = url.take_number("sessions", 1..=10_000)?.unwrap_or(options.sessions);
        Ok(options)
    }
}

/// Letters, digits and underscores: it becomes part of statements.
pub(crate) fn checked_prefix(prefix: &str) -> Result<&str, Error> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if prefix.len() > 32 || !prefix.bytes().all(plain) {
        return Err(invalid("prefix", prefix, "at most 32 letters, digits and underscores"));
    }
    Ok(prefix)
}

/// The server's address and the login; takes its keys out of the URL's query.
pub(crate) fn server(url: &mut StoreUrl) -> Result<MySqlConnectOptions, Error> {
    let usage =
        |what: &'static str, hint: &'static str| Error::new(Kind::Usage, what).with_hint(hint);
    let mut to = MySqlConnectOptions::new()
        // A session's settings are made in one go with our own.
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .statement_cache_capacity(64);
    match url.hosts.as_slice() {
        [] => {}
        [host] => to = to.host(&host.host).port(host.port.unwrap_or(3306)),
        _ => {
            let hint = "replicas do not know of locks that were just taken: name the primary";
            return Err(usage("a MySQL store is one server", hint));
        }
    }
    if let Some(socket) = url.take("socket") {
        to = to.socket(socket);
    } else if url.hosts.is_empty() {
        return Err(usage(
            "the URL names no host",
            "mysql://user:password@HOST/DATABASE, or mysql://user@/DATABASE?socket=PATH",
        ));
    }
    to = to.username(url.user.as_deref().unwrap_or("root"));
    if let Some(password) = &url.password {
        to = to.password(password.reveal());
    }
    match url.path.trim_matches('/') {
        "" => {
            let hint = "mysql://user:password@HOST/DATABASE: the tables are made in it";
            return Err(usage("the URL names no database", hint));
        }
        database => to = to.database(database),
    }
    if let Some(word) = url.take("ssl-mode") {
        let known = "disabled, preferred (the default), required, verify_ca or verify_identity";
        let mode: Result<MySqlSslMode, _> = word.replace('-', "_").parse();
        to = to.ssl_mode(mode.map_err(|_| invalid("ssl-mode", &word, known))?);
    }
    if let Some(ca) = url.take_path("ssl-ca") {
        to = to.ssl_ca(ca);
    }
    match (url.take_path("ssl-cert"), url.take_path("ssl-key")) {
        (None, None) => {}
        (Some(cert), Some(key)) => to = to.ssl_client_cert(cert).ssl_client_key(key),
        _ => {
            let hint = "name the files of both, in PEM form: ?ssl-cert=…&ssl-key=…";
            return Err(usage("ssl-cert and ssl-key belong together", hint));
        }
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_from_the_url_and_wrong_ones_say_what_is_allowed() {
        let mut url = StoreUrl::parse(
            "mysql://u:p@h:3307/d?algorithm=row-lock&prefix=x_&timeout=2s&drift=1&sessions=3\
             &ssl-mode=disabled",
        )
        .unwrap();
        let options = MysqlOptions::take_from(&mut url).unwrap();
        assert_eq!((options.algorithm, options.prefix.as_str()), (Algorithm::RowLock, "x_"));
        assert_eq!((options.timeout, options.sessions), (Duration::from_secs(2), 3));
        assert_eq!(server(&mut url).unwrap().get_port(), 3307);
        assert!(url.finish(&[]).is_ok());
        for wrong in [
            "h/d?prefix=a`b",
            "h/d?algorithm=x",
            "h/d?timeout=1ms",
            "h/d?drift=51",
            "h/d?sessions=0",
            "h/d?ssl-mode=x",
            "h/d?ssl-key=k",
            "h",
            "h,i/d",
            "/d",
        ] {
            let mut url = StoreUrl::parse(&format!("mysql://{wrong}")).unwrap();
            let e = MysqlOptions::take_from(&mut url).and_then(|_| server(&mut url)).unwrap_err();
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{wrong}: {e:?}");
        }
    }
}
