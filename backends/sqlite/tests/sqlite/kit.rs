//! What every test needs.

use std::future::Future;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use distlock_core::lease::{Answer, LeaseStore, Wake};
use distlock_core::seam::{Ask, Key, Released};
use distlock_core::{Clock, FullName, Label, Mode, Name, Namespace, Owner, Patience, ReqId};
use distlock_sqlite::{Sqlite, SqliteOptions};
use tempfile::TempDir;

pub(crate) use distlock_testkit::Named;

/// How long an event that must come may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The TTL of the tests.
pub(crate) const TTL: Duration = Duration::from_secs(10);

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A directory for a database; under the target directory, which is on a real disk.
pub(crate) struct Dir(TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A look at the file from outside.
    pub(crate) fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.db()).unwrap()
    }
}

pub(crate) async fn open(dir: &Dir, clock: &Clock) -> Sqlite {
    Sqlite::open(dir.db(), SqliteOptions::new().clock(clock.clone())).await.unwrap()
}

/// Everything the store says without being asked.
pub(crate) fn ears(store: &Sqlite) -> Receiver<Wake> {
    let (tx, rx) = channel();
    store.listen(Arc::new(move |wake| drop(tx.send(wake))));
    rx
}

pub(crate) fn lock(name: &str) -> FullName {
    FullName { space: Namespace::default(), name: Name::new(name).unwrap() }
}

pub(crate) fn ask(name: &str) -> Ask {
    Ask {
        lock: lock(name),
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl: TTL,
        patience: Patience::Forever,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("a test"),
        block: NonZeroU32::MIN,
    }
}

/// Asks and must get it: the token.
pub(crate) async fn take(store: &Sqlite, ask: &Ask) -> u64 {
    match store.acquire(ask, None).await.unwrap() {
        Answer::Granted { tokens, .. } => tokens.first().get(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Joins the line and must wait.
pub(crate) async fn join(store: &Sqlite, ask: &Ask) {
    let answer = store.acquire(ask, Some(TTL)).await.unwrap();
    assert!(matches!(answer, Answer::Waiting(_)), "{answer:?}");
}

pub(crate) async fn is_busy(store: &Sqlite, name: &str) -> bool {
    let ask = ask(name);
    let answer = store.acquire(&ask, None).await.unwrap();
    store.cancel(&ask.key()).await.unwrap();
    matches!(answer, Answer::Busy(_))
}

/// Gives back and must still have had it.
pub(crate) async fn give(store: &Sqlite, key: &Key) {
    assert_eq!(store.release(key, None).await.unwrap(), Released::Released);
}

/// One grant and its end: the token.
pub(crate) async fn cycle(store: &Sqlite, name: &str) -> u64 {
    let ask = ask(name);
    let token = take(store, &ask).await;
    give(store, &ask.key()).await;
    token
}
