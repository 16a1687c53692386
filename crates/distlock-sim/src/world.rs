//! The world: an executor, virtual time and a network, in one thread and from one seed.
//!
//! Each simulated process has application tasks and one library thread. Whatever is ready runs in
//! a random order; when nothing is, time jumps to the next timer or message. A thread that spawns
//! work on the library's thread may be preempted right there: the others then run on without it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use distlock_core::Clock;
use distlock_core::backend::Fut;
use distlock_core::clock::BootInstant;
use distlock_core::lease::{EventSink, Wake as News};
use distlock_core::simulation::{self, Delivery, Installed, Message};

use crate::rng::Rng;

/// How the network treats messages: chances out of a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// A request never arrives, or only after its caller has given up.
    pub lost: u32,
    /// An answer never arrives.
    pub mute: u32,
    /// The connection breaks, before or after the request was served.
    pub breaks: u32,
    /// There is no connection.
    pub refused: u32,
    /// A message takes up to twelve seconds.
    pub slow: u32,
    /// A request is served twice before it is answered.
    pub twice: u32,
    /// A wake-up is lost.
    pub deaf: u32,
}

impl Net {
    /// Whether nothing ever goes wrong.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        *self == Self::default()
    }
}

/// One simulated process.
#[derive(Default)]
struct Process {
    /// Its library thread stands still until then.
    stalled: u64,
    /// No message leaves or reaches it until then.
    cut: u64,
    /// Something went wrong for it: a message lost or slow, a stall.
    troubled: bool,
    /// How long its threads stood still in all.
    stalls: Duration,
    /// It was killed.
    dead: bool,
    /// When the last answer reached it.
    answered: u64,
}

struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Waker,
    process: usize,
    library: bool,
    /// The task's thread stands still until then.
    stalled: u64,
    done: bool,
    /// Woken while it was preempted.
    again: bool,
}

struct Ring {
    id: usize,
    rung: AtomicBool,
    inbox: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        }
    }
}

enum Event {
    Message(usize, Rc<RefCell<Message>>, Delivery),
    News(usize, EventSink, News),
    Do(usize, Box<dyn FnOnce()>),
}

#[derive(Clone, Copy)]
struct Here {
    process: usize,
    library: bool,
}

struct Core {
    tasks: Vec<Task>,
    rings: Vec<Arc<Ring>>,
    ready: Vec<usize>,
    rng: Rng,
    events: BTreeMap<(u64, u64), Event>,
    /// Requests that are never answered.
    unanswered: Vec<Rc<RefCell<Message>>>,
    processes: Vec<Process>,
    /// Stores that cannot be reached until a moment.
    down: BTreeMap<String, u64>,
    net: Net,
    /// How many out of a thousand spawns are preempted.
    preempts: u32,
    depth: usize,
    here: Here,
    trace: Option<Vec<String>>,
    closing: bool,
    polls: u64,
}

/// See the module.
pub struct World {
    /// The clock that everything counts on.
    pub clock: Clock,
    start: BootInstant,
    inbox: Arc<Mutex<Vec<usize>>>,
    core: RefCell<Core>,
}

impl World {
    /// A world of its own, installed on this thread.
    pub fn new(seed: u64, processes: usize, traced: bool) -> (Rc<Self>, Installed) {
        let clock = Clock::held();
        let core = Core {
            tasks: Vec::new(),
            rings: Vec::new(),
            ready: Vec::new(),
            rng: Rng::new(seed),
            events: BTreeMap::new(),
            unanswered: Vec::new(),
            processes: (0..processes).map(|_| Process::default()).collect(),
            down: BTreeMap::new(),
            net: Net::default(),
            preempts: 0,
            depth: 0,
            here: Here { process: 0, library: false },
            trace: traced.then(Vec::new),
            closing: false,
            polls: 0,
        };
        let start = clock.now();
        let world = Rc::new(Self { clock, start, inbox: Arc::default(), core: RefCell::new(core) });
        let installed = simulation::install(Rc::new(Door(world.clone())));
        (world, installed)
    }

    /// Since the beginning.
    pub fn time(&self) -> Duration {
        self.clock.now().since(self.start)
    }

