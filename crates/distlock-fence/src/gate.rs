//! The fence of a server of one's own: admits one token at a time, never a lower one.
//!
//! 1. Wait until nobody else is at work on the resource.
//! 2. Refuse a token below the highest that was let in.
//! 3. Remember the token, and give a permit.
//! 4. The effect happens while the permit is held; the next one waits for its end.
//!
//! Comparing first and writing later would not do: a newer holder could come in between.

use std::collections::HashMap;
use std::sync::Arc;

use distlock_core::{Mutex, Token, engine};
use tokio::sync::OwnedMutexGuard;

use crate::Stale;

/// The highest token that was let in; locked while somebody is at work.
type Mark = Arc<tokio::sync::Mutex<Option<Token>>>;

/// Lets holders of rising tokens work on resources, one at a time per resource, and refuses a
/// holder that came too late.
///
/// The marks live in memory, one for each resource ever named: map what strangers send to
/// resources you know. After a restart nothing is remembered, unless [`FenceGate::marks`] was
/// kept and handed to [`FenceGate::with_marks`]; where data survives a restart, its fence should,
/// too, so prefer a fence in the database itself.
///
/// ```
/// # use distlock_fence::{FenceGate, Stale, Token};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = FenceGate::new();
/// let (old, new) = (Token::new(7)?, Token::new(8)?);
/// let permit = gate.enter("printer", new).await?;
/// // … print; whoever comes meanwhile waits …
/// drop(permit);
/// let late = gate.enter("printer", old).await.unwrap_err();
/// assert_eq!(late, Stale { resource: "printer".into(), token: old, highest: new });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FenceGate {
    marks: Arc<Mutex<HashMap<String, Mark>>>,
}

impl FenceGate {
    /// A gate that has seen nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A gate that has seen these before.
    pub fn with_marks(marks: impl IntoIterator<Item = (String, Token)>) -> Self {
        let mark = |(resource, token)| (resource, Arc::new(tokio::sync::Mutex::new(Some(token))));
        Self { marks: Arc::new(Mutex::new(marks.into_iter().map(mark).collect())) }
    }

    /// Waits until nobody else works on the resource and lets this token in: hold the permit for
    /// as long as the effect takes. The same token may come as often as it likes.
    ///
    /// # Errors
    /// [`Stale`] when a higher token was let in before.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no trace.
    pub async fn enter(&self, resource: &str, token: Token) -> Result<Permit, Stale> {
        let mark = self.mark(resource);
        Permit::on(mark.lock_owned().await, resource, token)
    }

    /// As [`FenceGate::enter`], for code without a runtime; inside one it blocks the thread.
    ///
    /// # Errors
    /// [`Stale`] when a higher token was let in before.
    pub fn enter_blocking(&self, resource: &str, token: Token) -> Result<Permit, Stale> {
        let mark = self.mark(resource);
        let free = mark.clone().try_lock_owned();
        let mark = free.unwrap_or_else(|_| engine::block_on(mark.lock_owned()));
        Permit::on(mark, resource, token)
    }

    /// Every resource with the highest token that was let in: what to keep for a restart. Waits
    /// for those who are at work.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn marks(&self) -> Vec<(String, Token)> {
        let all: Vec<(String, Mark)> =
            self.marks.lock().iter().map(|(r, m)| (r.clone(), m.clone())).collect();
        let mut seen = Vec::with_capacity(all.len());
        for (resource, mark) in all {
            seen.extend(mark.lock().await.map(|token| (resource, token)));
        }
        seen
    }

    fn mark(&self, resource: &str) -> Mark {
        let mut marks = self.marks.lock();
        match marks.get(resource) {
            Some(mark) => mark.clone(),
            None => marks.entry(resource.to_owned()).or_default().clone(),
        }
    }
}

/// Leave to work on a resource. Nobody else has one for it until this is dropped, which takes
/// effect at once.
#[derive(Debug)]
#[must_use = "the resource is open to others as soon as this is dropped"]
pub struct Permit {
    mark: OwnedMutexGuard<Option<Token>>,
    token: Token,
}

impl Permit {
    fn on(
        mut mark: OwnedMutexGuard<Option<Token>>,
        resource: &str,
        token: Token,
    ) -> Result<Self, Stale> {
        match *mark {
            Some(highest) if highest > token => {
                Err(Stale { resource: resource.to_owned(), token, highest })
            }
            _ => {
                *mark = Some(token);
                Ok(Self { mark, token })
            }
        }
    }

    /// The token it was given for.
    #[must_use]
    pub fn token(&self) -> Token {
        debug_assert_eq!(*self.mark, Some(self.token));
        self.token
    }
}
