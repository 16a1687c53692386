//! What can go wrong with a server, in words.

use std::io;

use distlock_core::{Error, Kind};

use crate::wire::Reply;

/// Max compare-and-swap attempts before a call gives up: each one lost a race with another client.
pub(crate) const RACES: u32 = 16;

pub(crate) fn unreachable(e: io::Error) -> Error {
    Error::new(Kind::Unreachable, "cannot connect").because(e).with_hint(
        "see whether memcached runs there and listens on that address (-l) and port (-p)",
    )
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
    let error = |kind| Error::new(kind, format!("memcached says: {line}"));
    if line.contains("unauthenticated") || line.contains("authentication") {
        return error(Kind::Credentials)
            .with_hint("memcached:// knows no login: use a server without -S and -Y");
    }
    error(Kind::Store).unknown().with_hint(match line {
        _ if line.contains("out of memory") => "give the server more memory (-m)",
        _ if line.contains("too large") => "let the server take items of 4 KiB or more (-I)",
        _ => "see the server's log",
    })
}

/// Every compare-and-swap of a call lost a race.
pub(crate) fn contended() -> Error {
    Error::new(Kind::Store, format!("lost {RACES} races with others for it"))
        .unknown()
        .transient()
        .with_hint("ask again")
}

/// An answer that its question cannot have.
pub(crate) fn odd(reply: &Reply) -> Error {
    match reply {
        Reply::Trouble(line) => trouble(line),
        other => garbage(&format!("{other:?}")),
    }
}
