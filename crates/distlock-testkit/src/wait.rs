//! Waiting in tests: for a condition, for a future, never for a guessed while.

use std::future::Future;
use std::time::Duration;

use distlock_core::{Busy, Clock, Guard, Locks};
use tokio::task::JoinHandle;

/// Long enough for any machine; only a broken law waits it out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A TTL that no law outlives: what becomes free under it was given back, not expired.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Runs a future as a task of its own, which ends with the runtime of the test.
#[allow(clippy::disallowed_methods)] // the door of the tests
pub fn task<T: Send + 'static>(f: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(f)
}

/// The future's value, which must come within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    within(PATIENCE, what, f).await
}

/// The future's value, which must come within `d`.
pub(crate) async fn within<T>(d: Duration, what: &str, f: impl Future<Output = T>) -> T {
    Clock::system().timeout(d, f).await.unwrap_or_else(|| panic!("{what}: not within {d:?}"))
}

/// Less than a wait-lease, after which a forgotten waiter leaves the line by itself.
const PROMPT: Duration = Duration::from_secs(8);

/// Asks until the answer is yes.
pub(crate) async fn until(what: &str, yes: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, yes).await;
}

async fn until_within(d: Duration, what: &str, mut yes: impl AsyncFnMut() -> bool) {
    within(d, what, async {
        while !yes().await {
            Clock::system().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits until so many stand in line.
pub(crate) async fn line_of(locks: &Locks, name: &str, n: usize) {
    let what = format!("{n} in line for {name:?}");
    until_within(PROMPT, &what, async || waiters(locks, name).await == n).await;
}

pub(crate) async fn waiters(locks: &Locks, name: &str) -> usize {
    locks.show(name).await.expect("show").map_or(0, |l| l.waiters.len())
}

/// Waits until nobody holds the lock and nobody waits for it.
pub(crate) async fn all_free(locks: &Locks, name: &str) {
    until_within(PROMPT, &format!("{name:?} free, nobody in line"), async || {
        locks.show(name).await.expect("show").is_none()
    })
    .await;
}

/// Takes a lock that must be free.
pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer").expect("a free lock")
}

/// Asks for a lock that must be busy.
pub(crate) async fn busy(locks: &Locks, name: &str) -> Busy {
    match locks.lock(name).ttl(LONG).try_acquire().await.expect("an answer") {
        Ok(guard) => panic!("{name:?} should be busy, but {guard:?}"),
        Err(busy) => busy,
    }
}

/// Releases a guard that must still hold.
pub(crate) async fn give_back(guard: Guard) {
    let released = guard.release().await.expect("an answer to a release");
    assert_eq!(released, distlock_core::Released::Released);
}
