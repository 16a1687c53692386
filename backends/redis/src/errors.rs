//! What a server's or connection's error means to a user, and what to do next.

use distlock_core::{Error, Kind};
use redis::{ErrorKind, RedisError, Value};

use crate::address::Address;

/// What the account needs, for an error about permissions: the line of docs/stores/redis.md.
const RIGHTS: &str = "grant the account what the page of the store lists: ~dl:* &dl:* (rl:* for redlock) \
                      +eval +evalsha +subscribe +publish +ping +info +time +config|get +scan and the \
                      commands on keys; in a cluster +asking +cluster|slots +cluster|info; with \
                      algorithm=plain also the keys that are the locks' names";

/// A connection that did not come about. Nothing was asked for yet.
pub(crate) fn opening(e: &RedisError, address: &Address) -> Error {
    let (text, io) = (e.to_string(), e.is_io_error());
    let tls = ["certificate", "tls", "handshake", "alert", "invalidcontenttype", "unknownissuer"];
    let error = if let Some(known) = known(e) {
        known
    } else if tls.iter().any(|word| text.to_lowercase().contains(word)) {
        Error::new(Kind::Refused, format!("no TLS connection: {text}")).with_hint(
            "?ca=FILE names the authority that signed the server's certificate, ?cert=FILE&key=FILE \
             are our own; rediss:// is for servers that speak TLS, redis:// for those that do not",
        )
    } else if io && !e.is_connection_refusal() && e.is_connection_dropped() {
        Error::new(Kind::Unreachable, format!("the server hangs up at once: {text}")).with_hint(
            "does it speak TLS only (rediss://)? does it have as many clients as it takes \
             (maxclients)? is it a redis at all?",
        )
    } else if io {
        Error::new(Kind::Unreachable, format!("cannot connect: {text}"))
            .with_hint("see whether the server runs there and the way to it is open")
    } else {
        Error::new(Kind::Store, format!("an answer that makes no sense: {text}"))
            .with_hint("see whether a redis listens there, and not something else")
    };
    error.store(format!("redis at {address}"))
}

/// A call that failed.
pub(crate) fn calling(e: &RedisError) -> Error {
    if let Some(known) = known(e) {
        return known;
    }
    if e.is_io_error() || e.is_connection_dropped() {
        return Error::new(Kind::Unreachable, format!("the connection broke: {e}"))
            .unknown()
            .with_hint("the same call may be repeated; see whether the server runs");
    }
    strange(&e.to_string())
}

/// An answer that no script of ours gives: whether it took effect cannot be known.
pub(crate) fn odd(value: &Value) -> Error {
    let mut what = format!("{value:?}");
    what.truncate(what.floor_char_boundary(200));
    strange(&what)
}

/// No answer came in time.
pub(crate) fn silent(within: std::time::Duration) -> Error {
    Error::unanswered(within)
        .with_hint("see whether the server runs and can be reached; ?timeout= sets the bound")
}

fn strange(what: &str) -> Error {
    Error::new(Kind::Store, format!("an answer that makes no sense: {what}"))
        .unknown()
        .with_hint("is this a Redis of version 7.0 or later, without a proxy that changes answers?")
}

