//! `distlock run`: a command under a lock.

use std::path::Path;
use std::time::Duration;

use distlock::backend::{BootInstant, Clock};
use distlock::capability::Expiry;
use distlock::{Guard, Label, Name, Released, Ttl};
use rustix::process::{Signal, getpgrp, kill_process_group};

use crate::child::{Change, Child, Program};
use crate::group::{Process, ProcessGroup};
use crate::guardian::{GIVE_UP, Guardian, kill_at};
use crate::wait::{self, Turn};
use crate::{
    Everywhere, Failure, Outcome, Printer, Signals, Status, args::Run, signals::Event, store,
    terminal::Terminal,
};

/// How often a group that must end is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How often a command that has the terminal is looked at.
const TERMINAL_POLL: Duration = Duration::from_secs(1);
const UNSTOPPABLE: &str = "a command under a lock cannot be suspended; it goes on";

/// What can be known to be wrong before anything is started.
pub(crate) fn prepare(args: &Run) -> Result<Program<'_>, Failure> {
    Name::new(&args.name)?;
    let ttl = Ttl::new(args.ttl.unwrap_or(Ttl::DEFAULT.get()))?.get();
    let ttl = args.max_hold.map_or(ttl, |max| ttl.min(max));
    if let Some(grace) = args.kill_after
        && grace > ttl / 2
    {
        let what = format!("--kill-after {grace:?} is more than half of the TTL of {ttl:?}");
        return Err(Failure::new(Status::USAGE, what)
            .hint("the lock is renewed in the other half; choose a longer --ttl"));
    }
    Program::find(&args.command)
}

/// The verb.
pub(crate) async fn run(
    all: &Everywhere,
    args: &Run,
    program: &Program<'_>,
    guardian: Guardian,
    printer: Printer,
) -> Outcome {
    let mut signals = Signals::listen()?;
    store::note_default(all, printer);
    let (locks, patience) = wait::connect(all, &args.wait).await?;
    if store::is_alone(&locks) {
        printer.warn("this store lives in this process alone: it excludes nobody");
    }
    let mut lock = wait::with(locks.lock(&args.name).label(label(args)), &args.hold);
    if let Some(ttl) = args.ttl {
        lock = lock.ttl(ttl);
    }
    if let Some(max) = args.max_hold {
        lock = lock.max_hold(max);
    }
    let turn = wait::turn(&locks, lock, &args.name, &patience, &mut signals, printer).await?;
    let guard = match turn {
        Turn::Granted(guard) => guard,
        Turn::Busy(busy) => {
            if args.busy_code != 0 {
                printer.failure(&Failure::new(Status::BUSY, busy));
            }
            return Ok(Status(args.busy_code));
        }
    };
    let expiry = locks.capability().expiry;
    let status = under(args, program, guard, expiry, guardian, signals, printer).await;
    wait::close(&locks).await;
    status
}

/// The label of the hold: its origin, and the command's name without its arguments: they may hold
/// secrets.
fn label(args: &Run) -> String {
    let command = args.command.first().map(Path::new).and_then(Path::file_name);
    let command = command.unwrap_or_default().to_string_lossy();
    format!("{}: {command}", Label::of_this_process())
}

/// Why the command was asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Lost,
    MaxHold,
}

/// One command under one lock.
struct Work<'a> {
    args: &'a Run,
    clock: Clock,
    guard: Guard,
    guardian: Guardian,
    processes: ProcessGroup,
    child: Child,
    terminal: Option<Terminal>,
    printer: Printer,
    grace: Duration,
    since: BootInstant,
    /// The last deadline that was told.
    deadline: BootInstant,
    /// Asked to end because of this, and ended then.
    ending: Option<(Cause, BootInstant)>,
    /// Somebody's wish to end it was passed on.
    signalled: bool,
    /// Since when KILL is sent.
    killing: Option<BootInstant>,
    /// Somebody wished it to end after KILL was sent, too.
    impatient: bool,
    guarded: bool,
}

