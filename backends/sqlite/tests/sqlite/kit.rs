//! What every test needs.

use std::future::Future;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use distlock_core::backend::{Ask, Due, Key};
use distlock_core::lease::{Class, LeaseStore, Move, Replies, Wake};
use distlock_core::state::Reply;
use distlock_core::{Clock, Error, FullName, Label, Mode, Name, Namespace, Owner, Patience, ReqId};
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

/// Single moves on the connection of the thread that asks, and upkeep on that of the upkeep.
pub(crate) trait Moves: LeaseStore {
    async fn acquire(&self, ask: &Ask, wait: Option<Duration>) -> Result<Reply, Error> {
        self.play_one(Class::here(), Move::Acquire(std::sync::Arc::new(ask.clone()), wait)).await
    }
    async fn release(&self, key: &Key) -> Result<Reply, Error> {
        self.play_one(Class::here(), Move::Release(key.clone())).await
    }
    async fn cancel(&self, key: &Key) -> Result<Reply, Error> {
        self.play_one(Class::here(), Move::Cancel(key.clone())).await
    }
    async fn renew(&self, due: &[Due]) -> Replies {
        self.play(Class::Upkeep, due.iter().cloned().map(Move::Renew).collect()).await
    }
    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Reply>, Error> {
        let beat = |(key, wait): &(Key, Duration)| Move::Heartbeat(key.clone(), *wait);
        let replies = self.play(Class::Upkeep, waiting.iter().map(beat).collect()).await;
        replies.into_iter().collect()
    }
}

impl Moves for Sqlite {}

pub(crate) async fn open(dir: &Dir, clock: &Clock) -> Sqlite {
    let options = SqliteOptions { clock: clock.clone(), ..Default::default() };
    Sqlite::open(dir.db(), options).await.unwrap()
}

/// Everything the store says without being asked.
pub(crate) fn sink(store: &Sqlite) -> Receiver<Wake> {
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
        Reply::Granted { token, .. } => token.get(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Joins the line and must wait.
pub(crate) async fn join(store: &Sqlite, ask: &Ask) {
    let answer = store.acquire(ask, Some(TTL)).await.unwrap();
    assert!(matches!(answer, Reply::Waiting { .. }), "{answer:?}");
}

pub(crate) async fn is_busy(store: &Sqlite, name: &str) -> bool {
    let ask = ask(name);
    let answer = store.acquire(&ask, None).await.unwrap();
    store.cancel(&ask.key()).await.unwrap();
    matches!(answer, Reply::Busy { .. })
}

/// Gives back and must still have had it.
pub(crate) async fn give(store: &Sqlite, key: &Key) {
    assert_eq!(store.release(key).await.unwrap(), Reply::Released);
}

/// One grant and its end: the token.
pub(crate) async fn cycle(store: &Sqlite, name: &str) -> u64 {
    let ask = ask(name);
    let token = take(store, &ask).await;
    give(store, &ask.key()).await;
    token
}

/// Puts the tables back to an older layout.
pub(crate) fn as_layout(raw: &rusqlite::Connection, layout: i32) {
    raw.execute_batch(
        "DROP TABLE waiters; DROP TRIGGER IF EXISTS waiters_of_deleted;
         ALTER TABLE locks DROP COLUMN version; ALTER TABLE locks DROP COLUMN waiters;
         ALTER TABLE locks DROP COLUMN departures; ALTER TABLE locks RENAME TO lock;",
    )
    .unwrap();
    raw.pragma_update(None, "user_version", layout).unwrap();
}
