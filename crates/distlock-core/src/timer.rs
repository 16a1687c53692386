//! A timer on the boot-time clock: it fires right after a machine wakes up, when the runtime's own
//! timers, which sleep with the machine, would be late by as long as it slept.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::clock::{BootInstant, Clock};

/// One timer, on the runtime it was made on.
pub(crate) struct BootTimer {
    clock: Clock,
    /// None with a held clock, or where the kernel gives no timer: then the clock itself waits.
    fd: Option<AsyncFd<OwnedFd>>,
}

impl BootTimer {
    pub(crate) fn new(clock: Clock) -> Self {
        let fd = (!clock.is_held()).then(open).and_then(Result::ok);
        Self { clock, fd }
    }

    pub(crate) async fn wait_until(&self, at: BootInstant) {
        let Some(fd) = self.fd.as_ref().filter(|_| at != BootInstant::FAR) else {
            return self.clock.sleep_until(at).await;
        };
        while self.clock.now() < at {
            if arm(fd.get_ref(), at).is_err() {
                return self.clock.sleep_until(at).await;
            }
            if let Ok(mut ready) = fd.readable().await {
                let mut count = [0; 8];
                let _ = rustix::io::read(fd.get_ref(), &mut count);
                ready.clear_ready();
            }
        }
    }
}

fn open() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
    // SAFETY: the descriptor is owned, never handed out, and closed only when the registration is
    // dropped with it, which is what `register` asks for. There is no safe way to register a timer.
    #[allow(unsafe_code)]
    let fd = unsafe { AsyncFd::register(fd) };
    Ok(fd?)
}

fn arm(fd: &OwnedFd, at: BootInstant) -> io::Result<()> {
    let at = Duration::from_nanos(at.as_nanos());
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at.subsec_nanos()),
        },
    };
    timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}
