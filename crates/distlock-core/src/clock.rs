//! The one door to time.
//!
//! Deadlines count on `CLOCK_BOOTTIME`: it runs on while the machine sleeps, and nobody can step
//! it. [`Clock::held`] gives tests a clock that stands still until it is told to move.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use crate::{ClockReading, Mutex};

/// A moment on the boot-time clock of this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// A moment that never comes: the deadline of a lock that lasts as long as its process.
    pub const FAR: BootInstant = BootInstant(u64::MAX);

    /// From nanoseconds since boot.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since boot.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1000
    }

    /// `self` + `d`, at most [`BootInstant::FAR`].
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }

    /// `self` − `d`, at least the moment of boot; [`BootInstant::FAR`] stays where it is.
    #[must_use]
    pub fn minus(self, d: Duration) -> Self {
        if self == Self::FAR {
            return self;
        }
        Self(self.0.saturating_sub(nanos(d)))
    }

    /// How long after `earlier` this is; nothing when it is not after.
    #[must_use]
    pub const fn since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FAR => f.write_str("never"),
            Self(ns) => write!(f, "boot+{:?}", Duration::from_nanos(ns)),
        }
    }
}

/// What time it is, and how to wait for a moment.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Held>>);

struct Held {
    state: Mutex<HeldState>,
    /// Tells that the wall alone was moved.
    steps: watch::Sender<()>,
}

struct HeldState {
    boot: u64,
    /// In nanoseconds, too: what passes on one clock passes on the other.
    wall: u64,
    next_id: u64,
    sleepers: BTreeMap<(u64, u64), Waker>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock for tests that stands still until [`Clock::advance`].
    #[must_use]
    pub fn held() -> Self {
        Self(Some(Arc::new(Held {
            state: Mutex::new(HeldState {
                boot: 1_000_000_000_000,
                wall: 1_750_000_000_000_000_000,
                next_id: 0,
                sleepers: BTreeMap::new(),
            }),
            steps: watch::Sender::new(()),
        })))
    }

    /// Now, on the boot-time clock.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        match &self.0 {
            Some(held) => BootInstant(held.state.lock().boot),
            None => BootInstant(read(ClockId::Boottime)),
        }
    }

    /// Microseconds of the wall clock since 1970: for tokens and for people. Deadlines look at it
    /// only through a [`ClockReading`], beside the boot-time clock.
    #[must_use]
    pub fn wall_micros(&self) -> u64 {
        self.wall_nanos() / 1000
    }

    fn wall_nanos(&self) -> u64 {
        match &self.0 {
            Some(held) => held.state.lock().wall,
            None => read(ClockId::Realtime),
        }
    }

    /// Now, on both clocks. For what must not be believed too long it makes no difference that
    /// one is read a little after the other: a question leaves after both readings, and a check
    /// that is held up between them sees the later wall.
    #[must_use]
    pub fn reading(&self) -> ClockReading {
        let (boot, wall) = match &self.0 {
            Some(held) => {
                let s = held.state.lock();
                (BootInstant(s.boot), s.wall)
            }
            None => (self.now(), self.wall_nanos()),
        };
        ClockReading { boot, wall: Some(Duration::from_nanos(wall)) }
    }

    /// Hears of steps of a held clock's wall.
    pub(crate) fn steps(&self) -> Option<watch::Receiver<()>> {
        self.0.as_ref().map(|held| held.steps.subscribe())
    }

    /// Waits for a moment.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn sleep_until(&self, at: BootInstant) {
        match &self.0 {
            Some(held) => held.sleep_until(at).await,
            None => loop {
                let left = at.since(self.now());
                if left.is_zero() {
                    return;
                }
                // The runtime's timer may stop while the machine sleeps; a minute bounds that.
                #[allow(clippy::disallowed_methods)] // the door
                tokio::time::sleep(left.min(Duration::from_secs(60))).await;
            },
        }
    }

    /// Waits for a while.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now().plus(d)).await;
    }

    /// Runs a future for at most `d`; `None` when the time is up first, and the future is dropped.
    ///
    /// # Cancel safety
    /// That of the future.
    pub async fn timeout<T>(&self, d: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut end = pin!(self.sleep(d));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(v) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(v));
            }
            end.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Moves a held clock forward, the wall with it, and wakes the sleepers that are due.
    ///
    /// # Panics
    /// On the machine's clock, which nobody moves.
    pub fn advance(&self, d: Duration) {
        let held = self.0.as_ref().expect("only a held clock can be advanced");
        let mut s = held.state.lock();
        s.boot = s.boot.saturating_add(nanos(d));
        s.wall = s.wall.saturating_add(nanos(d));
        let first_later = (s.boot.saturating_add(1), 0);
        let later = s.sleepers.split_off(&first_later);
        let due = std::mem::replace(&mut s.sleepers, later);
        drop(s);
        due.into_values().for_each(Waker::wake);
    }

    /// Steps the wall alone, as an operator or a time daemon would, and wakes whoever has it for a
    /// witness.
    ///
    /// # Panics
    /// On the machine's clock, which nobody moves.
    pub fn step_wall(&self, seconds: i64) {
        let held = self.0.as_ref().expect("only a held clock can be stepped");
        let mut s = held.state.lock();
        s.wall = s.wall.saturating_add_signed(seconds * 1_000_000_000);
        drop(s);
        held.steps.send_replace(());
    }

    /// When the first sleeper of a held clock is due: where a simulation moves it.
    #[must_use]
    pub fn next_sleeper(&self) -> Option<BootInstant> {
        let held = self.0.as_ref()?.state.lock();
        held.sleepers
            .keys()
            .find(|(at, _)| *at != BootInstant::FAR.0)
            .map(|(at, _)| BootInstant(*at))
    }

    /// How many futures wait on a held clock: lets a test wait for "everybody sleeps".
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.0.as_ref().map_or(0, |h| h.state.lock().sleepers.len())
    }

    /// Whether this is a held clock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_held() { "Clock::held" } else { "Clock::system" })
    }
}

