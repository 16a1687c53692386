//! What can go wrong with a server, in words.

use std::io;
use std::time::Duration;

use distlock_core::{Error, Kind};

pub(crate) fn unreachable(e: io::Error) -> Error {
    Error::new(Kind::Unreachable, "cannot connect").because(e).with_hint(
        "see whether memcached runs there and listens on that address (-l) and port (-p)",
    )
}

pub(crate) fn late(d: Duration) -> Error {
    Error::new(Kind::Unreachable, format!("no answer within {d:?}"))
        .unknown()
        .with_hint("see whether the server runs and can be reached; the same call may be repeated")
}

pub(crate) fn cut(e: Option<io::Error>) -> Error {
    let error = Error::new(Kind::Unreachable, "the connection ended before the answer came")
        .unknown()
        .with_hint("the server was restarted, or something between closed the connection");
    match e {
        Some(e) => error.because(e),
        None => error,
    }
}

pub(crate) fn garbage(shown: &str) -> Error {
    Error::new(Kind::Store, format!("the answer is not one of memcached's: \"{shown}\""))
        .unknown()
        .with_hint("is that port a memcached of version 1.6 or newer, with nothing between?")
}

pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "this client was closed").with_hint("connect again")
}

/// The server answered with an error of its own.
pub(crate) fn trouble(line: &str) -> Error {
    let error = Error::new(Kind::Store, format!("memcached says: {line}"));
    if line.contains("unauthenticated") || line.contains("authentication") {
        return Error::new(Kind::Credentials, format!("memcached says: {line}"))
            .with_hint("memcached:// knows no login: use a server without -S and -Y");
    }
    if line.contains("out of memory") {
        return error.unknown().with_hint("give the server more memory (-m)");
    }
    if line.contains("too large") {
        return error.unknown().with_hint("let the server take items of 4 KiB or more (-I)");
    }
    error.unknown().with_hint("see the server's log")
}
