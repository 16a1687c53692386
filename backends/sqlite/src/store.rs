//! The store: every batch of moves becomes a job for a worker.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::backend::{Force, Forced};
use distlock_core::capability::{Capability, Fence};
use distlock_core::host::Boot;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies};
use distlock_core::state::{Op, Reply};
use distlock_core::{Clock, Error, FullName, Kind, Token, engine};
use tokio::sync::oneshot;

use crate::database_file::{DatabaseFile, Files};
use crate::options::{SqliteOptions, capability};
use crate::peer_socket::PeerSocket;
use crate::transaction::{Ledger, split};
use crate::worker::Worker;

/// Locks in a database file, for the processes of one host.
///
/// Upkeep (renewals, heartbeats, cancels) has a worker and a connection of its own, so that it never
/// queues behind the callers.
///
/// Dropping it takes its address away at once; the workers end after what is queued.
pub struct Sqlite {
    capability: Capability,
    site: String,
    clock: Clock,
    peers: Arc<PeerSocket>,
    front: Worker,
    back: Worker,
}

impl Sqlite {
    /// Whether there is a database at a path; a client that only looks needs one.
    #[must_use]
    pub fn exists(path: impl AsRef<Path>) -> bool {
        DatabaseFile::exists(path.as_ref())
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
        let place = DatabaseFile::find(path, !look_only, trust_all)?;
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
                let place = DatabaseFile::find(&place.file, !look_only, trust_all)?;
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
        let peers = if look_only {
            PeerSocket::none(&sockets)?
        } else {
            // An empty transaction: ends the leases of another boot, refuses another time namespace.
            ledger.begin()?;
            ledger.finish(&[], &Default::default())?;
            PeerSocket::open(&sockets)?
        };
        let front = Worker::start("distlock-sqlite", Some(ledger), open.clone(), peers.clone())?;
        let back = Worker::start("distlock-sqlite-bg", None, open, peers.clone())?;
        Ok(Self { capability: promise, site, clock, peers, front, back })
    }

    fn worker(&self, class: Class) -> &Worker {
        match class {
            Class::Caller => &self.front,
            Class::Upkeep => &self.back,
        }
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

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        if class == Class::Upkeep {
            self.peers.heal();
        }
        let via = self.peers.session();
        self.worker(class).play(moves.into_iter().map(|one| one.into_op(via)).collect()).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let found = self.front.look(query.clone()).await;
        found.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let force = vec![(lock.clone(), Op::Force { token, how })];
        let reply = self.front.play(force).await.pop();
        let reply = reply.unwrap_or_else(|| Err(Error::new(Kind::Store, "no answer").unknown()));
        reply.and_then(Reply::forced).map_err(|e| e.during("force").lock(lock).store(&self.site))
    }

    fn listen(&self, sink: EventSink) {
        self.peers.listen(sink);
    }

    async fn close(&self) {
        self.front.quit().await;
        self.back.quit().await;
        self.peers.close();
    }
}

impl Drop for Sqlite {
    /// The address goes at once, so that others do not wait for us; the workers end after what is
    /// queued.
    fn drop(&mut self) {
        self.peers.close();
    }
}
