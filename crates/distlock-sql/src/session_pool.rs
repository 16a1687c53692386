//! Connections for locks that are tied to one: at most so many, and those that rest are used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{Clock, Error, Kind, engine};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::connection_worker::{Opens, Work};
use crate::tied::Tied;

/// Room for so many connections.
pub struct Seats<O: Opens> {
    opens: Arc<O>,
    clock: Clock,
    bound: Duration,
    room: Arc<Semaphore>,
    resting: Arc<Resting<O::Conn>>,
}

/// Connections that nothing is tied to; `None` once the store was closed.
type Resting<C> = Mutex<Option<Vec<C>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O: Opens> Seats<O> {
    /// Room for `most` connections. None is made before it is needed; one that does not come about
    /// within `bound` is given up.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration, most: usize) -> Self {
        let resting = Arc::new(Mutex::new(Some(Vec::new())));
        Self { opens, clock, bound, room: Arc::new(Semaphore::new(most)), resting }
    }

    /// A connection for one lock alone: one that rests, or a new one. With `fresh` those that rest
    /// are closed first: the other side may have ended them all.
    ///
    /// # Errors
    /// [`Kind::Refused`] when there is no room, and whatever keeps a connection from coming about.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn take(&self, fresh: bool) -> Result<Seat<O::Conn>, Error> {
        let place = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            Error::new(Kind::Refused, "every connection for locks is in use")
                .transient()
                .with_hint("hold and wait for fewer locks at once, or raise ?sessions=")
        })?;
        let rested = lock(&self.resting).as_mut().and_then(|resting| {
            if fresh {
                resting.clear();
            }
            resting.pop()
        });
        let reused = rested.is_some();
        let conn = match rested {
            Some(conn) => conn,
            None => self.open().await?,
        };
        let (tied, resting) = (Tied::new(conn, self.clock.clone()), Arc::clone(&self.resting));
        Ok(Seat { tied, reused, resting, _place: place })
    }

    /// On the library's thread, where it is to live: a caller's runtime may be blocked.
    async fn open(&self) -> Result<O::Conn, Error> {
        let (opens, clock, bound) = (Arc::clone(&self.opens), self.clock.clone(), self.bound);
        let (tx, rx) = oneshot::channel();
        engine::spawn(async move {
            let late = || Error::new(Kind::Unreachable, format!("no answer within {bound:?}"));
            let opened = clock.timeout(bound, opens.open()).await;
            let _ = tx.send(opened.unwrap_or_else(|| Err(late())));
        });
        let gone = |_| Error::new(Kind::Closed, "the library's thread is gone");
        rx.await.map_err(gone)?
    }

    /// Closes those that rest, and from now on those that would.
    pub async fn close(&self) {
        let resting = lock(&self.resting).take();
        for conn in resting.unwrap_or_default() {
            let _ = self.clock.timeout(self.bound, self.opens.close(conn)).await;
        }
    }
}

/// A connection for one lock. Dropping it closes the connection, once what is under way on it has
/// ended.
pub struct Seat<C> {
    tied: Tied<C>,
    reused: bool,
    resting: Arc<Resting<C>>,
    _place: OwnedSemaphorePermit,
}

impl<C: Send + 'static> Seat<C> {
    /// As [`Tied::call`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn call<T, F>(&self, bound: Duration, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut C) -> Work<'c, T> + Send + 'static,
    {
        self.tied.call(bound, work).await
    }

    /// Whether it has been used before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Whether it is known to be of no use any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.tied.is_broken()
    }

    /// The connection itself, to be closed in order; `None` when it broke or is in use.
    #[must_use]
    pub fn into_inner(self) -> Option<C> {
        self.tied.into_inner()
    }

    /// Keeps the connection for another lock. Only for one that nothing is tied to any more.
    pub fn rest(self) {
        let Self { tied, resting, _place, .. } = self;
        // Under one lock with the look whether the store was closed.
        if let (Some(conn), Some(resting)) = (tied.into_inner(), lock(&resting).as_mut()) {
            resting.push(conn);
        }
    }
}

#[cfg(test)]
mod tests {
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

    async fn number(seat: &Seat<u32>) -> u32 {
        let asked = seat.call(Duration::from_secs(60), |n| Box::pin(async move { Ok(*n) }));
        asked.await.unwrap()
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_and_what_rests_is_used_again() {
        let bound = Duration::from_secs(60);
        let seats = Seats::new(Arc::new(Numbers::default()), Clock::system(), bound, 2);
        let (a, b) = (seats.take(false).await.unwrap(), seats.take(false).await.unwrap());
        assert_eq!((number(&a).await, number(&b).await), (0, 1));
        let e = seats.take(false).await.err().expect("no room");
        assert!(e.kind() == Kind::Refused && e.hint().is_some(), "{e:?}");
        b.rest();
        let b = seats.take(false).await.unwrap();
        assert_eq!((number(&b).await, b.is_reused()), (1, true));
        // Dropped, it is closed, and its room is another's.
        drop(b);
        let b = seats.take(false).await.unwrap();
        assert_eq!((number(&b).await, b.is_reused()), (2, false));
        // One that rests may be stale.
        b.rest();
        let b = seats.take(true).await.unwrap();
        assert_eq!(number(&b).await, 3);
        seats.close().await;
        b.rest();
        assert_eq!(number(&seats.take(false).await.unwrap()).await, 4);
    }
}