async fn under(
    args: &Run,
    program: &Program<'_>,
    guard: Guard,
    expiry: Expiry,
    mut guardian: Guardian,
    mut signals: Signals,
    printer: Printer,
) -> Outcome {
    let clock = Clock::system();
    let grace = args.kill_after.unwrap_or(guard.ttl() / 10);
    let group = guardian.group();
    let vars =
        [("DISTLOCK_NAME", args.name.clone()), ("DISTLOCK_TOKEN", guard.token().to_string())];
    let since = clock.now();
    guardian.ready()?;
    // Armed before the command exists: from its first instruction on it is watched.
    let deadline = deadline(&clock, &guard);
    guardian
        .deadline(deadline, grace)
        .map_err(|e| Failure::new(Status::SYSTEM, format!("the guardian process is gone: {e}")))?;
    if expiry == Expiry::WithProcess {
        guardian.share_locks();
    }
    let mut terminal = Terminal::of_stdin();
    if let Some(terminal) = &mut terminal {
        terminal.hand_over(group);
    }
    // After the guardian was told: a command stopped between this look and the start comes back to a
    // group that the guardian has closed, and the start fails.
    let late = || guard.check().is_err() || clock.now() >= deadline.minus(grace);
    let started = if late() { Ok(None) } else { program.start(group, &vars).map(Some) };
    let child = match started {
        Ok(Some(child)) => child,
        failed => {
            if let Some(terminal) = &mut terminal {
                terminal.take_back(group, false);
            }
            let late = late();
            guardian.goodbye();
            let _ = guard.release().await;
            return match failed {
                Err(failure) if !late => Err(failure),
                _ => {
                    let name = &args.name;
                    printer.warn(format!(
                        "lock {name:?} was lost before the command could be started; it was not"
                    ));
                    Ok(Status(args.lost_code))
                }
            };
        }
    };
    let processes = ProcessGroup::new(group, Process::of(child.pid()));
    if let Some(command) = processes.command {
        let _ = guardian.command(command);
    }
    let mut work = Work {
        args,
        clock,
        guard,
        guardian,
        processes,
        child,
        terminal,
        printer,
        grace,
        since,
        deadline,
        ending: None,
        signalled: false,
        killing: None,
        impatient: false,
        guarded: true,
    };
    let ended = work.watch(&mut signals).await;
    let held = work.guard.check();
    work.sweep(&mut signals).await;
    work.finish(ended, held.is_ok()).await
}

/// Until when the lock is certain.
fn deadline(clock: &Clock, guard: &Guard) -> BootInstant {
    // The moment first: what is left is counted from a later one, so this errs on the early side.
    let now = clock.now();
    match guard.remaining() {
        Duration::MAX => BootInstant::FAR,
        left => now.plus(left),
    }
}

