//! The guardian: a small process that ends the command when `distlock` itself cannot.
//!
//! 1. `run` starts it first of all, in a process group of its own, with a pipe as its stdin.
//! 2. The command is started *into* that group, so there is no moment at which the command exists
//!    and the guardian does not know whom to end.
//! 3. After each renewal `run` tells it the deadline. If none comes in time (`distlock` was
//!    stopped), the group gets TERM, and KILL before the lease can pass on.
//! 4. If the pipe ends without a goodbye (`distlock` was killed), the group gets TERM at once and
//!    KILL soon after; where the lock ended with the process, KILL at once.
//!
//! It is a program started anew, not a fork: it shares no memory, lock or thread with `run`.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use distlock::{BootInstant, Clock};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, getpgrp, getpid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::exit::{Failure, Status};
use crate::group;

/// How the guardian's process is called: not a verb, so not in the definition.
const NAME: &str = "distlock-guardian";
/// How often a group that was asked to end is looked at.
const LOOK: Duration = Duration::from_millis(20);

const DEADLINE: u8 = b'd';
const ENDING: u8 = b'e';
const GOODBYE: u8 = b'g';
/// One word to the guardian: what, a moment on the boot clock, a duration in nanoseconds.
type Word = [u8; 17];

fn word(what: u8, at: BootInstant, grace: Duration) -> Word {
    let mut word = [what; 17];
    word[1..9].copy_from_slice(&at.as_nanos().to_le_bytes());
    let grace = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
    word[9..].copy_from_slice(&grace.to_le_bytes());
    word
}

fn unword(word: &Word) -> (u8, BootInstant, Duration) {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&word[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    (word[0], BootInstant::from_nanos(number(1)), Duration::from_nanos(number(9)))
}

/// When KILL must be sent so that the group is gone by the deadline: a tenth of the grace early.
pub(crate) fn kill_at(deadline: BootInstant, grace: Duration) -> BootInstant {
    deadline.minus(grace / 10)
}

/// The guardian, as `run` sees it.
pub(crate) struct Guardian {
    pid: Pid,
    process: std::process::Child,
    pipe: Option<ChildStdin>,
}

impl Guardian {
    /// Starts it. To be called before any thread exists, and long before it is needed, so that it
    /// is ready by then.
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |e: io::Error| {
            Failure::new(Status::SYSTEM, format!("cannot start the guardian process: {e}"))
                .hint("it is this program started again, and needs /proc and a free process slot")
        };
        // By this name it is this very program, also after an upgrade has replaced the file.
        let mut process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&process);
        let pipe = process.stdin.take();
        Ok(Self { pid, process, pipe })
    }

    /// Waits until it stands: from then on no signal but KILL and STOP reaches it.
    pub(crate) fn ready(&mut self) -> Result<(), Failure> {
        let mut byte = [0];
        let answer = self.process.stdout.take().map(|mut out| out.read_exact(&mut byte));
        match answer {
            Some(Ok(())) => Ok(()),
            _ => Err(Failure::new(Status::SYSTEM, "the guardian process ended too early")),
        }
    }

    /// The group it watches: the command's.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Tells it how long the lock is certain.
    pub(crate) fn deadline(&mut self, at: BootInstant, grace: Duration) -> io::Result<()> {
        self.tell(DEADLINE, at, grace)
    }

    /// Tells it that the group was asked to end, and must be ended by then.
    pub(crate) fn ending(&mut self, kill_at: BootInstant) -> io::Result<()> {
        self.tell(ENDING, kill_at, Duration::ZERO)
    }

    fn tell(&mut self, what: u8, at: BootInstant, grace: Duration) -> io::Result<()> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(&word(what, at, grace))
    }

    /// Lets it go: the command has ended. Takes effect before this returns.
    pub(crate) fn goodbye(mut self) {
        let _ = self.tell(GOODBYE, BootInstant::FAR, Duration::ZERO);
        self.pipe = None;
        let _ = self.process.wait();
    }
}

/// Whether this process was started to be a guardian.
pub(crate) fn is_me() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// The guardian's life.
pub(crate) fn watch() -> ExitCode {
    // The group's signals are for the command. Blocked, not handled: nothing interrupts us.
    let _ = SigSet::all().thread_block();
    let _ = rustix::thread::set_name(c"distlock-guard");
    match stand() {
        Ok(watch) => {
            watch.run();
            Status::OK.into()
        }
        Err(_) => Status::INTERNAL.into(),
    }
}

