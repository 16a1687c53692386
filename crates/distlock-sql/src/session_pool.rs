//! Connections for locks that are tied to one: a bounded number, and idle ones are used again.
//!
//! Unlike that of a [`ConnectionWorker`](crate::ConnectionWorker) such a connection is never made
//! anew: when it breaks, the session lock or transaction that was tied to it is gone. Each statement
//! runs to its end in a task on the library's own thread, also when the caller is gone, so that no
//! answer is ever taken for that of another statement.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind, Mutex, engine};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::connection_worker::{Opens, Trouble, Work};

/// A bounded number of connections.
pub struct SessionPool<O: Opens>(Arc<Pool<O>>);

struct Pool<O: Opens> {
    opens: Arc<O>,
    clock: Clock,
    bound: Duration,
    room: Arc<Semaphore>,
    /// Connections that nothing is tied to; `None` once the store was closed.
    idle: Mutex<Option<Vec<O::Conn>>>,
}

impl<O: Opens> SessionPool<O> {
    /// Room for `most` connections. None is made before it is needed; one that does not come about
    /// within `bound` is given up.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration, most: usize) -> Self {
        let (room, idle) = (Arc::new(Semaphore::new(most)), Mutex::new(Some(Vec::new())));
        Self(Arc::new(Pool { opens, clock, bound, room, idle }))
    }

    /// A connection for one lock alone: an idle one, or a new one. With `fresh` idle ones are closed
    /// first: the other side may have ended them all.
    ///
    /// # Errors
    /// [`Kind::Refused`] when there is no room, and whatever keeps a connection from coming about.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn take(&self, fresh: bool) -> Result<PooledConnection<O>, Error> {
        let permit = Arc::clone(&self.0.room).try_acquire_owned().map_err(|_| {
            Error::new(Kind::Refused, "every connection for locks is in use")
                .transient()
                .with_hint("hold and wait for fewer locks at once, or raise ?sessions=")
        })?;
        let idle = self.0.idle.lock().as_mut().and_then(|idle| {
            if fresh {
                idle.clear();
            }
            idle.pop()
        });
        let reused = idle.is_some();
        let conn = match idle {
            Some(conn) => conn,
            None => self.open().await?,
        };
        let (conn, pool) = (Arc::new(AsyncMutex::new(Some(conn))), Arc::clone(&self.0));
        Ok(PooledConnection { conn, reused, pool, permit })
    }

    /// On the library's thread, where it is to live: a caller's runtime may be blocked.
    async fn open(&self) -> Result<O::Conn, Error> {
        let pool = Arc::clone(&self.0);
        let (tx, rx) = oneshot::channel();
        engine::spawn(async move {
            let late = || Error::unanswered(pool.bound).not_applied();
            let opened = pool.clock.timeout(pool.bound, pool.opens.open()).await;
            let _ = tx.send(opened.unwrap_or_else(|| Err(late())));
        });
        let gone = |_| Error::new(Kind::Closed, "the library's thread is gone");
        rx.await.map_err(gone)?
    }

    /// Closes idle connections, and from now on those that would become idle.
    pub async fn close(&self) {
        let idle = self.0.idle.lock().take();
        for conn in idle.unwrap_or_default() {
            self.0.close(conn).await;
        }
    }
}

impl<O: Opens> Pool<O> {
    async fn close(&self, conn: O::Conn) {
        let _ = self.clock.timeout(self.bound, self.opens.close(conn)).await;
    }
}

/// A connection for one lock. Dropping it closes the connection, once what is under way on it has
/// ended.
pub struct PooledConnection<O: Opens> {
    conn: Arc<AsyncMutex<Option<O::Conn>>>,
    reused: bool,
    pool: Arc<Pool<O>>,
    permit: OwnedSemaphorePermit,
}

impl<O: Opens> PooledConnection<O> {
    /// As [`PooledConnection::call_within`], within the bound of the pool.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub fn call<T, F>(&self, work: F) -> impl Future<Output = Result<T, Error>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        self.call_within(self.pool.bound, work)
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
    pub async fn call_within<T, F>(&self, bound: Duration, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        let mut conn = self.conn.clone().lock_owned().await;
        let clock = self.pool.clock.clone();
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
                    Err(Error::unanswered(bound))
                }
            };
            // The turn is over before the answer is told: the caller may ask again at once.
            drop(conn);
            let _ = answer.send(result);
        });
        reply.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Whether it has been used before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Whether it is known to be of no use any more. Does not wait for what is under way.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.conn.try_lock().is_ok_and(|conn| conn.is_none())
    }

    /// The connection itself; `None` when it broke or is in use. With the permit another one takes its
    /// room.
    fn into_inner(self) -> (Option<O::Conn>, Arc<Pool<O>>, OwnedSemaphorePermit) {
        (Arc::into_inner(self.conn).and_then(AsyncMutex::into_inner), self.pool, self.permit)
    }

    /// Closes the connection in order, unless it broke or is in use.
    pub async fn close(self) {
        // The room is free once the connection is closed, or there would be one more meanwhile.
        let (Some(conn), pool, _permit) = self.into_inner() else { return };
        pool.close(conn).await;
    }

    /// Keeps the connection for another lock. Only for one that nothing is tied to any more.
    pub fn rest(self) {
        // Idle before its room is free: whoever takes that room finds it, and opens no other.
        let (conn, pool, _permit) = self.into_inner();
        // Under one lock with the look whether the store was closed.
        if let (Some(conn), Some(idle)) = (conn, pool.idle.lock().as_mut()) {
            idle.push(conn);
        }
    }
}

