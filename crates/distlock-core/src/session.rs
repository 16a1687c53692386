//! What a store of the session family must offer: a lock tied to a connection or descriptor.

use std::future::Future;

use crate::{
    Ask, ClockReading, Error, EventSink, Force, Forced, FullName, LockInfo, LossReason, Query,
    QueueStatus, Released, StoreInfo, Token, TokenRange, Watcher,
};

/// The answer to a lock call of a session store.
pub enum Locked<C> {
    /// Held through this connection.
    Held {
        /// Dropping it frees the lock.
        conn: C,
        /// When the last question left that was answered through this connection: as of then it
        /// held the lock. `None` for a lock that cannot end unseen.
        sent: Option<ClockReading>,
        /// Its tokens.
        tokens: TokenRange,
        /// How many wait behind it.
        waiters: u32,
    },
    /// Patience ran out; nothing is left behind.
    Busy(QueueStatus),
}

/// Whether a connection still holds its lock.
#[derive(Clone, Debug)]
pub enum Alive {
    /// It does.
    Yes {
        /// How many wait behind it.
        waiters: u32,
    },
    /// It does not.
    No(LossReason),
    /// No answer.
    Unknown(Error),
}

/// A store where the server or the kernel ties a lock to a connection or descriptor.
///
/// For authors of stores; users never see it. [`SessionDriver`](crate::session_driver::SessionDriver) turns it into a
/// [`Backend`](crate::backend::Backend): holds by request id, re-entry, bounded calls.
///
/// # Contract
/// * Dropping a `Conn` frees its lock, at once or as soon as the other side notices.
/// * The future of `lock` may be dropped at any await: then nothing is held and nothing waits.
/// * `alive` may be dropped at any await as well: a connection that is of no use after that answers
///   [`Alive::No`] from then on. The driver bounds it in time; `unlock` bounds itself.
/// * The token is stored before it is told, and outlives the connection.
/// * An owner never meets itself here: re-entry is the driver's affair.
pub trait SessionStore: Send + Sync + 'static {
    /// What a held lock is tied to.
    type Conn: Send + 'static;

    /// What this store is and promises.
    fn info(&self) -> StoreInfo<'_>;

    /// Asks for a lock and waits as long as the ask's patience, telling `seen` where it stands.
    fn lock(
        &self,
        ask: &Ask,
        seen: Watcher<'_>,
    ) -> impl Future<Output = Result<Locked<Self::Conn>, Error>> + Send;

    /// Looks whether the lock is still held.
    fn alive(&self, conn: &mut Self::Conn) -> impl Future<Output = Alive> + Send;

    /// Gives the lock back in order and says whether it was still held; an error leaves it to the
    /// drop of the connection.
    fn unlock(&self, conn: Self::Conn) -> impl Future<Output = Result<Released, Error>> + Send;

    /// Lists locks.
    fn inspect(&self, query: &Query) -> impl Future<Output = Result<Vec<LockInfo>, Error>> + Send;

    /// Takes a lock away.
    fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> impl Future<Output = Result<Forced, Error>> + Send;

    /// Told once, before any other call: where news goes.
    /// [`Wake::Everybody`](crate::lease::Wake) when connections may have ended unseen: the driver
    /// looks at all that are held, and tells who lost its lock, without waiting for their renewal.
    fn listen(&self, sink: EventSink);

    /// Ends connections and threads.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
