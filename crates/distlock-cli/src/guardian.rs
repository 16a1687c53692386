//! The guardian: a small process that ends the command when `distlock` itself cannot.
//!
//! 1. `run` starts it first of all, in a process group of its own, with a socket as its stdin.
//! 2. The command is started *into* that group, so there is no moment at which the command exists
//!    and the guardian does not know which processes to end.
//!    What the command starts in other groups is found through the command's own number.
//! 3. After each renewal `run` tells it the deadline. If none comes in time (`distlock` was
//!    stopped), the group gets TERM, and KILL before the lease can pass on.
//! 4. If the socket ends without a goodbye (`distlock` was killed), the group gets TERM at once and
//!    KILL soon after.
//! 5. When it has ended the group it leaves it. An empty group takes nobody in, so a `distlock` that
//!    was stopped just before the start of the command cannot start it after the deadline.
//! 6. Where a lock ends with its process, the guardian has a copy of the lock's descriptor, so
//!    that the lock, too, ends only after the command; it then asks for a moment only, since
//!    others were promised a quick hand-over. Where the kernel gives no copy, it does not ask.
//!
//! It is a program started anew, not a fork: it shares no memory, lock or thread with `run`.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use distlock::backend::{BootInstant, Clock};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgid, getpgrp, getpid, getppid, kill_process, pidfd_open, setpgid,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::descriptors::{self, MOST};
use crate::group::{Process, ProcessGroup};
use crate::{Failure, Status};

/// How the guardian's process is called: not a verb, so not in the definition.
const NAME: &str = "distlock-guardian";
/// How often a group that was asked to end is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How soon after KILL: most processes are gone by then.
const QUICK_POLL: Duration = Duration::from_millis(2);
/// How often a process that KILL did not end is looked at when nothing waits for it any more, and
/// after how many looks.
const SLOW_POLL: (u32, Duration) = (250, Duration::from_secs(1));

/// How long to wait for what KILL does not end: a process that sleeps in the kernel, or that became
/// another user's.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(5);

/// How long the command has after TERM where the lock ended with its process.
const SHORT_GRACE: Duration = Duration::from_millis(50);

const DEADLINE: u8 = b'd';
const ENDING: u8 = b'e';
const GOODBYE: u8 = b'g';
const LOCKS: u8 = b'l';
const COMMAND: u8 = b'c';
/// One message to the guardian: its kind, a time on the boot clock, a duration in nanoseconds. For the
/// command the two numbers are its pid and when it started.
type Message = [u8; 17];

fn encode(what: u8, at: BootInstant, grace: Duration) -> Message {
    let mut message = [what; 17];
    message[1..9].copy_from_slice(&at.as_nanos().to_le_bytes());
    let grace = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
    message[9..].copy_from_slice(&grace.to_le_bytes());
    message
}

fn decode(message: &Message) -> (u8, BootInstant, Duration) {
    let number = |at| u64::from_le_bytes(message[at..at + 8].try_into().unwrap_or_default());
    (message[0], BootInstant::from_nanos(number(1)), Duration::from_nanos(number(9)))
}

/// When KILL must be sent so that the group is gone by the deadline: a tenth of the grace early.
pub(crate) fn kill_at(deadline: BootInstant, grace: Duration) -> BootInstant {
    deadline.minus(grace / 10)
}

/// The guardian, as `run` sees it.
pub(crate) struct Guardian {
    pid: Pid,
    process: std::process::Child,
    /// Keeps messages apart, carries descriptors, and ends when this process does.
    socket: OwnedFd,
}

