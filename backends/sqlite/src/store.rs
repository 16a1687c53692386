//! The store: every call becomes moves for a lane.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::capability::{Capability, Fence};
use distlock_core::host::Boot;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal};
use distlock_core::seam::{Ask, Due, Force, Forced, Key, Released};
use distlock_core::state::{Claim, Op, Pulse, Reply, answer};
use distlock_core::{Clock, Error, FullName, Kind, Token, engine};
use tokio::sync::oneshot;

use crate::lane::Lane;
use crate::ledger::{Ledger, split};
use crate::options::{SqliteOptions, capability};
use crate::place::{Files, Place};
use crate::post::Post;

/// Locks in a database file, for the processes of one host.
///
/// Calls on the library's own thread (renewals, heartbeats, cancels) have a worker and a
/// connection of their own, so that they never queue behind the callers'.
///
/// Dropping it takes its address away at once; the workers end after what is queued.
pub struct Sqlite {
    capability: Capability,
    site: String,
    clock: Clock,
    post: Arc<Post>,
    front: Lane,
    back: Lane,
}

impl Sqlite {
    /// Whether there is a database at a path; a client that only looks needs one.
    #[must_use]
    pub fn exists(path: impl AsRef<Path>) -> bool {
        Place::exists(path.as_ref())
    }

    /// Opens a database, which is made new if there is none, unless the client only looks.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a path that is no file; [`Kind::Refused`] for a directory that other users
    /// can write in, a file system that is not known as local, a read-only place or another time namespace; [`Kind::Credentials`] for a
    /// file of somebody else; [`Kind::Layout`] for a newer layout or what is no database of ours;
    /// [`Kind::Unreachable`] when others keep it locked for nine seconds, or when there is none and
    /// the client only looks.
    ///
    /// # Cancel safety
    /// Dropping it leaves at most an empty database behind.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let (tx, rx) = oneshot::channel();
        let no_thread = |e| Error::new(Kind::Store, "no thread to open the database").because(e);
        engine::thread("distlock-open", move || {
            let _ = tx.send(Self::open_here(&path, options));
        })
        .map_err(no_thread)?;
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Store, "opening the database failed")))
    }

    fn open_here(path: &Path, options: SqliteOptions) -> Result<Self, Error> {
        let SqliteOptions { sync, clock, boot_id, look_only, trust_all } = options;
        let place = Place::find(path, !look_only, trust_all)?;
        let site = format!("sqlite:{}", place.file.display());
        let mut boot = Boot::here()?;
        if let Some(id) = boot_id {
            boot.id = id;
        }
        let mut promise = capability(sync);
        if place.volatile {
            promise.fence = Fence::Clocked;
        }
        let sockets = place.sockets.clone();
        let open = {
            let clock = clock.clone();
            let known = Arc::new(Mutex::new(None));
            move || {
                // Again each time: somebody may have removed the file.
                let place = Place::find(&place.file, !look_only, trust_all)?;
                let ledger = Ledger::open(&place, boot.clone(), clock.clone(), sync, !look_only)?;
                // All connections of one store to one file must use one -shm file.
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let files = ledger.files();
                match *known {
                    Some(Files { db, shm }) if db == files.db && shm != files.shm => {
                        Err(split(&place.file))
                    }
                    _ => {
                        *known = Some(files);
                        Ok(ledger)
                    }
                }
            }
        };
        let mut ledger = open().map_err(|e| e.store(&site))?;
        let post = if look_only {
            Post::none(&sockets)?
        } else {
            // An empty transaction: ends the leases of another boot, refuses another time namespace.
            ledger.begin()?;
            ledger.finish(&[], &Default::default())?;
            Post::open(&sockets)?
        };
        let front = Lane::start("distlock-sqlite", Some(ledger), open.clone(), post.clone())?;
        let back = Lane::start("distlock-sqlite-bg", None, open, post.clone())?;
        Ok(Self { capability: promise, site, clock, post, front, back })
    }

    fn lane(&self) -> &Lane {
        if engine::on_library_thread() { &self.back } else { &self.front }
    }

    /// One move, its errors told with what they are about.
    async fn one(&self, what: &'static str, lock: &FullName, op: Op) -> Result<Reply, Error> {
        let mut replies = self.lane().play(vec![(lock.clone(), op)]).await;
        let reply = replies.pop().unwrap_or_else(|| Err(Error::new(Kind::Store, "no answer")));
        reply.map_err(|e| self.told(what, lock, e))
    }

    fn told(&self, what: &'static str, lock: &FullName, e: Error) -> Error {
        e.during(what).lock(lock).store(&self.site)
    }
}

impl LeaseStore for Sqlite {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        let claim = Claim::of(ask, self.post.session());
        let reply = self.one("acquire", &ask.lock, Op::Acquire { claim, wait: wait_lease }).await?;
        answer::acquired(reply).map_err(|e| self.told("acquire", &ask.lock, e))
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        self.post.heal();
        let beat = |(key, wait): &(Key, Duration)| {
            (key.lock.clone(), Op::Heartbeat { req: key.req, wait: *wait })
        };
        let replies = self.lane().play(waiting.iter().map(beat).collect()).await;
        let pulses = replies.into_iter().map(|r| r.and_then(answer::pulsed));
        pulses.collect::<Result<_, _>>().map_err(|e| e.during("heartbeat").store(&self.site))
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        self.post.heal();
        let renewal = |d: &Due| (d.key.lock.clone(), Op::Renew { req: d.key.req, ttl: d.ttl });
        let replies = self.lane().play(due.iter().map(renewal).collect()).await;
        let told = |(r, d): (Result<Reply, Error>, &Due)| {
            answer::renewed(r.map_err(|e| self.told("renew", &d.key.lock, e)))
        };
        replies.into_iter().zip(due).map(told).collect()
    }

    /// The requeued request joins by its own acquire: a second commit costs less than a second
    /// way into the line.
    async fn release(&self, key: &Key, _requeue: Option<&Ask>) -> Result<Released, Error> {
        let reply = self.one("release", &key.lock, Op::Release { req: key.req }).await?;
        answer::released(reply)
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        self.one("cancel", &key.lock, Op::Cancel { req: key.req }).await.map(drop)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let found = self.lane().look(query.clone()).await;
        found.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        answer::forced(self.one("force", lock, Op::Force { token, how }).await?)
    }

    fn listen(&self, ears: Ears) {
        self.post.listen(ears);
    }

    async fn close(&self) {
        self.front.quit().await;
        self.back.quit().await;
        self.post.close();
    }
}

impl Drop for Sqlite {
    /// The address goes at once, so that others do not wait for us; the workers end after what is
    /// queued.
    fn drop(&mut self) {
        self.post.close();
    }
}
