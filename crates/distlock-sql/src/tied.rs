//! A connection that something is tied to: a session lock, or the transaction that holds one.
//!
//! Unlike a [`ConnectionWorker`](crate::ConnectionWorker) it is never made anew: when it breaks, what was tied to it is gone.
//! Each statement runs to its end in a task on the library's own thread, also when the caller is
//! gone, so that no answer is ever taken for that of another statement.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind, engine};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::connection_worker::{Trouble, Work};

/// A connection that something is tied to. Dropping the last handle closes it, once what is under
/// way on it has ended.
pub struct Tied<C> {
    conn: Arc<AsyncMutex<Option<C>>>,
    clock: Clock,
}

impl<C> Clone for Tied<C> {
    fn clone(&self) -> Self {
        Self { conn: self.conn.clone(), clock: self.clock.clone() }
    }
}

impl<C: Send + 'static> Tied<C> {
    /// Takes charge of a connection.
    pub fn new(conn: C, clock: Clock) -> Self {
        Self { conn: Arc::new(AsyncMutex::new(Some(conn))), clock }
    }

    /// Does something on the connection, in turn with others. Without an answer within `bound` the
    /// connection is given up.
    ///
    /// # Errors
    /// What `work` says; [`Kind::Unreachable`] without an answer in time, and for good once the
    /// connection broke.
    ///
    /// # Cancel safety
    /// Once begun it is brought to its end, with or without the caller.
    pub async fn call<T, F>(&self, bound: Duration, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut C) -> Work<'c, T> + Send + 'static,
    {
        let mut conn = self.conn.clone().lock_owned().await;
        let clock = self.clock.clone();
        let (answer, reply) = oneshot::channel();
        engine::spawn(async move {
            let Some(live) = conn.as_mut() else {
                let _ = answer.send(Err(broken()));
                return;
            };
            let result = match clock.timeout(bound, work(live)).await {
                Some(Ok(value)) => Ok(value),
                Some(Err(Trouble { error, broken })) => {
                    if broken {
                        *conn = None;
                    }
                    Err(error)
                }
                None => {
                    *conn = None;
                    Err(Error::new(Kind::Unreachable, format!("no answer within {bound:?}"))
                        .unknown()
                        .with_hint("see whether the database runs and can be reached"))
                }
            };
            // The turn is over before the answer is told: whoever hears it may ask again at once.
            drop(conn);
            let _ = answer.send(result);
        });
        reply.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Whether it is known to be of no use any more. Does not wait for what is under way.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.conn.try_lock().is_ok_and(|conn| conn.is_none())
    }

    /// The connection itself, for another use; `None` when it broke or others still use it.
    #[must_use]
    pub fn into_inner(self) -> Option<C> {
        Arc::try_unwrap(self.conn).ok()?.into_inner()
    }
}

fn broken() -> Error {
    Error::new(Kind::Unreachable, "the connection is gone")
        .with_hint("what was tied to it is lost; take the lock again")
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn it_is_used_in_turn_and_never_half() {
        let tied = Tied::new(0u32, Clock::system());
        let (tx, rx) = oneshot::channel::<()>();
        let begun = Arc::new(tokio::sync::Notify::new());
        let first = tied.call(LONG, {
            let begun = begun.clone();
            move |n| {
                Box::pin(async move {
                    begun.notify_one();
                    let _ = rx.await;
                    *n += 1;
                    Ok(())
                })
            }
        });
        tokio::select! {
            biased;
            r = first => panic!("it waits: {r:?}"),
            () = begun.notified() => {}
        }
        tx.send(()).unwrap();
        // Its caller is gone, and still it comes first.
        let seen = tied.call(LONG, |n| Box::pin(async move { Ok(*n) })).await.unwrap();
        assert_eq!(seen, 1);
        assert_eq!(tied.into_inner(), Some(1));
    }

    #[tokio::test]
    async fn without_an_answer_it_is_given_up_for_good() {
        let tied = Tied::new((), Clock::system());
        let never = tied.call::<(), _>(Duration::from_millis(10), |_| Box::pin(pending()));
        let e = never.await.unwrap_err();
        assert_eq!(e.outcome(), distlock_core::Outcome::Unknown);
        assert!(tied.is_broken());
        let e = tied.call(LONG, |()| Box::pin(async { Ok(()) })).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unreachable);
        assert_eq!(tied.into_inner(), None);
    }
}