/// Errors with a name. The server says them before it does anything.
fn known(e: &RedisError) -> Option<Error> {
    let detail = e.detail().unwrap_or_default();
    let say = |kind, what: &str| Error::new(kind, what.to_owned());
    let code = e.code().unwrap_or_default();
    // What a script says of a command or key that its user may not use, and of a record that it
    // cannot take apart.
    let meant = match code {
        "ERR" if detail.contains("The user executing the script") => "NOPERM",
        "ERR" if detail.contains("data string too short") => "WRONGTYPE",
        _ => code,
    };
    Some(match meant {
        _ if e.kind() == ErrorKind::RESP3NotSupported => {
            say(Kind::Unsupported, "this server is older than Redis 6")
                .with_hint("use 7.0 or later")
        }
        "WRONGPASS" | "NOAUTH" => refused_login(code, detail),
        "NOPERM" => say(Kind::Credentials, &format!("the account may not do this: {detail}"))
            .with_hint(RIGHTS),
        "READONLY" => replica(),
        "OOM" => say(Kind::Store, "the server is at its memory limit")
            .transient()
            .with_hint("raise maxmemory; locks that are held can still be renewed and released"),
        "MISCONF" => say(Kind::Store, "the server cannot write to its disk, so it takes no writes")
            .transient()
            .with_hint("free its disk or mend its permissions; its log says what failed"),
        "NOREPLICAS" => say(Kind::Refused, "the server has too few replicas to take writes")
            .transient()
            .with_hint("see min-replicas-to-write and whether the replicas run"),
        "WRONGTYPE" => say(Kind::Layout, "a key of that name is something else than a lock")
            .with_hint("use another name, or another database for locks"),
        "DLMAX" => say(Kind::Refused, "the clients of this server agreed on another max_ttl")
            .with_hint("connect with the same ?max_ttl= everywhere"),
        "DLTTL" => say(Kind::Usage, "the TTL is longer than the clients of this server agreed on")
            .with_hint("ask for a shorter one, or connect with a longer ?max_ttl= everywhere"),
        "DLLAYOUT" => say(Kind::Layout, detail)
            .with_hint("use the newest distlock everywhere, or another database for locks"),
        "LOADING" => say(Kind::Unreachable, "the server is still loading its data")
            .with_hint("ask again in a moment"),
        "BUSY" => say(Kind::Unreachable, "the server is busy with somebody's endless script")
            .with_hint("SCRIPT KILL ends it"),
        "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => {
            say(Kind::Unreachable, &format!("the servers are rearranging: {code} {detail}"))
                .with_hint("ask again in a moment")
        }
        "MOVED" | "ASK" | "CROSSSLOT" => in_cluster(),
        _ if e.kind() == ErrorKind::AuthenticationFailed
            || detail.contains("without any password configured") =>
        {
            refused_login(code, detail)
        }
        _ if e.kind() != ErrorKind::Extension && !matches!(e.kind(), ErrorKind::Server(_)) => {
            return None;
        }
        _ if detail.contains("MAXCLIENTS") || detail.contains("max number of clients") => {
            say(Kind::Unreachable, "the server has as many clients as it takes")
                .with_hint("raise maxclients, or end idle clients")
        }
        _ if detail.contains("DB index") => say(
            Kind::Usage,
            "the server has no database of that number",
        )
        .with_hint(
            "redis://HOST:PORT/0 is the first database; `databases` in redis.conf says how many",
        ),
        _ => say(Kind::Store, &format!("the server refuses: {code} {detail}"))
            .with_hint("the server's log may say more; is it a Redis of version 7.0 or later?"),
    })
}

/// The server is a replica.
pub(crate) fn replica() -> Error {
    Error::new(Kind::Refused, "this server is a replica: it takes no writes")
        .transient()
        .with_hint("name the primary, or use redis+sentinel:// which finds it")
}

/// The server is one of a cluster, and the URL is of a single one.
pub(crate) fn in_cluster() -> Error {
    Error::new(Kind::Usage, "this server is one of a cluster").with_hint("use redis+cluster://")
}

/// The server is a single one, and the URL is of a cluster.
pub(crate) fn not_in_cluster() -> Error {
    Error::new(Kind::Usage, "this server is not one of a cluster").with_hint("use redis://")
}

fn refused_login(code: &str, detail: &str) -> Error {
    Error::new(Kind::Credentials, format!("the server does not let us in: {code} {detail}"))
        .with_hint(
            "write the login into the URL: redis://user:password@host or redis://:password@host",
        )
}

/// No connection came about in time.
pub(crate) fn unreachable(address: &Address, within: std::time::Duration, tls: bool) -> Error {
    // A redis without TLS waits for the end of what it takes for a line.
    let hint = match tls {
        true => {
            "see whether the server runs there and the way to it is open, and whether it speaks \
             TLS: redis:// is for those that do not"
        }
        false => "see whether the server runs there and the way to it is open",
    };
    let e = Error::new(Kind::Unreachable, format!("no connection within {within:?}"));
    e.store(format!("redis at {address}")).with_hint(hint)
}