impl Guardian {
    /// Starts it. To be called before any thread exists, and long before it is needed, so that it
    /// is ready by then.
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |e: io::Error| {
            Failure::new(Status::SYSTEM, format!("cannot start the guardian process: {e}"))
                .hint("it is this program started again, and needs /proc and a free process slot")
        };
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed(e.into()))?;
        // By this name it is this very program, also after an upgrade has replaced the file.
        let process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Self { pid: Pid::from_child(&process), process, socket })
    }

    /// Waits until it stands: from then on no signal but KILL and STOP reaches it.
    pub(crate) fn ready(&mut self) -> Result<(), Failure> {
        match rustix::io::read(&self.socket, &mut [0; 1]) {
            Ok(1) => Ok(()),
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

    /// Tells it the command's process, so that it is found in whatever group it moves to.
    pub(crate) fn command(&mut self, command: Process) -> io::Result<()> {
        let pid = u64::from(command.pid.as_raw_pid().unsigned_abs());
        let started = Duration::from_nanos(command.started);
        self.tell(COMMAND, BootInstant::from_nanos(pid), started)
    }

    /// Tells it that the group was asked to end, and must be ended by then.
    pub(crate) fn ending(&mut self, kill_at: BootInstant) -> io::Result<()> {
        self.tell(ENDING, kill_at, Duration::ZERO)
    }

    /// Tells it that the lock ends with this process, and gives it copies of the descriptors of
    /// this process's kernel locks.
    pub(crate) fn share_locks(&mut self) {
        let copies = descriptors::with_locks();
        let copies: Vec<BorrowedFd<'_>> = copies.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !copies.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&copies));
        }
        let message = encode(LOCKS, BootInstant::FAR, Duration::ZERO);
        let _ = sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
    }

    fn tell(&mut self, what: u8, at: BootInstant, grace: Duration) -> io::Result<()> {
        // Never waits: a guardian that somebody stopped must not stop us.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, &encode(what, at, grace), flags) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Lets it go: the command has ended. It is gone, and its copies with it, when this returns,
    /// unless the kernel itself keeps it.
    pub(crate) fn goodbye(mut self) {
        let _ = self.tell(GOODBYE, BootInstant::FAR, Duration::ZERO);
        drop(self.socket);
        let _ = kill_process(self.pid, Signal::CONT);
        if let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) {
            let patience = Timespec { tv_sec: GIVE_UP.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience));
        }
        let _ = self.process.try_wait();
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
    match prepare() {
        Ok(watch) => {
            watch.run();
            Status::OK.into()
        }
        Err(_) => Status::INTERNAL.into(),
    }
}

fn prepare() -> io::Result<Watch> {
    // Only a leader may end its group: otherwise it is somebody else's.
    if getpgrp() != getpid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let watch = Watch::new()?;
    rustix::io::write(io::stdin(), b"!")?;
    Ok(watch)
}

struct Watch {
    clock: Clock,
    /// This process is its group's leader, and of all in it the one that is not ended.
    processes: ProcessGroup,
    /// On the boot clock: right after a suspended machine wakes up is when it matters.
    timer: OwnedFd,
    /// Told a deadline: there is, or may be, a command.
    armed: bool,
    deadline: BootInstant,
    grace: Duration,
    /// The group was asked to end, and is ended then.
    end_at: Option<BootInstant>,
    /// The socket ended: nobody is left to say goodbye.
    alone: bool,
    /// The lock ends with `run`, or with these copies of its descriptors.
    pinned: bool,
    locks: Vec<OwnedFd>,
}

impl Watch {
    fn new() -> io::Result<Self> {
        Ok(Self {
            clock: Clock::system(),
            processes: ProcessGroup::new(getpid(), None),
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?,
            armed: false,
            deadline: BootInstant::FAR,
            grace: Duration::ZERO,
            end_at: None,
            alone: false,
            pinned: false,
            locks: Vec::new(),
        })
    }

