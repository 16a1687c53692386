//! One error for everything that is not an answer.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::{Busy, Mode};

/// What kind of trouble it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An invalid name, URL, duration or option.
    Usage,
    /// The store does not answer.
    Unreachable,
    /// The store refuses the credentials.
    Credentials,
    /// The store promises less than was required, or must not be used as it is configured.
    Refused,
    /// The store, or this build, cannot do that.
    Unsupported,
    /// Somebody else holds the lock (only when busy was asked for as an error).
    Busy,
    /// The lock was lost.
    Lost,
    /// The request was cancelled, or its place in the queue was taken away.
    Cancelled,
    /// The client was closed.
    Closed,
    /// The store holds data of a newer layout, or data that makes no sense.
    Layout,
    /// The store answered with an error of its own.
    Store,
}

impl Kind {
    /// A stable word for logs and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Usage => "usage",
            Kind::Unreachable => "unreachable",
            Kind::Credentials => "credentials",
            Kind::Refused => "refused",
            Kind::Unsupported => "unsupported",
            Kind::Busy => "busy",
            Kind::Lost => "lost",
            Kind::Cancelled => "cancelled",
            Kind::Closed => "closed",
            Kind::Layout => "layout",
            Kind::Store => "store",
        }
    }
}

/// Whether what was asked for has happened. "Unknown" is never folded into yes or no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It has not happened and will not.
    NotApplied,
    /// It has happened, and the error came after.
    Applied,
    /// It may have happened: the request left and no answer came.
    Unknown,
}

/// Everything that can go wrong: what kind, whether it took effect, where, and what to do next.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: Kind,
    outcome: Outcome,
    message: Cow<'static, str>,
    hint: Option<Cow<'static, str>>,
    op: Option<&'static str>,
    lock: Option<String>,
    store: Option<String>,
    transient: bool,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a kind with a message. Not applied, not transient, until said otherwise.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            outcome: Outcome::NotApplied,
            message: message.into(),
            hint: None,
            op: None,
            lock: None,
            store: None,
            transient: matches!(kind, Kind::Unreachable),
            retry_after: None,
            source: None,
        }))
    }

    /// For authors of stores: the store grants nothing to anybody for now (a quarantine after a
    /// restart); ask again after `left`.
    pub fn not_yet(left: Duration, why: impl Into<Cow<'static, str>>) -> Self {
        let mut e = Self::new(Kind::Refused, why).transient();
        e.0.retry_after = Some(left);
        e
    }

    /// For authors of stores: no answer came within `bound`, so that the outcome is unknown.
    #[must_use]
    pub fn unanswered(bound: Duration) -> Self {
        Self::new(Kind::Unreachable, format!("no answer within {bound:?}")).unknown().with_hint(
            "see whether the store runs and can be reached; the same call may be repeated",
        )
    }

    /// The request was cancelled or released before: its tombstone refuses it.
    pub(crate) fn tombstoned() -> Self {
        Self::new(Kind::Cancelled, "this request was cancelled or taken away")
            .with_hint("ask again: a new acquire is a new request")
    }

    /// The lock is shared by another number of permits.
    pub(crate) fn permits_differ(n: NonZeroU32) -> Self {
        Self::new(Kind::Usage, format!("the lock is in use with {n} permits"))
            .with_hint("all who share a lock by permits must ask with the same number")
    }

    /// The owner holds the lock in another mode.
    pub(crate) fn mode_differs(mode: Mode) -> Self {
        Self::new(Kind::Usage, format!("this owner holds the lock as {mode}"))
            .with_hint("it would wait for itself: release it first, or use another owner")
    }

    /// Adds what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Says that it is unknown whether the request took effect.
    #[must_use]
    pub fn unknown(mut self) -> Self {
        self.0.outcome = Outcome::Unknown;
        self
    }

    /// Says that the request took no effect: it was never sent.
    #[must_use]
    pub fn not_applied(mut self) -> Self {
        self.0.outcome = Outcome::NotApplied;
        self
    }

    /// Says that the request took effect all the same.
    #[must_use]
    pub fn applied(mut self) -> Self {
        self.0.outcome = Outcome::Applied;
        self
    }

    /// Says that the same call may succeed later.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.0.transient = true;
        self
    }

    /// Adds the operation it happened in.
    #[must_use]
    pub fn during(mut self, op: &'static str) -> Self {
        self.0.op.get_or_insert(op);
        self
    }

    /// Adds the lock it is about.
    #[must_use]
    pub fn lock(mut self, name: impl fmt::Display) -> Self {
        self.0.lock.get_or_insert_with(|| name.to_string());
        self
    }

    /// Adds the store it happened at.
    #[must_use]
    pub fn store(mut self, store: impl fmt::Display) -> Self {
        self.0.store.get_or_insert_with(|| store.to_string());
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Whether what was asked for has happened.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// When the store may grant again, if this is [`Error::not_yet`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// What to do next, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The message alone, without operation, lock and store.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if let Some(op) = inner.op {
            write!(f, "{op}")?;
            if let Some(lock) = &inner.lock {
                write!(f, " {lock:?}")?;
            }
            write!(f, ": ")?;
        } else if let Some(lock) = &inner.lock {
            write!(f, "lock {lock:?}: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(store) = &inner.store {
            write!(f, " ({store})")?;
        }
        if inner.outcome == Outcome::Unknown {
            f.write_str("; it is unknown whether this took effect")?;
        }
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, {:?}: {self}", self.0.kind, self.0.outcome)?;
        if let Some(hint) = &self.0.hint {
            write!(f, "; hint: {hint}")?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn StdError + 'static))
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Error::new(Kind::Busy, busy.to_string()).transient()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_what_and_how_sure() {
        let e = Error::unanswered(Duration::from_secs(2))
            .during("acquire")
            .lock("orders")
            .store("redis://h")
            .because(std::io::Error::other("reset"));
        assert_eq!(
            e.to_string(),
            "acquire \"orders\": no answer within 2s (redis://h); \
             it is unknown whether this took effect: reset"
        );
        assert!(e.is_transient() && e.outcome() == Outcome::Unknown && e.source().is_some());
    }
}
