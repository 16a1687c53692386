//! Waiting in tests: for a condition, for a future, never for a guessed while.
//!
//! The laws have bounds of their own. A store's own tests say with [`waits!`](crate::waits) how
//! long they wait: what is too long depends on the leases they use.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use distlock_core::{Busy, Clock, Guard, Locks};
use tokio::task::JoinHandle;

use crate::stopwatch::Stopwatch;

/// Long enough for any machine; only a broken law waits it out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The same for thousands of turns, one after another.
pub(crate) const AGES: Duration = Duration::from_secs(600);
/// A TTL that no law outlives: what becomes free under it was given back, not expired.
pub const LONG: Duration = Duration::from_secs(600);

/// Runs a future as a task of its own, which ends with the runtime of the test.
#[allow(clippy::disallowed_methods)] // the door of the tests
pub fn task<T: Send + 'static>(f: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(f)
}

/// The future's value, which must come within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    within(PATIENCE, what, f).await
}

/// The future's value, which must come within `d`, not counting the time in which this process
/// could not run.
///
/// # Panics
/// When it does not.
///
/// # Cancel safety
/// As the future's.
pub async fn within<T>(d: Duration, what: &str, f: impl Future<Output = T>) -> T {
    let (watch, mut f) = (Stopwatch::start(), pin!(f));
    loop {
        let left = d.saturating_sub(watch.took());
        assert!(!left.is_zero(), "{what}: not within {d:?}");
        if let Some(value) = Clock::system().timeout(left, f.as_mut()).await {
            return value;
        }
    }
}

/// What a law calls prompt: less than the heartbeat that a missed wake-up would cost.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);
/// Less than a wait-lease, after which a forgotten waiter leaves the line by itself.
const PROMPT: Duration = Duration::from_secs(8);

/// Asks until the answer is yes.
pub(crate) async fn until(what: &str, yes: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, yes).await;
}

/// Asks until the answer is yes, which must be within `d`.
///
/// # Panics
/// When it is not.
///
/// # Cancel safety
/// Dropping it asks no further.
pub async fn until_within(d: Duration, what: &str, mut yes: impl AsyncFnMut() -> bool) {
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
///
/// # Panics
/// When it does not.
///
/// # Cancel safety
/// As the release's.
pub async fn give_back(guard: Guard) {
    let released = guard.release().await.expect("an answer to a release");
    assert_eq!(released, distlock_core::Released::Released);
}

/// Runs a test in a runtime of its own, to its end within `limit`.
///
/// # Panics
/// When it is not done by then.
pub fn run<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let done = runtime.block_on(within(limit, "the test ends", test));
    runtime.shutdown_background();
    done
}

/// How long something takes, not counting the time in which this process could not run: for saying
/// that it takes no longer.
///
/// # Cancel safety
/// As the future's.
pub async fn timed<T>(f: impl Future<Output = T>) -> (Duration, T) {
    let watch = Stopwatch::start();
    let value = f.await;
    (watch.took(), value)
}

/// Takes a lock that must be free.
///
/// # Panics
/// When it is not, or the store is in trouble.
///
/// # Cancel safety
/// As the acquire's.
pub async fn take_for(locks: &Locks, name: &str, ttl: Duration) -> Guard {
    locks.lock(name).ttl(ttl).try_acquire().await.expect("an answer").expect("a free lock")
}

/// The helpers of a store's own tests, with its own bounds: how long an event that must come may
/// take on a busy machine, and how long a test.
#[macro_export]
macro_rules! waits {
    (soon: $soon:expr, limit: $limit:expr) => {
        /// How long an event that must come may take on a busy machine.
        pub(crate) const SOON: std::time::Duration = $soon;

        /// Runs a test.
        #[allow(dead_code)] // not every store's tests need each of these
        pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
            $crate::wait::run($limit, test)
        }

        /// The future's value, which must come soon.
        #[allow(dead_code)]
        pub(crate) async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
            $crate::wait::within(SOON, what, f).await
        }

        /// Asks until the answer is yes.
        #[allow(dead_code)]
        pub(crate) async fn until(what: &str, yes: impl AsyncFnMut() -> bool) {
            $crate::wait::until_within(SOON, what, yes).await;
        }

        /// Waits until so many stand in line. Trouble of the store is waited out.
        #[allow(dead_code)]
        pub(crate) async fn line_of(locks: &distlock_core::Locks, name: &str, n: usize) {
            until(&format!("{n} in line for {name:?}"), async || {
                locks.show(name).await.is_ok_and(|l| l.map_or(0, |l| l.waiters.len()) == n)
            })
            .await;
        }

        /// Waits until nobody holds the lock and nobody waits for it.
        #[allow(dead_code)]
        pub(crate) async fn all_free(locks: &distlock_core::Locks, name: &str) {
            until(&format!("{name:?} is free"), async || {
                locks.show(name).await.is_ok_and(|l| l.is_none())
            })
            .await;
        }
    };
}
