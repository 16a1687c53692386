//! Several connections for the calls of one process, so that the server can commit them together.
//!
//! One connection serves a process that has little to ask. While calls queue, more are used, up to a
//! limit; the extra ones close when they have been idle for a while. Calls about one lock go to one
//! connection: on two, one would wait at the server for the row that the other has locked.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, FullName, Mutex};

use crate::connection_worker::{ConnectionWorker, Opens, Spare};

/// Another connection is used when this many calls wait for one.
const LONG: usize = 4;
/// After this long without a queue one connection is enough again.
const QUIET: Duration = Duration::from_secs(60);
/// After an extra connection was refused, none is asked for during this time.
const REFUSED: Duration = Duration::from_secs(5);

/// One connection to a database, or several while there is much to do.
pub struct ConnectionGroup<O: Opens> {
    /// The first serves whatever the others cannot.
    workers: Vec<ConnectionWorker<O>>,
    used: Mutex<Used>,
    spare: Arc<Spare>,
    clock: Clock,
}

struct Used {
    workers: usize,
    /// When calls last queued, and for which lock.
    pressed: (BootInstant, Option<u64>),
}

impl<O: Opens> ConnectionGroup<O> {
    /// A group of at most this many; connections are made when they are first needed. Every call ends
    /// within `bound`.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration, most: usize) -> Self {
        let spare = Arc::<Spare>::default();
        let first = ConnectionWorker::new(Arc::clone(&opens), clock.clone(), bound, 1);
        let extra = |_| first.extra(Arc::clone(&opens), Arc::clone(&spare));
        let extra: Vec<_> = (1..most.max(1)).map(extra).collect();
        let workers = std::iter::once(first).chain(extra).collect();
        let used = Mutex::new(Used { workers: 1, pressed: (clock.now(), None) });
        Self { workers, used, spare, clock }
    }

    /// The one that always serves.
    pub fn first(&self) -> &ConnectionWorker<O> {
        &self.workers[0]
    }

    /// The one that always serves, alone.
    pub fn into_first(mut self) -> ConnectionWorker<O> {
        self.workers.swap_remove(0)
    }

    /// The one for calls about a lock.
    pub fn of(&self, lock: &FullName) -> &ConnectionWorker<O> {
        let now = self.clock.now();
        let mut used = self.used.lock();
        if used.workers > 1 && now.since(used.pressed.0) > QUIET
            || self.spare.refused().is_some_and(|at| now.since(at) < REFUSED)
        {
            used.workers = 1;
            return self.first();
        }
        let number = number(lock);
        let worker = &self.workers[usize::try_from(number).unwrap_or(0) % used.workers];
        // The first one first: it must not find that another has taken the last connection.
        if worker.waiting() >= LONG && self.first().has_connected() {
            // A crowd at one lock is served by one connection, however many there are.
            if used.pressed.1.is_some_and(|before| before != number) {
                used.workers = self.workers.len().min(used.workers + 1);
            }
            used.pressed = (now, Some(number));
        }
        worker
    }

    /// Ends what is under way and closes the connections.
    pub async fn close(&self) {
        // The first one last: the others may have handed it something.
        for worker in self.workers.iter().rev() {
            worker.close().await;
        }
    }
}

/// A number that is likely to be another for each lock.
fn number(lock: &FullName) -> u64 {
    let mut hasher = DefaultHasher::new();
    lock.hash(&mut hasher);
    hasher.finish() >> 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use distlock_core::{Error, Kind, Name, Namespace};
    use tokio::sync::Semaphore;

    use super::*;

    /// A server that takes so many connections; each is its number.
    struct Server {
        opened: AtomicUsize,
        most: usize,
    }

    impl Opens for Server {
        type Conn = usize;

        async fn open(&self) -> Result<usize, Error> {
            let n = self.opened.fetch_add(1, Ordering::Relaxed);
            if n < self.most { Ok(n) } else { Err(Error::new(Kind::Unreachable, "too many")) }
        }

        async fn close(&self, _: usize) {}
    }

    const CALLS: usize = 60;

    /// Calls about so many locks, all sent before the first is done; on which connections they were.
    async fn connections(most: usize, locks: usize) -> HashSet<usize> {
        let server = Arc::new(Server { opened: AtomicUsize::new(0), most });
        let group = ConnectionGroup::new(server, Clock::system(), Duration::from_secs(60), 4);
        let first = group.first().call(|conn: &mut usize| Box::pin(async move { Ok(*conn) }));
        assert_eq!(first.await.expect("an answer"), 0);
        let gate = Arc::new(Semaphore::new(0));
        let mut calls = Vec::new();
        for n in 0..CALLS {
            let name = Name::new(format!("lock {}", n % locks)).expect("a name");
            let gate = Arc::clone(&gate);
            calls.push(group.of(&FullName { space: Namespace::default(), name }).call(
                move |conn: &mut usize| {
                    let gate = Arc::clone(&gate);
                    Box::pin(async move {
                        let _ = gate.acquire().await;
                        Ok(*conn)
                    })
                },
            ));
        }
        gate.add_permits(CALLS);
        let mut seen = HashSet::new();
        for call in calls {
            seen.insert(call.await.expect("an answer"));
        }
        group.close().await;
        seen
    }

    #[tokio::test]
    async fn calls_that_queue_are_spread_unless_they_are_about_one_lock() {
        let spread = connections(100, 30).await;
        assert!((2..=4).contains(&spread.len()), "{spread:?}");
        assert_eq!(connections(100, 1).await.len(), 1);
    }

    #[tokio::test]
    async fn where_no_more_connections_are_to_be_had_one_serves_all() {
        assert_eq!(connections(1, 30).await, HashSet::from([0]));
    }
}
