//! From a failed call to an error: whether it was sent, why it failed, and what to do next.

use std::error::Error as StdError;

use distlock_core::{Error, Kind};
use tonic::{Code, ConnectError, Status};

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The lease it named does not exist. Nothing happened, unless an earlier attempt is in doubt.
    NoLease { doubt: bool },
    /// The lease to be made exists already.
    LeaseExists,
    /// Anything else.
    Other(Error),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Other(e) => e,
            Fault::NoLease { .. } => Error::new(Kind::Store, "the lease ended").transient(),
            Fault::LeaseExists => Error::new(Kind::Store, "the lease's id is taken").transient(),
        }
    }
}

/// What to do about a failed attempt.
pub(crate) enum Next {
    /// It was not sent, or the member cannot serve it just now: asking again, another member first,
    /// is right for what is idempotent. With `doubt` it may have taken effect.
    Again { error: Error, doubt: bool },
    /// The login's token is not known there any more.
    Login(Error),
    /// Asking again would not help.
    Final(Fault),
}

/// Sorts a failed attempt.
pub(crate) fn next(status: Status, tls: bool) -> Next {
    if let Some(cause) = not_sent(&status) {
        return Next::Again { error: unreachable(&cause, tls), doubt: false };
    }
    let said = status.message().to_owned();
    let store = |kind, what: String| Error::new(kind, what);
    match (status.code(), said.as_str()) {
        (Code::NotFound, m) if m.contains("requested lease not found") => {
            Next::Final(Fault::NoLease { doubt: false })
        }
        (_, m) if m.contains("lease already exists") => Next::Final(Fault::LeaseExists),
        (_, m) if m.contains("invalid auth token") || m.contains("auth store is old") => {
            Next::Login(refused_login(m))
        }
        (code, m)
            if is_login(m) || matches!(code, Code::PermissionDenied | Code::Unauthenticated) =>
        {
            Next::Final(Fault::Other(refused_login(m)))
        }
        (Code::ResourceExhausted, m) if m.contains("too many requests") => {
            let error = store(Kind::Unreachable, "the cluster is overloaded".into())
                .with_hint("ask again in a moment; see how busy etcd's disk is");
            Next::Again { error, doubt: false }
        }
        // What was under way when the last of the space was used has taken effect, and is told this
        // too.
        (Code::ResourceExhausted, m) => Next::Final(Fault::Other(
            store(Kind::Store, format!("the cluster refuses: {m}")).unknown().with_hint(
                "its database is full: compact, defragment, then `etcdctl alarm disarm`",
            ),
        )),
        (Code::Unimplemented, _) => Next::Final(Fault::Other(
            store(Kind::Unsupported, "this server does not serve etcd's v3 API".into())
                .with_hint("etcd 3.4 or later is needed, and its client port (2379)"),
        )),
        (
            Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded,
            m,
        ) => {
            let ours = status.source().is_some();
            let what = match ours {
                true => "the connection broke".to_owned(),
                false => format!("the cluster is not available: {m}"),
            };
            let hint = match (ours, tls) {
                (false, _) => "see whether it has a leader: `etcdctl endpoint status --cluster`",
                (true, false) => {
                    "see whether the member runs, and without TLS; write etcds:// for TLS"
                }
                (true, true) => {
                    "see whether the member runs, and with TLS (etcd:// is without); it may ask for a \
                     client certificate: ?cert=FILE&key=FILE"
                }
            };
            let error = store(Kind::Unreachable, what).with_hint(hint);
            let error = if ours { error.because(status) } else { error };
            Next::Again { error, doubt: true }
        }
        (code, m) => Next::Final(Fault::Other(
            store(Kind::Store, format!("the cluster refuses: {m} ({code:?})"))
                .with_hint("see etcd's log; version 3.4 or later is needed"),
        )),
    }
}

/// Whether a login is asked for, or was refused.
fn is_login(said: &str) -> bool {
    said.contains("user name is empty")
        || said.contains("invalid user ID or password")
        || said.contains("permission denied")
}

fn refused_login(said: &str) -> Error {
    Error::new(Kind::Credentials, format!("the cluster refused the login: {said}")).with_hint(
        "write the login into the URL, etcd://user:password@host; the user's role needs read and \
         write on the prefix /distlock/",
    )
}

/// The cause, when no connection came about.
fn not_sent(status: &Status) -> Option<String> {
    let mut cause = status.source();
    while let Some(e) = cause {
        if e.is::<ConnectError>() {
            return Some(deepest(e));
        }
        cause = e.source();
    }
    None
}

fn deepest(mut e: &dyn StdError) -> String {
    while let Some(next) = e.source() {
        e = next;
    }
    e.to_string()
}

fn unreachable(cause: &str, tls: bool) -> Error {
    let hint = if cause.contains("ertificate") || cause.contains("UnknownIssuer") {
        "?ca=FILE names the authority that signed the cluster's certificates; ?cert= and ?key= are \
         ours where it asks for one"
    } else if tls {
        "see whether etcd runs there, can be reached, and speaks TLS: etcd:// is without"
    } else {
        "see whether etcd runs there and can be reached; the client port is usually 2379"
    };
    Error::new(Kind::Unreachable, format!("no connection: {cause}")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use distlock_core::Outcome;

    use super::*;

    #[test]
    fn a_cluster_without_space_may_have_done_it_all_the_same() {
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        match next(full, false) {
            Next::Final(Fault::Other(e)) => assert_eq!(e.outcome(), Outcome::Unknown),
            _ => panic!("asking again does not help"),
        }
        let busy = Status::resource_exhausted("etcdserver: too many requests");
        assert!(matches!(next(busy, false), Next::Again { doubt: false, .. }));
    }
}
