//! Read, change, write if nobody wrote meanwhile: no lock, and nobody can be paused while holding
//! one.
//!
//! 1. Read the value and its version.
//! 2. Write the new value on condition that the version is still that one.
//! 3. If it is not, wait a random while that doubles, and begin again; give up after some tries.

use std::future::Future;
use std::time::Duration;

use distlock_core::{Clock, engine};

use crate::Conflict;

/// How often to try, and how long to wait in between.
#[derive(Clone, Debug)]
pub struct Tries {
    most: u32,
    first: Duration,
    longest: Duration,
    clock: Clock,
}

impl Default for Tries {
    /// Ten tries, with pauses of up to 5 ms at first and up to 200 ms later: about half a second
    /// on average.
    fn default() -> Self {
        Self {
            most: 10,
            first: Duration::from_millis(5),
            longest: Duration::from_millis(200),
            clock: Clock::system(),
        }
    }
}

impl Tries {
    /// At most this many tries; one at least is made.
    #[must_use]
    pub fn at_most(tries: u32) -> Self {
        Self { most: tries.max(1), ..Self::default() }
    }

    /// The longest first pause, and the longest of all. Each pause is a random part of its bound,
    /// and the bound doubles from pause to pause.
    #[must_use]
    pub fn pauses(self, first: Duration, longest: Duration) -> Self {
        Self { first, longest: longest.max(first), ..self }
    }

    /// Waits by this clock: for tests that hold it.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// How long to wait after a try, counted from 1; `None` when it was the last.
    pub(crate) fn pause(&self, tried: u32) -> Option<Duration> {
        if tried >= self.most {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << (tried - 1).min(20));
        Some(doubled.min(self.longest).mul_f64(random()))
    }

    /// The pause before another try, or the conflict that the last one has met.
    fn another(&self, what: &str, tried: u32) -> Result<Duration, Conflict> {
        self.pause(tried).ok_or_else(|| Conflict { what: what.to_owned(), tries: tried })
    }
}

/// From 0 to 1. Straight from the kernel: writers that were started as copies of each other must
/// not keep in step.
fn random() -> f64 {
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(bits) / f64::from(u32::MAX)
}

/// Reads, changes and writes until nobody else wrote in between.
///
/// `read` gives a value and its version; `write` gets both and gives `Some` answer when it wrote,
/// `None` when the version had changed. Both see the latest data: run them outside of a
/// transaction, or each in its own, because a transaction may go on reading an old snapshot.
///
/// ```
/// # use distlock_fence::{Conflict, optimistic::{self, Tries}};
/// # use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Conflict> {
/// let stock = AtomicU64::new(7); // its own version
/// let left = optimistic::update(
///     &Tries::default(),
///     "teapots",
///     || async { Ok((stock.load(SeqCst), stock.load(SeqCst))) },
///     |value, version| {
///         let wrote = stock.compare_exchange(version, value - 1, SeqCst, SeqCst);
///         async move { Ok::<_, Conflict>(wrote.ok().map(|was| was - 1)) }
///     },
/// )
/// .await?;
/// assert_eq!(left, 6);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of the closures, at once, and [`Conflict`] when others were quicker in every try.
///
/// # Cancel safety
/// That of the closures: dropped between them, nothing was written.
pub async fn update<T, V, R, E, Reading, Writing>(
    tries: &Tries,
    what: &str,
    mut read: impl FnMut() -> Reading,
    mut write: impl FnMut(T, V) -> Writing,
) -> Result<R, E>
where
    E: From<Conflict>,
    Reading: Future<Output = Result<(T, V), E>>,
    Writing: Future<Output = Result<Option<R>, E>>,
{
    for tried in 1.. {
        let (value, version) = read().await?;
        if let Some(done) = write(value, version).await? {
            return Ok(done);
        }
        tries.clock.sleep(tries.another(what, tried)?).await;
    }
    unreachable!("the last try has no pause")
}

/// As [`update`], for code without a runtime.
///
/// # Errors
/// As [`update`].
pub fn update_blocking<T, V, R, E: From<Conflict>>(
    tries: &Tries,
    what: &str,
    mut read: impl FnMut() -> Result<(T, V), E>,
    mut write: impl FnMut(T, V) -> Result<Option<R>, E>,
) -> Result<R, E> {
    for tried in 1.. {
        let (value, version) = read()?;
        if let Some(done) = write(value, version)? {
            return Ok(done);
        }
        let (clock, pause) = (tries.clock.clone(), tries.another(what, tried)?);
        engine::block_on(async move { clock.sleep(pause).await });
    }
    unreachable!("the last try has no pause")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_within_a_bound_that_doubles() {
        let tries = Tries::at_most(5).pauses(Duration::from_millis(8), Duration::from_millis(20));
        for (tried, bound) in [(1, 8), (2, 16), (3, 20), (4, 20)] {
            let pauses: Vec<Duration> = (0..64).filter_map(|_| tries.pause(tried)).collect();
            let longest = pauses.iter().max().copied().unwrap();
            assert!(pauses.len() == 64 && longest <= Duration::from_millis(bound), "{longest:?}");
            // All 64 in one half of the range: once in 2^63 runs.
            assert!(longest > Duration::from_millis(bound) / 2, "{tried}: {longest:?}");
            assert!(pauses.iter().min().unwrap() < &(Duration::from_millis(bound) / 2));
        }
        assert_eq!(tries.pause(5), None);
    }

    #[test]
    fn blocking_writers_all_get_through_and_a_hopeless_one_is_told() {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        let n = AtomicU32::new(0);
        let add = |tries: &Tries, spoil: bool| {
            update_blocking::<_, _, _, Conflict>(
                tries,
                "n",
                || Ok((n.load(SeqCst), n.load(SeqCst))),
                |value, version| {
                    if spoil {
                        n.fetch_add(1, SeqCst);
                    }
                    Ok(n.compare_exchange(version, value + 1, SeqCst, SeqCst).ok())
                },
            )
        };
        assert_eq!(add(&Tries::default(), false), Ok(0));
        let tries = Tries::at_most(3).pauses(Duration::ZERO, Duration::ZERO);
        assert_eq!(add(&tries, true), Err(Conflict { what: "n".into(), tries: 3 }));
        assert_eq!(n.load(SeqCst), 1 + 3, "nothing of it was written");
    }
}