impl Work<'_> {
    /// Looks after the command until it has ended.
    async fn watch(&mut self, signals: &mut Signals) -> Change {
        loop {
            let wake = self.step();
            // Not only after a signal: one that came before we listened would be missed.
            match self.child.look() {
                Change::Runs => {}
                Change::Stopped(signal) => self.stopped(signal),
                ended => return ended,
            }
            if self.gives_up() {
                return Change::Runs;
            }
            let running = self.ending.is_none();
            tokio::select! {
                biased;
                event = signals.next() => self.handle(event),
                _ = self.guard.lost(), if running => self.lost(),
                () = self.clock.sleep_until(self.terminal_poll().min(wake)) => {
                    // A stop that its parent is not told of.
                    if self.terminal.is_some() && self.processes.is_stuck() {
                        self.stopped(Signal::TSTP.as_raw());
                    }
                }
            }
        }
    }

    /// When to look at it next, if somebody may press Ctrl-Z.
    fn terminal_poll(&self) -> BootInstant {
        match self.terminal {
            Some(_) => self.clock.now().plus(TERMINAL_POLL),
            None => BootInstant::FAR,
        }
    }

    /// Does what is due and says when to look again.
    fn step(&mut self) -> BootInstant {
        let now = self.clock.now();
        if let Some((_, at)) = self.ending {
            if at <= now {
                self.kill();
                return now.plus(POLL);
            }
            return at;
        }
        let next = deadline(&self.clock, &self.guard);
        if self.guard.check().is_ok() && next > self.deadline {
            self.deadline = next;
            let told = self.guardian.deadline(next, self.grace);
            self.heard_of_guardian(told.is_ok());
        }
        let ask_at = self.deadline.minus(self.grace);
        if ask_at <= now {
            self.lost();
        }
        // A renewal moves the deadline without a word: look often enough to pass it on in time.
        ask_at.min(now.plus(self.guard.ttl() / 10))
    }

    fn kill(&mut self) {
        self.killing.get_or_insert(self.clock.now());
        self.processes.end();
    }

    /// What even KILL does not end sits in the kernel or belongs to another user: waiting for it is
    /// no use, since the lock is lost anyway or somebody wants this to end.
    fn gives_up(&self) -> bool {
        let long = |since| self.clock.now().since(since) > GIVE_UP;
        self.killing.is_some_and(|since| self.impatient || long(since))
    }

    /// The lock is lost, or cannot be kept: asks the command to end while nobody else can have it.
    fn lost(&mut self) {
        if self.ending.is_some() {
            return;
        }
        let now = self.clock.now();
        let end_at = kill_at(self.deadline, self.grace).min(now.plus(self.grace));
        // The clock of the hold began a little before ours, and the end is a grace early.
        let age = now.since(self.since) + self.grace + self.guard.ttl() / 10;
        let cause = match self.args.max_hold {
            Some(max) if age >= max => Cause::MaxHold,
            _ => Cause::Lost,
        };
        self.ending = Some((cause, end_at));
        let _ = self.guardian.ending(end_at);
        self.processes.ask_to_end();
        match (cause, self.guard.check()) {
            (Cause::MaxHold, _) => {
                self.printer.warn("held as long as --max-hold allows; ending the command");
            }
            (Cause::Lost, Err(lost)) => self.printer.warn(format!("{lost}; ending the command")),
            (Cause::Lost, Ok(())) => {
                let name = &self.args.name;
                self.printer.warn(format!(
                    "lock {name:?} is about to be lost: the store does not confirm it; ending the \
                     command"
                ));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::End(signal) => {
                self.signalled = true;
                self.impatient |= self.killing.is_some();
                self.processes.remember();
                self.processes.send(signal);
                // A stopped command hears it only once it goes on.
                self.processes.send(Signal::CONT);
            }
            Event::Child => {}
            Event::Suspend => self.printer.warn(UNSTOPPABLE),
            Event::Continued => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.hand_over_wanted(self.processes.group);
                }
                self.processes.send(Signal::CONT);
            }
        }
    }

    /// A command that stands still would keep the lock for nothing, and one whose lock was lost
    /// could not be told: it goes on.
    fn stopped(&mut self, signal: i32) {
        let wants_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|s| s.as_raw() == signal);
        if wants_terminal {
            let group = self.processes.group;
            if !self.terminal.as_mut().is_some_and(|t| t.hand_over_wanted(group)) {
                // Going on would only stop it again.
                self.printer.note("the command wants the terminal: bring this job to the front");
                return;
            }
        } else {
            self.printer.warn(UNSTOPPABLE);
        }
        self.processes.send(Signal::CONT);
    }

    fn heard_of_guardian(&mut self, alive: bool) {
        if !alive && std::mem::replace(&mut self.guarded, false) {
            self.printer.warn(
                "the guardian process is gone: if distlock is killed now, its command runs on",
            );
        }
    }

    /// After an end that was not the command's own will, nothing of its group may outlive it.
    async fn sweep(&mut self, signals: &mut Signals) {
        let now = self.clock.now();
        let end_at = match self.ending {
            Some((_, at)) => at,
            None if self.signalled => now.plus(self.grace).min(kill_at(self.deadline, self.grace)),
            None => return,
        };
        while !self.processes.others(self.processes.group).is_empty() {
            if self.clock.now() >= end_at {
                self.kill();
            }
            if self.gives_up() {
                return;
            }
            tokio::select! {
                event = signals.next() => self.handle(event),
                () = self.clock.sleep(POLL) => {}
            }
        }
    }

    /// Gives the lock back and says how it went.
    async fn finish(mut self, ended: Change, held: bool) -> Outcome {
        let (status, signal) = match ended {
            Change::Killed(signal) => (Status::signal(signal), Some(signal)),
            Change::Exited(code) => (Status(u8::try_from(code).unwrap_or(u8::MAX)), None),
            Change::Runs | Change::Stopped(_) => (Status::INTERNAL, None),
        };
        let away = match &mut self.terminal {
            Some(terminal) => terminal.take_back(self.processes.group, signal.is_some()),
            None => false,
        };
        let left = match self.killing {
            Some(_) => self.processes.others(self.processes.group),
            None => Vec::new(),
        };
        if !left.is_empty() {
            let pids: Vec<String> = left.iter().map(|p| p.pid.to_string()).collect();
            self.printer.warn(format!(
                "KILL does not end process {}: it sleeps in the kernel or belongs to another user, \
                 and may still be at work",
                pids.join(", ")
            ));
        }
        self.guardian.goodbye();
        if self.ending.is_none()
            && !self.signalled
            && rustix::process::test_kill_process_group(self.processes.group).is_ok()
        {
            self.printer.note("the command left processes behind; they run on without the lock");
        }
        let outcome = match (self.ending, held) {
            (Some((Cause::MaxHold, _)), _) => Ok(Status::MAX_HOLD),
            (Some((Cause::Lost, _)), _) => Ok(Status(self.args.lost_code)),
            (None, false) => {
                let name = &self.args.name;
                self.printer.warn(format!("lock {name:?} was lost before the command had ended"));
                Ok(Status(self.args.lost_code))
            }
            (None, true) => Ok(status),
        };
        match self.guard.release().await {
            // It was held when the command ended, which is what counts.
            Ok(Released::Released | Released::WasLost) => {}
            Err(e) if held => self.printer.warn(format!("{e}; the lock ends with its lease")),
            Err(_) => {}
        }
        let interrupted =
            [Signal::INT, Signal::QUIT].into_iter().find(|s| away && signal == Some(s.as_raw()));
        if let Some(signal) = interrupted {
            // The terminal told the command alone. A script around us must hear of it, too, or
            // its Ctrl-C would only skip a line. Our own handler takes it for us.
            let _ = kill_process_group(getpgrp(), signal);
        }
        outcome
    }
}