    fn run(mut self) {
        let mut looks = 0;
        loop {
            let now = self.clock.now();
            match self.end_at {
                Some(at) if at <= now => {
                    if !self.processes.kill_others(getpid()) {
                        return self.close();
                    }
                    looks += 1;
                    let nap = match looks {
                        1..=10 => QUICK_POLL,
                        n if self.alone && n > SLOW_POLL.0 => SLOW_POLL.1,
                        _ => POLL,
                    };
                    // `run` may give up on them: it must not wait for us.
                    if self.listen(now.plus(nap)) {
                        return;
                    }
                }
                Some(_) if self.alone && self.processes.others(getpid()).is_empty() => return,
                None if self.ask_at() <= now => {
                    self.ask(kill_at(self.deadline, self.grace), "is stopped or stuck");
                }
                _ => {
                    let mut next = self.end_at.unwrap_or_else(|| self.ask_at());
                    if self.alone {
                        next = next.min(now.plus(POLL));
                    }
                    if self.listen(next) {
                        return;
                    }
                }
            }
        }
    }

    /// Leaves the group, as the last one. From then on it takes nobody in: `run` may have been stopped
    /// between its last look at the deadline and the start of the command, and this process, even when
    /// it has ended, would keep the group open as long as `run` does not collect it.
    fn close(&mut self) {
        let theirs = getppid().and_then(|run| getpgid(Some(run)).ok());
        if theirs.is_none_or(|group| setpgid(None, Some(group)).is_err()) {
            // No process is left to start anything, and one that slipped in ends with us.
            return self.processes.end();
        }
        while self.processes.kill_others(getpid()) {
            if self.listen(self.clock.now().plus(QUICK_POLL)) {
                return;
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
        self.processes.ask_to_end();
        self.end_at = Some(end_at);
    }

    /// Waits for a message or the time of the next check; true when there is nothing more to do.
    fn listen(&mut self, next: BootInstant) -> bool {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        let fds = if self.alone { &mut fds[..1] } else { &mut fds[..] };
        let set = alarm(&self.timer, next);
        // Without an alarm, look again at once rather than never.
        let timeout = set.is_err().then_some(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        if poll(fds, timeout.as_ref()).is_err() {
            return false;
        }
        let spoken = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        spoken && self.receive()
    }

    fn receive(&mut self) -> bool {
        let mut message: Message = [0; 17];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut message)];
        let got = recvmsg(io::stdin(), into, &mut control, RecvFlags::CMSG_CLOEXEC);
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(copies) = ancillary {
                self.locks.extend(copies);
            }
        }
        if !got.is_ok_and(|got| got.bytes == message.len()) {
            self.alone = true;
            return self.left_alone();
        }
        match (decode(&message), self.end_at) {
            ((GOODBYE, ..), _) => return true,
            ((DEADLINE, at, grace), None) => {
                (self.armed, self.deadline, self.grace) = (true, at, grace);
            }
            ((ENDING, at, _), _) => self.end_at = Some(at),
            ((LOCKS, ..), _) => self.pinned = true,
            ((COMMAND, pid, started), _) => {
                let pid = i32::try_from(pid.as_nanos()).ok().and_then(Pid::from_raw);
                let started = u64::try_from(started.as_nanos()).unwrap_or(u64::MAX);
                self.processes.command = pid.map(|pid| Process { pid, started });
            }
            _ => {}
        }
        false
    }

    fn left_alone(&mut self) -> bool {
        if self.armed && self.end_at.is_none() {
            let now = self.clock.now();
            let grace = match (self.pinned, self.locks.is_empty()) {
                (true, true) => Duration::ZERO,
                (true, false) => self.grace.min(SHORT_GRACE),
                (false, _) => self.grace,
            };
            let end_at = now.plus(grace).min(kill_at(self.deadline, self.grace));
            self.ask(end_at, "was killed");
        }
        !self.armed
    }
}

/// Sets the timer; a time that never comes disarms it.
fn alarm(timer: &OwnedFd, at: BootInstant) -> io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at = match at {
        BootInstant::FAR => zero,
        at => Timespec::try_from(Duration::from_nanos(at.as_nanos())).map_err(io::Error::other)?,
    };
    let once = Itimerspec { it_interval: zero, it_value: at };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}
