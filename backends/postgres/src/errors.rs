//! Maps errors of sqlx and SQLSTATEs to ours: their kind, whether the call took effect, what to do next.

use std::io::ErrorKind;

use distlock_core::{Error, Kind};
use distlock_sql::Trouble;

/// An error of a statement that was sent.
pub(crate) fn trouble(e: sqlx::Error) -> Trouble {
    match answered(&e) {
        Some(error) if ends_session(&e) || matches!(e, sqlx::Error::Protocol(_)) => {
            Trouble::broken(error.because(e))
        }
        // The server may have become a standby: another connection may lead to the primary.
        Some(error) if is(&e, "25006") => Trouble { error: error.because(e), broken: true },
        Some(error) => Trouble::answered(error.because(e)),
        None => Trouble::broken(broken().because(e)),
    }
}

/// An error of a connection that was being made.
pub(crate) fn refusal(e: sqlx::Error) -> Error {
    if let Some(error) = answered(&e) {
        return error.because(e);
    }
    let error = match &e {
        sqlx::Error::Io(io) => match io.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                Error::new(Kind::Unreachable, "no PostgreSQL at this address")
                    .with_hint("see whether the database runs, and host, port or socket directory")
            }
            // What TLS has to say about a certificate comes as an error of the stream.
            _ if io.to_string().contains("certificate") => no_tls(),
            _ => broken(),
        },
        sqlx::Error::PoolTimedOut => {
            Error::new(Kind::Unreachable, "no connection for notifications").with_hint(
                "the database may have as many connections as it takes; a process of distlock takes three",
            )
        }
        sqlx::Error::Tls(_) => no_tls(),
        sqlx::Error::Protocol(_) => {
            Error::new(Kind::Store, "the server at this address is not a PostgreSQL")
                .with_hint("see whether host and port are those of a PostgreSQL")
        }
        sqlx::Error::Configuration(_) => {
            Error::new(Kind::Usage, "invalid connection options").with_hint("see the URL")
        }
        _ => broken(),
    };
    error.because(e)
}

fn no_tls() -> Error {
    Error::new(Kind::Refused, "no TLS connection").with_hint(
        "?sslmode= says what is asked for: disable, prefer, require, verify-ca or verify-full; \
         ?sslrootcert= names the authority's file",
    )
}

fn broken() -> Error {
    Error::new(Kind::Unreachable, "the connection to the database broke").with_hint(
        "see whether the database runs and can be reached; the same call may be repeated",
    )
}

/// A server that only follows another. The new primary may be known by this address before long.
pub(crate) fn standby() -> Error {
    Error::new(Kind::Refused, "the database takes no writes: it is a standby")
        .transient()
        .with_hint("name the primary, or an address that always leads to it")
}

fn is(e: &sqlx::Error, code: &str) -> bool {
    e.as_database_error().and_then(|e| e.code()).is_some_and(|c| c == code)
}

/// Whether somebody kept a row locked for longer than we wait.
pub(crate) fn is_kept(e: &Error) -> bool {
    let cause = std::error::Error::source(e).and_then(|e| e.downcast_ref());
    cause.is_some_and(|e| is(e, "55P03"))
}

/// Whether the server ended the session with this answer.
pub(crate) fn ends_session(e: &sqlx::Error) -> bool {
    let code = e.as_database_error().and_then(|e| e.code());
    // 25P03: it was silent in a transaction for too long.
    code.is_some_and(|code| code.starts_with("57P") || code.starts_with("08") || code == "25P03")
}

/// What an answer of the server means; nothing when it is no answer.
fn answered(e: &sqlx::Error) -> Option<Error> {
    let db = match e {
        sqlx::Error::Database(db) => db,
        // Meant for a connection that listens: a pooler gave it to this one.
        sqlx::Error::Protocol(why) if why.contains("NotificationResponse") => {
            let what = "what is told to another connection arrives at this one";
            return Some(Error::new(Kind::Refused, what).with_hint(POOLED));
        }
        // The server's answer is not what we understand: it may have done what was asked.
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound => {
            let hint =
                "the schema may hold tables of another program: name another one with ?schema=";
            return Some(Error::new(Kind::Layout, "unexpected answer").unknown().with_hint(hint));
        }
        _ => return None,
    };
    let code = db.code().unwrap_or_default();
    Some(match &*code {
        "28P01" | "28000" => {
            let why = "the database refused the login";
            // Its own words tell a wrong password from a missing line in pg_hba.conf.
            let hint = if db.message().contains("no encryption") || db.message().contains("SSL off") {
                "the server wants TLS: ?sslmode=require"
            } else {
                "write the login into the URL: postgres://user:password@host/database"
            };
            Error::new(Kind::Credentials, why).with_hint(hint)
        }
        "3D000" => Error::new(Kind::Usage, "the server has no database of that name")
            .with_hint("postgres://HOST/DATABASE; without one it is the user's name"),
        "42501" => Error::new(Kind::Credentials, "this user may not do that in the database").with_hint(
            "let somebody who may create schemas run what `distlock schema postgres` prints, its \
             grants included",
        ),
        "25006" => Error::new(Kind::Refused, "the database takes no writes").transient().with_hint(
            "it may be a standby now: name the primary; or default_transaction_read_only is on",
        ),
        "53300" => Error::new(Kind::Unreachable, "the database has as many connections as it takes")
            .with_hint("raise max_connections, or end idle ones; each process of distlock takes three"),
        "57P01" | "57P02" | "57P05" | "25P03" => Error::new(Kind::Unreachable, "the server ended the connection")
            .with_hint("the same call may be repeated"),
        "57P03" => Error::new(Kind::Unreachable, "the database is starting up or shutting down")
            .with_hint("the same call may be repeated"),
        // Whatever it had changed was rolled back.
        "55P03" | "57014" | "40001" | "40P01" => {
            Error::new(Kind::Store, "the database was too busy with this lock").transient().with_hint(
                "the same call may be repeated; see whether somebody keeps the rows of the schema \
                 distlock locked",
            )
        }
        "3F000" | "42P01" | "42883" | "42703" => {
            Error::new(Kind::Layout, "the tables of distlock are missing or not as they were made")
                .with_hint("open the store again, which makes them, or see `distlock schema postgres`")
        }
        "26000" | "42P05" | "08P01" => {
            Error::new(Kind::Refused, "statements do not stay on their connection").with_hint(POOLED)
        }
        "53100" | "53200" => Error::new(Kind::Store, "the server has no room left").transient()
            .with_hint("see its disk and memory"),
        _ => Error::new(Kind::Store, format!("the database refuses: {code}"))
            .with_hint("the server's log may say more"),
    })
}

/// What to do behind a pooler.
pub(crate) const POOLED: &str = "a pooler that hands out connections for one transaction cannot carry locks: \
     name the database itself (three connections a process), or a pool in session mode";

/// The work of a call: [`distlock_sql::work`] with the errors of sqlx as ours.
macro_rules! work {
    (|$conn:ident $(, $kept:ident)*| $call:expr) => {
        distlock_sql::work!(|$conn $(, $kept)*| { $call.await.map_err($crate::errors::trouble) })
    };
}
pub(crate) use work;