fn stand() -> io::Result<Watch> {
    // Only a leader may end its group: otherwise it is somebody else's.
    if getpgrp() != getpid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let watch = Watch::new()?;
    io::stdout().write_all(b"!")?;
    io::stdout().flush()?;
    Ok(watch)
}

struct Watch {
    clock: Clock,
    /// On the boot clock: right after a suspended machine wakes up is when it matters.
    timer: OwnedFd,
    /// Told a deadline: there is, or may be, a command.
    armed: bool,
    deadline: BootInstant,
    grace: Duration,
    /// The group was asked to end, and is ended then.
    end_at: Option<BootInstant>,
    /// The pipe ended: nobody is left to say goodbye.
    alone: bool,
}

impl Watch {
    fn new() -> io::Result<Self> {
        Ok(Self {
            clock: Clock::system(),
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?,
            armed: false,
            deadline: BootInstant::FAR,
            grace: Duration::ZERO,
            end_at: None,
            alone: false,
        })
    }

    fn run(mut self) {
        loop {
            let now = self.clock.now();
            match self.end_at {
                Some(at) if at <= now => return group::end(getpid()),
                Some(_) if self.alone && group::others(getpid(), getpid()).is_empty() => return,
                None if self.ask_at() <= now => {
                    self.ask(kill_at(self.deadline, self.grace), "is stopped or stuck");
                }
                _ => {
                    if self.listen(now) {
                        return;
                    }
                }
            }
        }
    }

    /// A tenth of the grace after `run` would have asked itself, so that the command is not asked
    /// twice while `run` is well.
    fn ask_at(&self) -> BootInstant {
        self.deadline.minus(self.grace - self.grace / 10)
    }

    fn ask(&mut self, end_at: BootInstant, what: &str) {
        let _ = writeln!(io::stderr(), "distlock: {what}; ending its command");
        group::ask_to_end(getpid());
        self.end_at = Some(end_at);
    }

    /// Waits for a word or the next moment; true when there is nothing more to do.
    fn listen(&mut self, now: BootInstant) -> bool {
        let next = self.end_at.unwrap_or_else(|| self.ask_at());
        let mut nap = next.since(now);
        if self.alone {
            nap = nap.min(LOOK);
        }
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        let fds = if self.alone { &mut fds[..1] } else { &mut fds[..] };
        let set = alarm(&self.timer, now.plus(nap));
        // Without an alarm, look again at once rather than never.
        let timeout = set.is_err().then_some(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        if poll(fds, timeout.as_ref()).is_err() {
            return false;
        }
        let spoken = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        spoken && self.hear()
    }

    fn hear(&mut self) -> bool {
        let mut word: Word = [0; 17];
        // Words are shorter than what a pipe takes in one piece, so they arrive whole.
        let got = rustix::io::read(io::stdin().as_fd(), &mut word).unwrap_or(0);
        if got < word.len() {
            self.alone = true;
            return self.left_alone();
        }
        match (unword(&word), self.end_at) {
            ((GOODBYE, ..), _) => return true,
            ((DEADLINE, at, grace), None) => {
                (self.armed, self.deadline, self.grace) = (true, at, grace);
            }
            ((ENDING, at, _), _) => self.end_at = Some(at),
            _ => {}
        }
        false
    }

    fn left_alone(&mut self) -> bool {
        if self.armed && self.end_at.is_none() {
            if self.deadline == BootInstant::FAR {
                // The lock ended with the process that held it: there is no time to ask.
                group::end(getpid());
            }
            let soon = self.clock.now().plus(self.grace);
            self.ask(soon.min(kill_at(self.deadline, self.grace)), "was killed");
        }
        !self.armed
    }
}

/// Sets the timer; a moment that never comes stills it.
fn alarm(timer: &OwnedFd, at: BootInstant) -> io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at = match at {
        BootInstant::FAR => zero,
        at => {
            let at = Duration::from_nanos(at.as_nanos());
            let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec: seconds, tv_nsec: i64::from(at.subsec_nanos()) }
        }
    };
    let once = Itimerspec { it_interval: zero, it_value: at };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}