    /// Writes a line of the trace, if one is wanted.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let mut core = self.core.borrow_mut();
        let at = self.clock.now().since(self.start);
        if let Some(trace) = &mut core.trace {
            trace.push(format!("{:>10.3} ms  {}", at.as_secs_f64() * 1e3, line()));
        }
    }

    /// What was noted.
    pub fn trace(&self) -> Vec<String> {
        self.core.borrow().trace.clone().unwrap_or_default()
    }

    /// How many times a task was polled.
    pub fn polls(&self) -> u64 {
        self.core.borrow().polls
    }

    /// How the network treats messages from now on.
    pub fn net(&self, net: Net, preempts: u32) {
        let mut core = self.core.borrow_mut();
        (core.net, core.preempts) = (net, preempts);
    }

    /// Everything works from now on: no cuts, no stalls.
    pub fn heal(&self) {
        let mut core = self.core.borrow_mut();
        (core.net, core.preempts) = (Net::default(), 0);
        core.down.clear();
        for p in &mut core.processes {
            (p.cut, p.stalled) = (0, 0);
        }
        for t in &mut core.tasks {
            t.stalled = 0;
        }
    }

    /// Whether something went wrong for a process so far.
    pub fn troubled(&self, process: usize) -> bool {
        self.core.borrow().processes[process].troubled
    }

    /// How long the threads of a process stood still so far.
    pub fn stalls(&self, process: usize) -> Duration {
        self.core.borrow().processes[process].stalls
    }

    /// When the last answer reached a process.
    pub fn answered(&self, process: usize) -> BootInstant {
        BootInstant::from_nanos(self.core.borrow().processes[process].answered)
    }

    /// Whether messages are still under way.
    pub fn quiet(&self) -> bool {
        self.core.borrow().events.is_empty()
    }

    fn nanos(&self, d: Duration) -> u64 {
        self.clock.now().plus(d).as_nanos()
    }

    /// The library thread of a process stands still for a while.
    pub fn stall_library(&self, process: usize, d: Duration) {
        self.note(|| format!("process {process}: the library's thread stalls for {d:?}"));
        let until = self.nanos(d);
        let p = &mut self.core.borrow_mut().processes[process];
        (p.stalled, p.troubled) = (until.max(p.stalled), true);
        p.stalls += d;
    }

    /// A task's thread stands still for a while.
    pub fn stall_task(&self, task: usize, d: Duration) {
        self.note(|| format!("task {task} stalls for {d:?}"));
        let until = self.nanos(d);
        let mut core = self.core.borrow_mut();
        core.tasks[task].stalled = until;
        let process = core.tasks[task].process;
        core.processes[process].stalls += d;
    }

    /// A process is cut off the network for a while.
    pub fn cut(&self, process: usize, d: Duration) {
        self.note(|| format!("process {process} is cut off for {d:?}"));
        let until = self.nanos(d);
        let p = &mut self.core.borrow_mut().processes[process];
        (p.cut, p.troubled) = (until.max(p.cut), true);
    }

    /// A store cannot be reached for a while.
    pub fn down(&self, site: &str, d: Duration) {
        self.note(|| format!("{site} cannot be reached for {d:?}"));
        let until = self.nanos(d);
        let mut core = self.core.borrow_mut();
        core.down.insert(site.to_owned(), until);
        core.processes.iter_mut().for_each(|p| p.troubled = true);
    }

    /// A process is killed: nothing of it runs or is sent any more. What it has sent goes on its way.
    /// False while a thread is preempted, which may be one of its own.
    pub fn kill(&self, process: usize) -> bool {
        let mut core = self.core.borrow_mut();
        if core.depth > 0 {
            return false;
        }
        core.processes[process].dead = true;
        let mine = core.tasks.iter_mut().filter(|t| t.process == process);
        let futures: Vec<_> = mine
            .filter_map(|t| {
                t.done = true;
                t.future.take()
            })
            .collect();
        drop(core);
        self.note(|| format!("process {process} is killed"));
        self.at(process, || drop(futures));
        true
    }

    /// Whether a process was killed.
    pub fn dead(&self, process: usize) -> bool {
        self.core.borrow().processes[process].dead
    }

    /// All processes have trouble from now on.
    pub fn trouble_all(&self) {
        self.core.borrow_mut().processes.iter_mut().for_each(|p| p.troubled = true);
    }

    /// Runs `f` as an application task of a process, to its next await.
    pub fn at<T>(&self, process: usize, f: impl FnOnce() -> T) -> T {
        let before =
            std::mem::replace(&mut self.core.borrow_mut().here, Here { process, library: false });
        let value = f();
        self.core.borrow_mut().here = before;
        value
    }

    /// Starts an application task.
    pub fn start(&self, process: usize, work: impl Future<Output = ()> + 'static) -> usize {
        self.add(process, false, Box::pin(work))
    }

    fn add(&self, process: usize, library: bool, f: Pin<Box<dyn Future<Output = ()>>>) -> usize {
        let mut core = self.core.borrow_mut();
        let id = core.tasks.len();
        let ring = Arc::new(Ring { id, rung: AtomicBool::new(true), inbox: self.inbox.clone() });
        let waker = Waker::from(ring.clone());
        let (future, stalled, done, again) = (Some(f), 0, false, false);
        core.tasks.push(Task { future, waker, process, library, stalled, done, again });
        core.rings.push(ring);
        core.ready.push(id);
        id
    }

    /// Does something later, at a process.
    pub fn later(&self, process: usize, d: Duration, work: impl FnOnce() + 'static) {
        let at = self.nanos(d);
        let mut core = self.core.borrow_mut();
        let tie = core.rng.bits();
        core.events.insert((at, tie), Event::Do(process, Box::new(work)));
    }

    /// How long a message takes on its way.
    pub fn latency(&self) -> Duration {
        self.core.borrow_mut().rng.millis(0, 3)
    }

    /// One step: a task is polled, or time jumps. False when nothing will ever happen again, or
    /// only after `until`: then time stands at `until`.
    pub fn step(&self, until: BootInstant) -> bool {
        if let Some(task) = self.pick() {
            self.poll(task);
            return true;
        }
        let now = self.clock.now().as_nanos();
        let core = self.core.borrow();
        let message = core.events.keys().next().map(|(at, _)| *at);
        let thaws = core.ready.iter().map(|t| core.thaw(*t)).min();
        drop(core);
        let timer = self.clock.next_sleeper().map(BootInstant::as_nanos);
        let next = [message, thaws, timer].into_iter().flatten().min();
        let next = match next {
            Some(next) if next <= until.as_nanos() => next,
            _ => {
                if until != BootInstant::FAR {
                    self.clock.advance(until.since(self.clock.now()));
                }
                return false;
            }
        };
        if next > now {
            self.clock.advance(Duration::from_nanos(next - now));
        }
        self.fire();
        true
    }

    /// Everything whose time has come.
    fn fire(&self) {
        let now = self.clock.now().as_nanos();
        loop {
            let mut core = self.core.borrow_mut();
            let Some(((at, _), _)) = core.events.first_key_value() else { return };
            if *at > now {
                return;
            }
            let Some((_, event)) = core.events.pop_first() else { return };
            drop(core);
            match event {
                Event::Message(process, message, delivery) => {
                    if matches!(delivery, Delivery::Answers) {
                        self.core.borrow_mut().processes[process].answered = now;
                    }
                    (message.borrow_mut())(delivery);
                }
                Event::News(process, ..) if self.dead(process) => {}
                Event::News(process, sink, news) => self.at(process, || sink(news)),
                Event::Do(process, work) => self.at(process, work),
            }
        }
    }

    fn pick(&self) -> Option<usize> {
        let now = self.clock.now().as_nanos();
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        core.ready.append(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        if core.ready.is_empty() {
            return None;
        }
        let from = core.rng.below(core.ready.len());
        let n = core.ready.len();
        let chosen = (0..n).map(|i| (from + i) % n).find(|i| {
            let id = core.ready[*i];
            core.tasks[id].done || core.thaw(id) <= now
        })?;
        Some(core.ready.swap_remove(chosen))
    }

    fn poll(&self, id: usize) {
        let mut core = self.core.borrow_mut();
        let core_ref = &mut *core;
        core_ref.rings[id].rung.store(false, Ordering::Release);
        let task = &mut core_ref.tasks[id];
        let Some(mut future) = task.future.take() else {
            // Finished, or preempted in the middle of a poll.
            task.again = true;
            return;
        };
        let waker = task.waker.clone();
        let here = Here { process: task.process, library: task.library };
        core_ref.polls += 1;
        let before = std::mem::replace(&mut core_ref.here, here);
        drop(core);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut core = self.core.borrow_mut();
        core.here = before;
        match done {
            Poll::Pending => {
                core.tasks[id].future = Some(future);
                if std::mem::take(&mut core.tasks[id].again) {
                    core.ready.push(id);
                }
            }
            Poll::Ready(()) => {
                core.tasks[id].done = true;
                drop(core);
                drop(future);
            }
        }
    }

    /// The thread that runs just now is preempted for a while.
    fn preempt(&self) {
        let mut core = self.core.borrow_mut();
        let (depth, preempts, here) = (core.depth, core.preempts, core.here);
        if here.library || depth > 0 || !core.rng.chance(preempts) {
            return;
        }
        let steps = 1 + core.rng.below(60);
        core.depth += 1;
        drop(core);
        self.note(|| format!("process {}: preempted for {steps} steps", here.process));
        let from = self.clock.now();
        for _ in 0..steps {
            if !self.step(from.plus(Duration::from_millis(500))) {
                break;
            }
        }
        let stood = self.clock.now().since(from);
        let mut core = self.core.borrow_mut();
        core.depth -= 1;
        core.here = here;
        core.processes[here.process].stalls += stood;
        drop(core);
        self.note(|| format!("process {}: runs on", here.process));
    }

    /// Throws everything away: futures, messages, what they hold.
    pub fn close(&self) {
        self.core.borrow_mut().closing = true;
        for round in 0.. {
            let mut core = self.core.borrow_mut();
            let tasks = std::mem::take(&mut core.tasks);
            let events = std::mem::take(&mut core.events);
            let unanswered = std::mem::take(&mut core.unanswered);
            core.ready.clear();
            core.rings.clear();
            drop(core);
            if tasks.is_empty() && events.is_empty() && unanswered.is_empty() {
                return;
            }
            // A task that ends before its work is done may start another to go on with it.
            if round > 8 {
                return std::mem::forget(tasks);
            }
        }
    }
}