fn broken() -> Error {
    Error::new(Kind::Unreachable, "the connection is gone")
        .with_hint("what was tied to it is lost; take the lock again")
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Numbers(AtomicU32);

    impl Opens for Numbers {
        type Conn = u32;

        async fn open(&self) -> Result<u32, Error> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed))
        }

        async fn close(&self, _conn: u32) {}
    }

    const LONG: Duration = Duration::from_secs(60);

    fn pool(most: usize) -> SessionPool<Numbers> {
        SessionPool::new(Arc::new(Numbers::default()), Clock::system(), LONG, most)
    }

    async fn number(connection: &PooledConnection<Numbers>) -> u32 {
        connection.call(|n| Box::pin(async move { Ok(*n) })).await.unwrap()
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_and_what_rests_is_used_again() {
        let pool = pool(2);
        let (a, b) = (pool.take(false).await.unwrap(), pool.take(false).await.unwrap());
        assert_eq!((number(&a).await, number(&b).await), (0, 1));
        let e = pool.take(false).await.err().expect("no room");
        assert!(e.kind() == Kind::Refused && e.hint().is_some(), "{e:?}");
        b.rest();
        let b = pool.take(false).await.unwrap();
        assert_eq!((number(&b).await, b.is_reused()), (1, true));
        // Dropped, it is closed, and its room is another's.
        drop(b);
        let b = pool.take(false).await.unwrap();
        assert_eq!((number(&b).await, b.is_reused()), (2, false));
        // One that rests may be stale.
        b.rest();
        let b = pool.take(true).await.unwrap();
        assert_eq!(number(&b).await, 3);
        pool.close().await;
        b.rest();
        assert_eq!(number(&pool.take(false).await.unwrap()).await, 4);
    }

    /// A server on which closing takes time.
    #[derive(Default)]
    struct Slow {
        closing: tokio::sync::Notify,
        closed: tokio::sync::Notify,
    }

    impl Opens for Slow {
        type Conn = ();

        async fn open(&self) -> Result<(), Error> {
            Ok(())
        }

        async fn close(&self, (): ()) {
            self.closing.notify_one();
            self.closed.notified().await;
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_being_closed_keeps_its_room() {
        let slow = Arc::new(Slow::default());
        let pool = SessionPool::new(Arc::clone(&slow), Clock::system(), LONG, 1);
        let closing = pool.take(false).await.unwrap().close();
        let meanwhile = async {
            slow.closing.notified().await;
            let taken = pool.take(false).await;
            slow.closed.notify_one();
            taken.err().map(|e| e.kind())
        };
        let ((), refused) = tokio::join!(closing, meanwhile);
        assert_eq!(refused, Some(Kind::Refused), "one connection more than there is room for");
        assert!(pool.take(false).await.is_ok());
    }

    #[tokio::test]
    async fn a_connection_is_used_in_turn_and_never_half() {
        let tied = pool(1).take(false).await.unwrap();
        let (tx, rx) = oneshot::channel::<()>();
        let begun = Arc::new(tokio::sync::Notify::new());
        let first = tied.call({
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
        let seen = number(&tied).await;
        assert_eq!(seen, 1);
        assert_eq!(tied.into_inner().0, Some(1));
    }

    #[tokio::test]
    async fn a_connection_without_an_answer_is_given_up_for_good() {
        let tied = pool(1).take(false).await.unwrap();
        let never = tied.call_within::<(), _>(Duration::from_millis(10), |_| Box::pin(pending()));
        let e = never.await.unwrap_err();
        assert_eq!(e.outcome(), distlock_core::Outcome::Unknown);
        assert!(tied.is_broken());
        let e = tied.call(|_| Box::pin(async { Ok(()) })).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unreachable);
        assert_eq!(tied.into_inner().0, None);
    }
}
