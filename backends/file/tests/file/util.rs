//! What every test needs: a store, an ask, and waiting for something to be true.

use std::future::Future;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use distlock_core::backend::Ask;
use distlock_core::busy::QueueStatus;
use distlock_core::session::{Locked, SessionStore};
use distlock_core::{Clock, FullName, Label, Mode, Owner, Patience, Released, ReqId};
use distlock_file::{FileConn, FileOptions, FileStore};
use libtest_mimic::Trial;

/// What every unlock of a living hold answers.
pub const RELEASED: Released = Released::Released;

pub fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub fn open(dir: &Path) -> FileStore {
    FileStore::open(dir, FileOptions::default()).unwrap()
}

pub fn open_at(dir: &Path, clock: &Clock) -> FileStore {
    FileStore::open(dir, FileOptions { clock: clock.clone(), ..Default::default() }).unwrap()
}

pub fn name(name: &str) -> FullName {
    FullName { space: Default::default(), name: name.parse().unwrap() }
}

pub fn ask(lock: &str, patience: Patience) -> Ask {
    Ask {
        lock: name(lock),
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl: Duration::from_secs(10),
        patience,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("a test"),
        block: NonZeroU32::MIN,
    }
}

pub type Tried = Result<(FileConn, u64), QueueStatus>;

pub async fn with(store: &FileStore, ask: &Ask) -> Tried {
    match store.lock(ask, &|_| ()).await.unwrap() {
        Locked::Held { conn, tokens, .. } => Ok((conn, tokens.first().get())),
        Locked::Busy(status) => Err(status),
    }
}

pub async fn lock(store: &FileStore, lock: &str) -> (FileConn, u64) {
    with(store, &ask(lock, Patience::Forever)).await.unwrap()
}

pub async fn attempt(store: &FileStore, lock: &str) -> Tried {
    with(store, &ask(lock, Patience::Never)).await
}

/// Waits for something that other threads or processes bring about.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

pub async fn until_free(store: &FileStore, lock: &str) -> u64 {
    let start = Instant::now();
    loop {
        if let Ok((conn, token)) = attempt(store, lock).await {
            assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
            return token;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{lock} never became free");
    }
}

pub fn line_of(dir: &Path, lock: &str) -> PathBuf {
    dir.join(format!("_/{lock}.q"))
}

pub fn in_line(dir: &Path, lock: &str) -> usize {
    std::fs::read_dir(line_of(dir, lock)).map_or(0, Iterator::count)
}

pub fn until_in_line(dir: &Path, lock: &str, n: usize) {
    until(&format!("{n} in line for {lock}"), || in_line(dir, lock) == n);
}

/// Polls a future up to `n` times, whenever it is woken; `None` if it was not done by then.
pub async fn polls<F: Future>(n: usize, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut polled = 0;
    std::future::poll_fn(|cx| {
        if polled == n {
            return Poll::Ready(None);
        }
        polled += 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending if polled == n => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