impl Core {
    /// When a task may run.
    fn thaw(&self, id: usize) -> u64 {
        let task = &self.tasks[id];
        let library = if task.library { self.processes[task.process].stalled } else { 0 };
        task.stalled.max(library)
    }
}

/// What the library asks.
struct Door(Rc<World>);

impl simulation::World for Door {
    fn spawn(&self, work: Fut<'static, ()>) {
        let core = self.0.core.borrow();
        let (closing, here) = (core.closing, core.here);
        let dead = core.processes[here.process].dead;
        drop(core);
        if dead {
            return;
        }
        self.0.add(here.process, true, work);
        if !closing {
            self.0.preempt();
        }
    }

    fn on_library_thread(&self) -> bool {
        self.0.core.borrow().here.library
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut core = self.0.core.borrow_mut();
        for chunk in bytes.chunks_mut(8) {
            let bits = core.rng.bits().to_be_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }

    fn send(&self, site: &str, what: &'static str, mut message: Message) {
        let world = &self.0;
        let now = world.clock.now().as_nanos();
        let mut core = world.core.borrow_mut();
        if core.processes[core.here.process].dead {
            drop(core);
            return drop(message);
        }
        let core = &mut *core;
        let (net, process) = (core.net, core.here.process);
        let rng = &mut core.rng;
        let ms = |rng: &mut Rng, from, to| {
            now + u64::try_from(rng.millis(from, to).as_nanos()).unwrap_or(0)
        };
        let cut = core.processes[process].cut > now
            || core.down.get(site).is_some_and(|until| *until > now);
        // A line and a session tell each caller whether it was there until now, so nobody repeats
        // that question unseen; nor a release where few of them are remembered.
        let repeats = !matches!(what, "unlock" | "release") && !what.ends_with("::Released");
        let roll = u32::try_from(rng.below(1000)).unwrap_or(0);
        let fate = [
            ("lost", if cut { 500 } else { net.lost }),
            ("mute", if cut { 0 } else { net.mute }),
            ("breaks", if cut { 250 } else { net.breaks }),
            ("refused", if cut { 250 } else { net.refused }),
            ("slow", net.slow),
            ("twice", if repeats { net.twice } else { 0 }),
        ];
        let mut sum = 0;
        let fate = fate.into_iter().find(|(_, n)| {
            sum += n;
            roll < sum
        });
        let fate = fate.map_or("", |f| f.0);
        let mut plan: Vec<(u64, Delivery)> = Vec::new();
        let arrives = ms(rng, 0, 3);
        // Later than what it answers.
        let answers = |rng: &mut Rng, at: u64| at + 1 + ms(rng, 0, 3) - now;
        match fate {
            "" => {
                plan.push((arrives, Delivery::Arrives));
                plan.push((answers(rng, arrives), Delivery::Answers));
            }
            // It may arrive long after everybody has given it up.
            "lost" if rng.chance(500) => plan.push((ms(rng, 50, 30_000), Delivery::Arrives)),
            "lost" => {}
            "mute" => plan.push((arrives, Delivery::Arrives)),
            "breaks" => {
                plan.push((ms(rng, 0, 100), Delivery::Breaks));
                match rng.below(3) {
                    0 => {}
                    1 => plan.push((arrives, Delivery::Arrives)),
                    _ => plan.push((ms(rng, 10, 20_000), Delivery::Arrives)),
                }
            }
            "refused" => plan.push((now, Delivery::Refused)),
            "slow" => {
                let most = rng.pick(&[100, 1000, 12_000]);
                let arrives = ms(rng, 3, most);
                plan.push((arrives, Delivery::Arrives));
                plan.push((arrives + ms(rng, 3, most) - now, Delivery::Answers));
            }
            _ => {
                let again = answers(rng, arrives);
                plan.push((arrives, Delivery::Arrives));
                plan.push((again, Delivery::Arrives));
                plan.push((answers(rng, again), Delivery::Answers));
            }
        }
        if !matches!(fate, "" | "twice") {
            core.processes[process].troubled = true;
        }
        if let Some(trace) = &mut core.trace {
            let at = |ns: u64| Duration::from_nanos(ns - world.start.as_nanos());
            let what = what.rsplit("::").next().unwrap_or(what);
            let plan: Vec<String> = plan
                .iter()
                .map(|(t, d)| format!("{d:?} {:.3}", at(*t).as_secs_f64() * 1e3))
                .collect();
            trace.push(format!(
                "{:>10.3} ms  process {process}{} → {site} {what}: {} {fate}",
                at(now).as_secs_f64() * 1e3,
                if core.here.library { " (library)" } else { "" },
                plan.join(", "),
            ));
        }
        if let [(at, Delivery::Refused)] = plan[..] {
            debug_assert_eq!(at, now);
            return message(Delivery::Refused);
        }
        let message = Rc::new(RefCell::new(message));
        if !plan.iter().any(|(_, d)| matches!(d, Delivery::Answers | Delivery::Breaks)) {
            core.unanswered.push(message.clone());
        }
        for (at, delivery) in plan {
            let tie = core.rng.bits();
            core.events.insert((at, tie), Event::Message(process, message.clone(), delivery));
        }
    }

    fn sink(&self, sink: EventSink) -> EventSink {
        let process = self.0.core.borrow().here.process;
        Arc::new(move |news| wake(process, &sink, news))
    }
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// Names the world that wake-ups travel in: ears must be free to go to other threads, and a world
/// is not.
pub fn enter(world: Option<Rc<World>>) {
    WORLD.with(|w| *w.borrow_mut() = world);
}

fn wake(process: usize, sink: &EventSink, news: News) {
    let Some(world) = WORLD.with(|w| w.borrow().clone()) else { return };
    let now = world.clock.now().as_nanos();
    let mut core = world.core.borrow_mut();
    let (net, tie) = (core.net, core.rng.bits());
    let cut = core.processes[process].cut > now;
    let lost = cut || core.rng.chance(net.deaf);
    let slow = core.rng.chance(net.deaf);
    let delay = if slow { core.rng.millis(3, 2000) } else { core.rng.millis(0, 3) };
    if lost || slow {
        core.processes[process].troubled = true;
    }
    if core.closing || lost || core.processes[process].dead {
        return;
    }
    let at = now + u64::try_from(delay.as_nanos()).unwrap_or(0);
    core.events.insert((at, tie), Event::News(process, sink.clone(), news));
}

/// Where a store that is part of the simulation drops its wake-ups.
pub(crate) fn sink(sink: EventSink) -> EventSink {
    let Some(world) = WORLD.with(|w| w.borrow().clone()) else { return sink };
    let process = world.core.borrow().here.process;
    Arc::new(move |news| wake(process, &sink, news))
}

/// Something that reaches the other side for sure, a moment later: the end of a connection, say.
pub(crate) fn reliably(work: impl FnOnce() + 'static) {
    let Some(world) = WORLD.with(|w| w.borrow().clone()) else { return };
    if world.core.borrow().closing {
        return;
    }
    let process = world.core.borrow().here.process;
    let delay = world.latency();
    world.later(process, delay, work);
}
