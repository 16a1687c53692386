//! What a store of the queue family must offer: its textbook moves, and nothing else.

use std::future::Future;
use std::time::Duration;

use super::snapshot::{Entry, Snapshot, Spot};
use crate::{
    Ask, Error, EventSink, Force, Forced, FullName, Kept, Key, Lease, LossReason, Proof, Query,
    Released, StoreInfo, Token,
};

/// The answer to a join.
#[derive(Clone, Debug)]
pub enum Joined<P> {
    /// In the queue.
    In {
        /// Its own entry.
        place: P,
        /// The queue as of the join or later.
        queue: Snapshot,
        /// How long the session is certain to last.
        lease: Lease,
    },
    /// Not in the queue, nothing left behind: somebody else is, and the ask has no patience. A
    /// store that cannot tell before it joins never answers this; the driver leaves by itself.
    Refused(Snapshot),
    /// This request left the queue before, and stays out.
    Tombstoned,
}

/// The answer to a proof of place.
#[derive(Clone, Debug)]
pub enum Proven {
    /// Still its place, with this lease.
    Mine(Lease),
    /// Not any more.
    Lost(LossReason),
}

/// One place to keep.
#[derive(Clone, Debug)]
pub struct Keeping<P> {
    /// Its request.
    pub key: Key,
    /// Its entry.
    pub place: P,
    /// The lease wanted.
    pub ttl: Duration,
    /// It holds the lock: the answer must be sure that the entry is there and not revoked. For one
    /// that waits or lingers it is enough that its session lives.
    pub held: bool,
}

/// A store that keeps an ordered queue of entries, each tied to a session of its client.
///
/// For authors of stores; users never see it. [`QueueDriver`](super::QueueDriver) turns it into a
/// [`Backend`](crate::backend::Backend): waiting, giving up, proving, re-entry, lingering and
/// orphans are written there, once.
///
/// # Contract
/// * Entries stand in the order of their tokens. A new one comes last; none ever moves.
/// * Every call is idempotent by request id and bounded in time, except [`gone`](Self::gone).
/// * `join` finds its own entry again after a lost answer: one request, one entry. It may be
///   dropped at any await; `leave` then undoes it, also when it overtakes it: a request that left
///   is never in the queue again, whatever arrives late.
/// * What `join` and `queue` tell is never older than what this client has been told before, and a
///   queue told to a place has its entry, if it exists, and the entry just ahead.
/// * A [`Lease`] counts from before the store's leader began it, not from what a follower said.
/// * `keep`, and `leave` of what was dropped, are called on the library's own thread; the others
///   anywhere (see [`on_library_thread`](crate::engine::on_library_thread)).
pub trait QueueStore: Send + Sync + 'static {
    /// An entry of this client's own, as the store addresses it.
    type Place: Clone + Send + Sync + 'static;

    /// How many low bits of a token are zero in each entry's own: room for those whom its lock is handed
    /// to inside a process.
    const LOCAL_BITS: u32 = 0;

    /// What this store is and promises.
    fn info(&self) -> StoreInfo<'_>;

    /// Whether the store itself sees to it that every call ends in time. Then the driver sets no
    /// timer for each call.
    fn ends_in_time(&self) -> bool {
        false
    }

    /// Whether the holder of an exclusive entry is told just now when another entry comes to stand
    /// behind it ([`Event::Contended`](crate::backend::Event)), and [`keep`](Self::keep) counts those
    /// that do. Where it is not, a lock is handed on inside a process as if somebody always waited.
    fn tells_of_waiters(&self) -> bool {
        false
    }

    /// The fencing token of an entry: fixed when it was made.
    fn token(&self, place: &Self::Place) -> Token;

    /// What a caller puts into its own transaction to have it fail when the entry is gone.
    fn proof(&self, place: &Self::Place) -> Option<Proof> {
        let _ = place;
        None
    }

    /// Puts a request into the queue, or finds it there.
    fn join(&self, ask: &Ask) -> impl Future<Output = Result<Joined<Self::Place>, Error>> + Send;

    /// The queue, as far as it matters to one of its entries.
    fn queue(
        &self,
        lock: &FullName,
        me: &Self::Place,
    ) -> impl Future<Output = Result<Snapshot, Error>> + Send;

    /// The queue for a waiter that was called up, and the proof of its place where the store can
    /// ask for both at once: its turn has probably come. Both are as [`queue`](Self::queue) and
    /// [`prove`](Self::prove) tell them; without a proof the driver asks for it.
    fn queue_and_proof(
        &self,
        key: &Key,
        me: &Self::Place,
    ) -> impl Future<Output = Result<(Snapshot, Option<Proven>), Error>> + Send {
        async move { Ok((self.queue(&key.lock, me).await?, None)) }
    }

    /// Completes when one of these is gone since the queue was `seen`, or when that cannot be told
    /// any more. A hint: the driver looks at the queue and believes that.
    fn gone(&self, lock: &FullName, watch: &[Spot], seen: u64) -> impl Future<Output = ()> + Send;

    /// Shows by a write, which no stale replica can answer, that the place is still owned.
    fn prove(
        &self,
        key: &Key,
        place: &Self::Place,
    ) -> impl Future<Output = Result<Proven, Error>> + Send;

    /// Keeps places: one call for all, answers in the same order.
    fn keep(&self, places: &[Keeping<Self::Place>]) -> impl Future<Output = Vec<Kept>> + Send;

    /// Makes an entry stay for a while without its client, and end then by itself. False where the
    /// store cannot: the driver then keeps it, as long as the process lives, and leaves.
    fn linger(
        &self,
        key: &Key,
        place: &Self::Place,
        left: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (key, place, left);
        async { Ok(false) }
    }

    /// Leaves the queue, and says whether it stood there until now. Without a place the join was
    /// never answered: whether or not it arrives, the request must not stand in the queue
    /// afterwards.
    fn leave(
        &self,
        key: &Key,
        place: Option<&Self::Place>,
    ) -> impl Future<Output = Result<Released, Error>> + Send;

    /// Whole queues: of one lock, or of those of a prefix, in order of name. Empty ones are left
    /// out.
    fn queues(
        &self,
        query: &Query,
    ) -> impl Future<Output = Result<Vec<(FullName, Snapshot)>, Error>> + Send;

    /// Takes an entry away. [`Force::Revoke`] marks it: `keep` answers [`LossReason::Revoked`] from
    /// then on, its client is told by the mark, and leaves. [`Force::Now`] removes it.
    fn oust(
        &self,
        lock: &FullName,
        entry: &Entry,
        how: Force,
    ) -> impl Future<Output = Result<Forced, Error>> + Send;

    /// Told once, before any other call: where news goes. [`Event::Lost`](crate::backend::Event)
    /// for an entry of this client that is gone or revoked, held or waiting, and for all entries of
    /// a session that ended.
    fn listen(&self, sink: EventSink);

    /// Ends connections and threads. Entries that are still there are left to end with their
    /// session: to end that at once would cut a `min_hold` short.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