/// Nanoseconds, of which there are enough for five centuries.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

impl Held {
    async fn sleep_until(&self, at: BootInstant) {
        struct Entry<'a>(&'a Held, Option<(u64, u64)>);
        impl Drop for Entry<'_> {
            fn drop(&mut self) {
                if let Some(key) = self.1 {
                    self.0.state.lock().sleepers.remove(&key);
                }
            }
        }
        let mut entry = Entry(self, None);
        std::future::poll_fn(|cx| {
            let mut s = self.state.lock();
            if s.boot >= at.0 {
                return Poll::Ready(());
            }
            let key = entry.1.unwrap_or((at.0, s.next_id));
            s.next_id += u64::from(entry.1.is_none());
            s.sleepers.insert(key, cx.waker().clone());
            drop(s);
            entry.1 = Some(key);
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_held_clock_moves_only_when_told() {
        let clock = Clock::held();
        let start = clock.now();
        let mut nap = pin!(clock.sleep(Duration::from_secs(5)));
        assert!(futures_poll(nap.as_mut()).await.is_none());
        clock.advance(Duration::from_secs(4));
        assert!(futures_poll(nap.as_mut()).await.is_none());
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_secs(1));
        assert!(futures_poll(nap.as_mut()).await.is_some());
        assert_eq!(clock.now().since(start), Duration::from_secs(5));
        let wall = clock.wall_micros();
        clock.step_wall(-3600);
        assert_eq!(clock.wall_micros(), wall - 3_600_000_000);
        assert_eq!(clock.now().since(start), Duration::from_secs(5));
    }

    async fn futures_poll<F: Future>(f: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut f = Some(f);
        std::future::poll_fn(move |cx| {
            Poll::Ready(match f.take().expect("polled once").poll(cx) {
                Poll::Ready(v) => Some(v),
                Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn far_is_never() {
        let far = BootInstant::FAR;
        assert_eq!(far.minus(Duration::from_secs(1)), far);
        assert_eq!(Clock::system().now().plus(Duration::MAX), far);
    }
}
