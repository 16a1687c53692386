//! A timer on the boot-time clock: it fires right after a machine wakes up, when the runtime's own
//! timers, which sleep with the machine, would be late by as long as it slept. Where the wall clock
//! is a witness it also fires when that is stepped, or `lost()` would be later than `check()`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::{BootInstant, Clock};

/// One timer, on the runtime it was made on.
pub(crate) struct BootTimer {
    clock: Clock,
    /// None with a held clock, or where the kernel gives no timer: then the clock itself waits.
    fd: Option<AsyncFd<OwnedFd>>,
    steps: Steps,
}

/// How steps of the wall clock are heard of.
enum Steps {
    /// Nobody asked for them, or the kernel does not tell: then a step is seen at the next renewal.
    Unheard,
    /// A timer that never ends and is cancelled by a step. It stays armed after that.
    System(AsyncFd<OwnedFd>),
    Held(watch::Receiver<()>),
}

impl BootTimer {
    /// A timer that also hears of steps of the wall clock, if told to; of all from now on.
    pub(crate) fn new(clock: Clock, wall: bool) -> Self {
        let fd = (!clock.is_held()).then(|| open(TimerfdClockId::Boottime)).and_then(Result::ok);
        let steps = if wall { Steps::of(&clock) } else { Steps::Unheard };
        Self { clock, fd, steps }
    }

    /// Waits for a moment, or for a step of the wall clock since the last wait.
    pub(crate) async fn wait_until(&mut self, at: BootInstant) {
        let Self { clock, fd, steps } = self;
        tokio::select! {
            biased;
            () = wait(clock, fd.as_ref(), at) => {}
            () = steps.next() => {}
        }
    }
}

impl Steps {
    fn of(clock: &Clock) -> Self {
        if let Some(steps) = clock.steps() {
            return Self::Held(steps);
        }
        let fd = open(TimerfdClockId::Realtime).and_then(|fd| {
            let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
            match arm(fd.get_ref(), Duration::from_secs(i64::MAX.unsigned_abs()), flags) {
                // Stepped between the two calls: armed all the same, and nobody has looked yet.
                Ok(()) | Err(Errno::CANCELED) => Ok(fd),
                Err(e) => Err(e.into()),
            }
        });
        match fd {
            Ok(fd) => Self::System(fd),
            Err(e) => {
                tracing::debug!(error = %e, "steps of the wall clock are not told");
                Self::Unheard
            }
        }
    }

    async fn next(&mut self) {
        let told = match self {
            Self::Unheard => false,
            // The sender lives in the clock, which the timer has.
            Self::Held(steps) => steps.changed().await.is_ok(),
            Self::System(fd) => match fd.readable().await {
                Ok(mut ready) => {
                    let _ = rustix::io::read(fd.get_ref(), &mut [0; 8]);
                    ready.clear_ready();
                    true
                }
                Err(_) => false,
            },
        };
        if !told {
            std::future::pending::<()>().await;
        }
    }
}

async fn wait(clock: &Clock, fd: Option<&AsyncFd<OwnedFd>>, at: BootInstant) {
    let Some(fd) = fd.filter(|_| at != BootInstant::FAR) else {
        return clock.sleep_until(at).await;
    };
    while clock.now() < at {
        if arm(fd.get_ref(), Duration::from_nanos(at.as_nanos()), TimerfdTimerFlags::ABSTIME)
            .is_err()
        {
            return clock.sleep_until(at).await;
        }
        if let Ok(mut ready) = fd.readable().await {
            let _ = rustix::io::read(fd.get_ref(), &mut [0; 8]);
            ready.clear_ready();
        }
    }
}

fn open(clock: TimerfdClockId) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let fd = timerfd_create(clock, flags)?;
    // SAFETY: the descriptor is owned, never handed out, and closed only when the registration is
    // dropped with it, which is what `register` asks for. There is no safe way to register a timer.
    #[allow(unsafe_code)]
    let fd = unsafe { AsyncFd::register(fd) };
    Ok(fd?)
}

fn arm(fd: &OwnedFd, at: Duration, flags: TimerfdTimerFlags) -> Result<(), Errno> {
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at.subsec_nanos()),
        },
    };
    timerfd_settime(fd, flags, &once)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_tells_of_steps_and_the_boot_timer_runs_beside_them() {
        let clock = Clock::system();
        let mut timer = BootTimer::new(clock.clone(), true);
        assert!(matches!(timer.steps, Steps::System(_)), "no timer that a step cancels");
        let at = clock.now().plus(Duration::from_millis(20));
        // A step of the machine's clock meanwhile may wake it early, once for each.
        while clock.now() < at {
            timer.wait_until(at).await;
        }
        assert!(matches!(BootTimer::new(clock, false).steps, Steps::Unheard));
    }

    #[tokio::test]
    async fn a_step_is_told_also_when_it_came_between_two_waits() {
        let clock = Clock::held();
        let mut timer = BootTimer::new(clock.clone(), true);
        clock.step_wall(1);
        timer.wait_until(BootInstant::FAR).await;
        let mut deaf = BootTimer::new(clock.clone(), false);
        clock.step_wall(1);
        tokio::select! {
            biased;
            () = deaf.wait_until(BootInstant::FAR) => panic!("nobody asked for steps"),
            () = timer.wait_until(BootInstant::FAR) => {}
        }
    }
}
