//! What a server's or connection's error means to a user, and what to do next.

use distlock_core::{Error, Kind};
use distlock_sql::Trouble;
use sqlx::mysql::MySqlDatabaseError;

/// The number of a server's error.
pub(crate) fn number(e: &sqlx::Error) -> Option<u16> {
    e.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The whole transaction was undone to break a deadlock: it may be done again.
pub(crate) const DEADLOCK: u16 = 1213;
/// Somebody kept a row locked for too long.
pub(crate) const LOCK_WAIT: u16 = 1205;
/// What MySQL says to NOWAIT when somebody has the row; MariaDB says [`LOCK_WAIT`].
pub(crate) const NOT_NOW: u16 = 3572;
/// There is no such table.
pub(crate) const NO_TABLE: u16 = 1146;
/// A statement was ended by `KILL QUERY`.
pub(crate) const INTERRUPTED: u16 = 1317;

/// A savepoint is not known: the transaction that made it has ended.
pub(crate) const NO_SAVEPOINT: u16 = 1305;

/// A server that takes no writes: it was demoted, or is about to leave its group.
const DEMOTED: [u16; 4] = [1290, 1792, 1836, 3100];

/// What is said where a server is set to take no writes, though this user may write there.
pub(crate) fn demoted() -> Trouble {
    let (what, hint) = NO_WRITES;
    Trouble { error: Error::new(Kind::Refused, what).with_hint(hint).transient(), broken: true }
}

const NO_WRITES: (&str, &str) =
    ("this server takes no writes", "it is a replica or set read_only: name the primary");

/// A statement that failed.
pub(crate) fn calling(e: sqlx::Error) -> Trouble {
    match number(&e) {
        // The server is going, or ended this very connection.
        Some(1053 | 1927 | 1152 | 1158..=1161 | 3169 | 4031) => Trouble::broken(broke(e)),
        // The next connection may lead to the new primary. The statement itself did nothing.
        Some(n) if DEMOTED.contains(&n) => Trouble { error: known(n, e), broken: true },
        Some(NO_SAVEPOINT) => Trouble { error: rolled_back(e), broken: true },
        Some(n) => Trouble::answered(known(n, e)),
        None => match e {
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
                Trouble::broken(broke(e))
            }
            e => Trouble::answered(
                Error::new(Kind::Store, "unexpected answer").because(e).unknown().with_hint(
                    "see whether this is a MySQL or MariaDB, without a proxy that changes answers",
                ),
            ),
        },
    }
}

fn rolled_back(e: sqlx::Error) -> Error {
    Error::new(Kind::Unreachable, "the server has ended the lock's transaction")
        .because(e)
        .with_hint("what was tied to it is lost; take the lock again")
}

fn broke(e: sqlx::Error) -> Error {
    Error::new(Kind::Unreachable, "the connection broke")
        .because(e)
        .with_hint("the same call may be repeated; see whether the server runs")
}

/// A connection that did not come about. Nothing was asked for yet.
pub(crate) fn opening(e: sqlx::Error) -> Error {
    if let Some(n) = number(&e) {
        return known(n, e);
    }
    let certificate = |e: &std::io::Error| {
        let text = e.to_string().to_lowercase();
        ["certificate", "tls", "handshake"].iter().any(|word| text.contains(word))
    };
    match &e {
        sqlx::Error::Io(io) if certificate(io) => return no_tls(e),
        sqlx::Error::Tls(_) => return no_tls(e),
        _ => {}
    }
    match e {
        sqlx::Error::Protocol(_) => Error::new(Kind::Store, "unexpected answer")
            .because(e)
            .with_hint("see whether a MySQL or MariaDB listens there, and not something else"),
        sqlx::Error::Configuration(_) => Error::new(Kind::Usage, "invalid server address")
            .because(e)
            .with_hint("mysql://user:password@HOST/DATABASE"),
        e => Error::new(Kind::Unreachable, "cannot connect")
            .because(e)
            .with_hint("see whether the server runs there and can be reached"),
    }
}

fn no_tls(e: sqlx::Error) -> Error {
    Error::new(Kind::Refused, "no TLS connection").because(e).with_hint(
        "?ssl-ca=FILE names the authority that signed the server's certificate, \
         ?ssl-mode=disabled speaks plainly to a server without one",
    )
}

/// Errors the server has a number for. It says them before it does anything.
fn known(n: u16, e: sqlx::Error) -> Error {
    let (kind, what, hint) = match n {
        1045 | 1698 | 1524 => {
            (Kind::Credentials, "the server refuses this user or password", "check both in the URL")
        }
        1044 | 1142 | 1143 | 1227 | 1370 | 1410 => (
            Kind::Credentials,
            "this user may not do that",
            "grant SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE or have somebody \
             else make them: `distlock schema mysql` prints them",
        ),
        1049 => (Kind::Usage, "there is no such database", "create it, or correct the URL"),
        NO_TABLE => (
            Kind::Layout,
            "a table is missing",
            "it was removed while in use: open the store again, which makes it anew",
        ),
        1040 | 1203 | 1226 => (
            Kind::Unreachable,
            "the server has as many connections as it takes",
            "raise max_connections or max_user_connections; a process needs up to three",
        ),
        n if DEMOTED.contains(&n) => (Kind::Refused, NO_WRITES.0, NO_WRITES.1),
        1665 => (
            Kind::Refused,
            "this server logs statements instead of rows, which READ COMMITTED does not allow",
            "set binlog_format to ROW or MIXED",
        ),
        1130 | 1129 => (
            Kind::Credentials,
            "the server refuses this host",
            "see where the user may come from, and FLUSH HOSTS",
        ),
        3159 => (Kind::Refused, "the server wants TLS", "?ssl-mode=required"),
        1251 | 2059 | 1275 => (
            Kind::Unsupported,
            "the user's way of authentication is not known here",
            "mysql_native_password, ed25519 or caching_sha2_password over TLS work",
        ),
        DEADLOCK | LOCK_WAIT => (
            Kind::Store,
            "somebody else keeps the lock's row locked",
            "look for a long transaction on distlock's tables (SHOW PROCESSLIST)",
        ),
        1021 | 1114 | 1041 | 1037 => {
            (Kind::Store, "the server has no room left", "free its disk or memory")
        }
        _ => (Kind::Store, "the server failed", "its message says why"),
    };
    let error = Error::new(kind, what).because(e).with_hint(hint);
    match n {
        DEADLOCK | LOCK_WAIT | 1021 | 1114 | 1041 | 1037 => error.transient(),
        n if DEMOTED.contains(&n) => error.transient(),
        _ => error,
    }
}
