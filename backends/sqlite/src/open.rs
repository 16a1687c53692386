//! From a URL or a path to a store.

use std::path::Path;
use std::sync::Arc;

use distlock_core::host::Boot;
use distlock_core::{Backend, Error, Fence, Mutex, Store, StoreUrl, engine};

use crate::capability::capability;
use crate::database_file::{DatabaseFile, Files};
use crate::options::SqliteOptions;
use crate::peer_socket::PeerSocket;
use crate::store::Sqlite;
use crate::transaction::{Database, SharedQueues, split};
use crate::worker::Worker;

/// Opens the database that a URL names, `sqlite:PATH`, and makes it when it is not there.
///
/// # Errors
/// `Kind::Usage` for an invalid URL, and as [`Sqlite::open`].
///
/// # Cancel safety
/// As [`Sqlite::open`].
pub async fn open(mut url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    let options = SqliteOptions::take_from(&mut url)?;
    Ok(Sqlite::open(url.only_path()?, options).await?.into_backend())
}

/// The same for a client that only looks: it makes nothing; `None` where there is no database.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// As [`Sqlite::open`].
pub async fn open_to_look(mut url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
    let options = SqliteOptions { look_only: true, ..SqliteOptions::take_from(&mut url)? };
    let path = url.only_path()?;
    match Sqlite::exists(path) {
        true => Ok(Some(Sqlite::open(path, options).await?.into_backend())),
        false => Ok(None),
    }
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
    /// `Kind::Usage` for a path that is no file; `Kind::Refused` for a directory that other users
    /// can write in, a file system that is not known as local, a read-only place or another time namespace; `Kind::Credentials` for a
    /// file of somebody else; `Kind::Layout` for a newer layout or what is no database of ours;
    /// `Kind::Unreachable` when others keep it locked for nine seconds, or when there is none and
    /// the client only looks.
    ///
    /// # Cancel safety
    /// Dropping it leaves at most an empty database behind.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        engine::unblock(move || Self::open_here(&path, options)).await
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
            let queues = SharedQueues::default();
            move || {
                // Again each time: somebody may have removed the file.
                let place = DatabaseFile::find(&place.file, !look_only, trust_all)?;
                let database = Database::open(
                    &place,
                    boot.clone(),
                    clock.clone(),
                    sync,
                    !look_only,
                    queues.clone(),
                )?;
                // All connections of one store to one file must use one -shm file.
                let mut known = known.lock();
                let files = database.files();
                match *known {
                    Some(Files { db, shm }) if db == files.db && shm != files.shm => {
                        Err(split(&place.file))
                    }
                    _ => {
                        *known = Some(files);
                        Ok(database)
                    }
                }
            }
        };
        let mut database = open().map_err(|e| e.store(&site))?;
        let peers = if look_only {
            PeerSocket::none(&sockets)?
        } else {
            // An empty transaction: ends the leases of another boot, refuses another time namespace.
            database.begin()?;
            database.finish(&[], &Default::default())?;
            PeerSocket::open(&sockets)?
        };
        let front = Worker::start("distlock-sqlite", Some(database), open.clone(), peers.clone())?;
        let back = Worker::start("distlock-sqlite-bg", None, open, peers.clone())?;
        Ok(Self { capability: promise, site, clock, peers, front, back })
    }
}
