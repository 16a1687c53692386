//! What a resource can answer instead of doing it.

use std::error::Error as StdError;
use std::fmt;

use distlock_core::{Kind, Token};

/// The error underneath, whatever the resource.
pub type Source = Box<dyn StdError + Send + Sync>;

/// Somebody with a newer token was at the resource: whoever holds this one was paused, cut off or
/// broken into, and is no longer the holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stale {
    /// The resource that refused.
    pub resource: String,
    /// The token that came too late.
    pub token: Token,
    /// The highest the resource has seen.
    pub highest: Token,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, token, highest } = self;
        write!(f, "token {token} of {resource:?} is stale: {highest} was here")
    }
}

impl StdError for Stale {}

/// Others were quicker, every time: nothing was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// What was to be changed.
    pub what: String,
    /// How often it was tried.
    pub tries: u32,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} was changed by others in each of {} tries", self.what, self.tries)
    }
}

impl StdError for Conflict {}

/// Why an effect was not allowed, or could not be tried.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The token is stale. Roll back, and stop: the lock is somebody else's.
    Stale(Stale),
    /// Others were quicker, every time.
    Conflict(Conflict),
    /// There is no such row.
    Missing {
        /// The row that was asked for.
        row: String,
    },
    /// The database could not order this transaction among others (deadlock, serialization
    /// failure, busy). Nothing of it counts; the same transaction may succeed when run again.
    Retry(Source),
    /// An invalid name or piece of SQL.
    Usage(String),
    /// The table is missing: `install` was never run here.
    NotInstalled(Source),
    /// What is stored was written by a newer version, or makes no sense.
    Layout(String),
    /// The resource's own error.
    Store(Source),
}

impl Error {
    /// Whether the same work, begun anew, may succeed without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Retry(_) | Error::Conflict(_))
    }

    /// The refusal, when that is what it is.
    #[must_use]
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Error::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Stale(_) => "roll back and stop: somebody else holds the lock by now",
            Error::Conflict(_) => "try later, allow more tries, or take a lock around the change",
            Error::Missing { .. } => "insert the row first",
            Error::Retry(_) => "roll back and run the whole transaction again",
            Error::Usage(_) => "correct the call",
            Error::NotInstalled(_) => "run `install` once, or create the tables from `SCHEMA`",
            Error::Layout(_) => "use a newer distlock-fence, or look at who else writes there",
            Error::Store(_) => "see the error underneath; it may have taken effect",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Stale(stale) => stale.fmt(f),
            Error::Conflict(conflict) => conflict.fmt(f),
            Error::Missing { row } => write!(f, "there is no {row}"),
            Error::Retry(e) => write!(f, "the transaction must be run again: {e}"),
            Error::Usage(why) | Error::Layout(why) => f.write_str(why),
            Error::NotInstalled(e) => write!(f, "the table of distlock-fence is missing: {e}"),
            Error::Store(e) => write!(f, "the resource failed: {e}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Stale(stale) => Some(stale),
            Error::Conflict(conflict) => Some(conflict),
            Error::Retry(e) | Error::NotInstalled(e) | Error::Store(e) => Some(&**e),
            Error::Missing { .. } | Error::Usage(_) | Error::Layout(_) => None,
        }
    }
}

impl From<Stale> for Error {
    fn from(stale: Stale) -> Self {
        Error::Stale(stale)
    }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        Error::Conflict(conflict)
    }
}

/// So that work under a lock needs one error type: stale is lost, and what may be tried again is
/// transient.
impl From<Error> for distlock_core::Error {
    fn from(e: Error) -> Self {
        let kind = match &e {
            Error::Stale(_) => Kind::Lost,
            Error::Usage(_) => Kind::Usage,
            Error::Layout(_) => Kind::Layout,
            _ => Kind::Store,
        };
        let told = distlock_core::Error::new(kind, e.to_string()).with_hint(e.hint());
        let told = if e.is_retryable() { told.transient() } else { told };
        if matches!(e, Error::Store(_)) { told.unknown() } else { told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_token_is_a_lost_lock_and_a_conflict_may_be_tried_again() {
        let token = |n| Token::new(n).unwrap();
        let stale = Stale { resource: "stock".into(), token: token(4), highest: token(9) };
        assert_eq!(stale.to_string(), "token 4 of \"stock\" is stale: 9 was here");
        let told = distlock_core::Error::from(Error::from(stale));
        assert!(told.kind() == Kind::Lost && !told.is_transient() && told.hint().is_some());
        let conflict = Error::from(Conflict { what: "stock".into(), tries: 3 });
        assert!(conflict.is_retryable() && conflict.stale().is_none());
        assert!(distlock_core::Error::from(conflict).is_transient());
    }
}
