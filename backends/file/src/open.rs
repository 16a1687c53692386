//! From a URL or a directory to a store.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use distlock_core::host::{Boot, LocalFs};
use distlock_core::{Backend, Error, Fence, Kind, Store, StoreUrl, engine};

use crate::{
    capability::CAPABILITY, errors::trouble, inspect::Looker, layout, live_processes::any_alive,
    options::FileOptions, store::FileStore, tokens::Tokens, worker::Worker,
};

/// Opens the directory that a URL names, `file:DIR`, and makes it when it is not there.
///
/// # Errors
/// [`Kind::Usage`] for an invalid URL, and as [`FileStore::open`].
///
/// # Cancel safety
/// Dropping the future closes the store; the directory may have been made.
pub async fn open(mut url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    let options = FileOptions::take_from(&mut url)?;
    start(url.only_path()?.to_owned(), options).await
}

/// The same for a client that only looks: it makes nothing; `None` where there is no store.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// Dropping the future closes the store.
pub async fn open_to_look(mut url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
    let options = FileOptions { look_only: true, ..FileOptions::take_from(&mut url)? };
    let dir = url.only_path()?.to_owned();
    match FileStore::exists(&dir) {
        true => start(dir, options).await.map(Some),
        false => Ok(None),
    }
}

async fn start(dir: String, options: FileOptions) -> Result<Arc<dyn Backend>, Error> {
    Ok(engine::unblock(move || FileStore::open(dir, options)).await?.into_backend())
}

impl FileStore {
    /// Whether there is a store in a directory; a client that only looks needs one.
    #[must_use]
    pub fn exists(dir: impl AsRef<Path>) -> bool {
        layout::exists(dir.as_ref())
    }

    /// Opens a directory, and makes it when it is not there, unless the client only looks. Blocks for
    /// a few file operations.
    ///
    /// # Errors
    /// [`Kind::Refused`] when it is not on a local file system or other users can write in it,
    /// [`Kind::Layout`] when a newer
    /// version made it, [`Kind::Credentials`] when this user may not write there,
    /// [`Kind::Unreachable`] when there is none and the client only looks, and [`Kind::Store`] for
    /// any other trouble with it.
    pub fn open(dir: impl AsRef<Path>, options: FileOptions) -> Result<Self, Error> {
        let FileOptions { clock, retention, look_only, trust_all } = options;
        let dir = dir.as_ref();
        let dir = std::path::absolute(dir).map_err(|e| trouble("find", dir, e))?;
        LocalFs::of(&dir)?;
        if look_only && !layout::exists(&dir) {
            return Err(Error::new(
                Kind::Unreachable,
                format!("there are no locks in {}", dir.display()),
            )
            .with_hint("the first lock taken there makes the directory"));
        }
        let alone = layout::open(&dir, trust_all)?;
        let mut capability = CAPABILITY.clone();
        // Once more: what was made may be a mount point or a link.
        if LocalFs::of(&dir)?.volatile {
            capability.fence = Fence::Clocked;
        }
        let dir = dir.canonicalize().map_err(|e| trouble("find", &dir, e))?;
        let machine = Boot::here()?;
        let tokens = Tokens::open(&dir, &machine, || any_alive(&dir.join("sessions")))?;
        drop(alone);

        let (tx, commands) = channel();
        let looker = Looker { dir: dir.clone(), boot: machine.id.clone(), clock: clock.clone() };
        let worker = Worker::new(dir.clone(), machine.id, clock, tokens, retention, tx.clone());
        engine::thread("distlock-file", move || worker.run(commands))
            .map_err(|e| trouble("start a thread for", &dir, e).transient())?;
        Ok(Self { site: format!("file:{}", dir.display()), capability, tx, looker })
    }
}
