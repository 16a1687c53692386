//! What can go wrong, in words.

use distlock_core::{Error, Kind};
use zookeeper_client::{Error as Zk, MultiWriteError};

/// An answer of the client library, or of the server, that is no answer to what was asked.
pub(crate) fn trouble(e: Zk) -> Error {
    let unknown = is_lost(&e);
    let (kind, what, hint) = match &e {
        _ if unknown => (
            Kind::Unreachable,
            "the connection ended before the answer came",
            "the client connects again by itself; the same call may be repeated",
        ),
        Zk::SessionExpired | Zk::ClientClosed => (
            Kind::Unreachable,
            "the session ended",
            "the next call opens another; what the session held is lost",
        ),
        Zk::NoHosts => (
            Kind::Unreachable,
            "no server of the ensemble answers",
            "see whether ZooKeeper runs on these hosts, and whether most of its servers do",
        ),
        Zk::NoAuth => (
            Kind::Credentials,
            "this login may not do that",
            "see the ACL of the path and of what is below it (zkCli: getAcl); a wrong password looks just like that",
        ),
        Zk::AuthFailed => (
            Kind::Credentials,
            "the server refuses the login",
            "give user and password in the URL, as the servers' digest scheme knows them",
        ),
        Zk::InvalidAcl => (
            Kind::Credentials,
            "the server does not take the access list",
            "give a login in the URL, or use ?acl=open",
        ),
        Zk::NotReadOnly => (Kind::Refused, "the server is read-only", MINORITY),
        Zk::Unimplemented => (
            Kind::Unsupported,
            "the server does not know this operation",
            "ZooKeeper 3.6 or newer is needed, with container nodes enabled",
        ),
        Zk::QuotaExceeded => (
            Kind::Store,
            "the quota of the path is used up",
            "raise it (zkCli: setquota), or keep locks under another path",
        ),
        Zk::Throttled => (Kind::Store, "the server is too busy", "ask again later"),
        _ => (Kind::Store, "ZooKeeper answered with an error", "see the server's log"),
    };
    let passing = matches!(e, Zk::NotReadOnly | Zk::Throttled);
    let error = Error::new(kind, what).because(e).with_hint(hint);
    let error = if passing { error.transient() } else { error };
    if unknown { error.unknown() } else { error }
}

/// What a server says that has lost the others.
pub(crate) const MINORITY: &str =
    "it has lost most of the other servers: start them, or mend the network between them";

/// No session within the time for it.
pub(crate) fn no_session(last: Option<Zk>, waited: std::time::Duration) -> Error {
    match last {
        Some(e @ (Zk::AuthFailed | Zk::NoAuth)) => trouble(e),
        last => {
            let what = format!("no server of the ensemble opened a session within {waited:?}");
            let e = Error::new(Kind::Unreachable, what).with_hint(
                "see whether ZooKeeper runs on these hosts and ports, and whether most of its servers do",
            );
            if let Some(last) = last { e.because(last) } else { e }
        }
    }
}

/// The error of a transaction: which of its operations failed, if one did.
pub(crate) fn of_multi(e: MultiWriteError) -> (Option<usize>, Zk) {
    match e {
        MultiWriteError::OperationFailed { index, source } => (Some(index), source),
        MultiWriteError::RequestFailed { source } => (None, source),
    }
}

/// The answer to a delete or a sync, where a node that does not exist is as good.
pub(crate) fn gone(answer: Result<(), Zk>) -> Result<(), Zk> {
    if answer == Err(Zk::NoNode) { Ok(()) } else { answer }
}

/// Whether the session is over.
pub(crate) fn is_over(e: &Zk) -> bool {
    matches!(e, Zk::SessionExpired | Zk::ClientClosed | Zk::AuthFailed)
}

/// Whether it is unknown what became of the request: anything but an answer of the server's.
pub(crate) fn is_lost(e: &Zk) -> bool {
    matches!(
        e,
        Zk::ConnectionLoss
            | Zk::Timeout
            | Zk::SessionMoved
            | Zk::Custom(_)
            | Zk::UnexpectedError(_)
            | Zk::UnmarshalError { .. }
    )
}
