//! The state machine, model-checked: two processes of two tasks each at one lock, with a store whose
//! answers and news may be late, tasks that are cancelled or not polled, leases that are lost, and one
//! that is parked.

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::machine::{Arrival, Machine, Next, UNTAKEN};
use crate::BootInstant;

const TASKS: usize = 2;
/// Tokens of a block, and hand-overs past a remote waiter: few, so that both run out.
const BLOCK: u32 = 3;
const BYPASS: u32 = 1;

/// What is built in on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// A lost lease goes on feeding.
    FeedsAfterLoss,
    /// Whoever waits elsewhere is bypassed without a bound.
    NeverLeaves,
    /// The token of a hand-over is that of the grant.
    SameToken,
    /// Those who wait when a lease is lost do not ask anew.
    ForgetsToAsk,
    /// A parked lease stays although somebody elsewhere waits.
    StaysParked,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Task {
    Idle,
    Waits,
    /// Its offer passed it by; it is not in the queue.
    PassedOver,
    Holds(u32),
}

/// To the store: a request and its number, in the order in which they were sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Call {
    Ask(u64),
    Release(u64),
    Cancel(u64),
}

/// From the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum News {
    Granted { turn: u64, first: u32, awaited: bool },
    Contended(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    machine: Machine<usize>,
    tasks: [Task; TASKS],
    calls: Vec<Call>,
    news: Vec<News>,
    /// The token of the lease that is fed from.
    token: u32,
    turn: u64,
    /// Hand-overs since it has heard of a waiter elsewhere.
    bypasses: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    processes: [Process; 2],
    /// The request that holds the lock at the store, and those in its queue.
    holder: Option<(usize, u64)>,
    queue: Vec<(usize, u64)>,
    next: u32,
    /// The highest token that a task has had; two tasks held at once; tokens went back.
    last: u32,
    unordered: bool,
    arrivals: u8,
    losses: u8,
    parkings: u8,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Arrive(usize, usize),
    Poll(usize, usize),
    Drop(usize, usize),
    Release(usize, usize),
    /// A release that leaves the lease parked.
    Park(usize, usize),
    /// The end of that.
    Unpark(usize),
    Overdue(usize),
    Call(usize),
    News(usize),
    Lose(usize),
}

struct Cohorts(Bug);

fn now() -> BootInstant {
    BootInstant::from_nanos(1_000_000_000)
}

impl Process {
    fn new(bug: Bug) -> Self {
        let bypass = if bug == Bug::NeverLeaves { u32::MAX } else { BYPASS };
        Self {
            machine: Machine::with_bypass(bypass),
            tasks: [Task::Idle; TASKS],
            calls: Vec::new(),
            news: Vec::new(),
            token: 0,
            turn: 0,
            bypasses: 0,
        }
    }

    /// What the driver does with a decision.
    fn follow(&mut self, next: Next<usize>) {
        match next {
            Next::Nothing | Next::Offer(_) => {}
            Next::Leave(ask) => {
                self.calls.push(Call::Release(self.turn));
                self.ask(ask);
            }
            Next::Cancel => {
                // A request that has not been sent is never sent.
                let asked = self.turn;
                self.calls.push(Call::Cancel(asked));
            }
        }
    }

    fn ask(&mut self, ask: Option<u64>) {
        if let Some(turn) = ask {
            self.turn = turn;
            self.calls.push(Call::Ask(turn));
        }
    }

    fn release(&mut self, bug: Bug) {
        let before = self.turn;
        match self.machine.release(self.turn, now(), true) {
            // Nobody waits: the holder gives it back itself.
            Next::Nothing => self.calls.push(Call::Release(before)),
            Next::Offer(_) => {
                self.token += u32::from(bug != Bug::SameToken);
                self.bypasses += u32::from(self.machine.is_awaited());
            }
            next => self.follow(next),
        }
    }

    /// Something is under way for those who wait.
    fn is_served(&self, me: usize, world: &World) -> bool {
        let turn = self.turn;
        let at_store = world.holder == Some((me, turn)) || world.queue.contains(&(me, turn));
        let asked = self.calls.contains(&Call::Ask(turn)) || at_store || !self.news.is_empty();
        self.machine.waiters() == 0
            || self.machine.holds(turn)
            || self.machine.offers(turn)
            || (self.machine.asks(turn) && asked)
    }
}

impl World {
    fn end(&mut self, me: usize, turn: u64) {
        self.queue.retain(|one| *one != (me, turn));
        if self.holder == Some((me, turn)) {
            self.holder = None;
            if !self.queue.is_empty() {
                let (next, turn) = self.queue.remove(0);
                self.grant(next, turn);
            }
        }
    }

    fn grant(&mut self, me: usize, turn: u64) {
        self.holder = Some((me, turn));
        let granted = News::Granted { turn, first: self.next, awaited: !self.queue.is_empty() };
        self.next += BLOCK;
        self.processes[me].news.push(granted);
    }

    fn call(&mut self, me: usize) {
        match self.processes[me].calls.remove(0) {
            Call::Ask(turn) if self.holder.is_none() => self.grant(me, turn),
            Call::Ask(turn) => {
                if let Some((holder, held)) = self.holder.filter(|_| self.queue.is_empty()) {
                    self.processes[holder].news.push(News::Contended(held));
                }
                self.queue.push((me, turn));
            }
            Call::Release(turn) | Call::Cancel(turn) => self.end(me, turn),
        }
    }

    fn hear(&mut self, me: usize, bug: Bug) {
        let p = &mut self.processes[me];
        match p.news.remove(0) {
            News::Granted { turn, first, awaited } => {
                if p.machine.granted(turn, BLOCK, awaited, now()).is_some() {
                    (p.token, p.turn, p.bypasses) = (first, turn, 0);
                }
            }
            News::Contended(turn) if bug == Bug::StaysParked && p.machine.parks(turn) => {}
            News::Contended(turn) => {
                let next = p.machine.contended(turn, now());
                p.follow(next);
            }
        }
    }

    /// The lease ends by itself: the process knows first, by its deadline.
    fn lose(&mut self, me: usize, bug: Bug) {
        let p = &mut self.processes[me];
        let turn = p.turn;
        for task in &mut p.tasks {
            if matches!(task, Task::Holds(_)) && bug != Bug::FeedsAfterLoss {
                *task = Task::Idle;
            }
        }
        match bug {
            Bug::FeedsAfterLoss => {}
            _ => {
                let ask = p.machine.gone(turn);
                if bug != Bug::ForgetsToAsk {
                    p.ask(ask);
                }
            }
        }
        // Whoever held it is told, and holds it no more.
        for task in &mut p.tasks {
            if matches!(task, Task::Holds(_)) {
                *task = Task::Idle;
                p.machine.release(turn, now(), true);
            }
        }
        self.losses += 1;
        self.end(me, turn);
    }

    fn act(&mut self, action: Action, bug: Bug) {
        match action {
            Action::Arrive(p, t) => {
                self.arrivals += 1;
                self.arrive(p, t, false);
            }
            Action::Poll(p, t) => match self.processes[p].tasks[t] {
                Task::PassedOver => self.arrive(p, t, true),
                _ if self.processes[p].machine.take(&t) => {
                    let token = self.processes[p].token;
                    self.unordered |= token <= self.last;
                    self.last = token;
                    self.processes[p].tasks[t] = Task::Holds(token);
                }
                _ => {}
            },
            Action::Drop(p, t) => {
                let p = &mut self.processes[p];
                let next = p.machine.leave(&t, now(), true);
                p.tasks[t] = Task::Idle;
                p.follow(next);
            }
            Action::Release(p, t) => {
                self.processes[p].tasks[t] = Task::Idle;
                self.processes[p].release(bug);
            }
            Action::Park(p, t) => {
                self.parkings += 1;
                let p = &mut self.processes[p];
                p.tasks[t] = Task::Idle;
                p.machine.park(p.turn, now());
                p.token += 1;
            }
            Action::Unpark(p) => {
                let p = &mut self.processes[p];
                let next = p.machine.unpark(now());
                p.follow(next);
            }
            Action::Overdue(p) => {
                let p = &mut self.processes[p];
                if let Some((late, next)) = p.machine.overdue(now().plus(UNTAKEN), true) {
                    p.tasks[late] = Task::PassedOver;
                    p.follow(next);
                }
            }
            Action::Call(p) => self.call(p),
            Action::News(p) => self.hear(p, bug),
            Action::Lose(p) => self.lose(p, bug),
        }
    }

    fn arrive(&mut self, p: usize, t: usize, back: bool) {
        let p = &mut self.processes[p];
        p.tasks[t] = Task::Waits;
        if let Arrival::Asks(turn) = p.machine.arrive(t, back, now(), true) {
            p.ask(Some(turn));
        }
    }

    fn holders(&self) -> usize {
        let tasks = self.processes.iter().flat_map(|p| p.tasks);
        tasks.filter(|t| matches!(t, Task::Holds(_))).count()
    }
}

impl Model for Cohorts {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            processes: [Process::new(self.0), Process::new(self.0)],
            holder: None,
            queue: Vec::new(),
            next: 1,
            last: 0,
            unordered: false,
            arrivals: 0,
            losses: 0,
            parkings: 0,
        }]
    }

    fn actions(&self, w: &World, actions: &mut Vec<Action>) {
        for (p, process) in w.processes.iter().enumerate() {
            for (t, task) in process.tasks.iter().enumerate() {
                match task {
                    Task::Idle if w.arrivals < 6 => actions.push(Action::Arrive(p, t)),
                    Task::Idle => {}
                    Task::Waits | Task::PassedOver => {
                        if *task == Task::PassedOver || process.machine.is_offered(&t) {
                            actions.push(Action::Poll(p, t));
                        }
                        actions.push(Action::Drop(p, t));
                    }
                    Task::Holds(_) => {
                        actions.push(Action::Release(p, t));
                        if w.parkings < 1 && process.machine.may_park(process.turn, true) {
                            actions.push(Action::Park(p, t));
                        }
                    }
                }
            }
            if process.machine.offers(process.turn) {
                actions.push(Action::Overdue(p));
            }
            if process.machine.is_parked() {
                actions.push(Action::Unpark(p));
            }
            if !process.calls.is_empty() {
                actions.push(Action::Call(p));
            }
            if !process.news.is_empty() {
                actions.push(Action::News(p));
            }
            let (machine, turn) = (&process.machine, process.turn);
            let has = machine.holds(turn) || machine.offers(turn) || machine.parks(turn);
            if has && w.losses < 1 {
                actions.push(Action::Lose(p));
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut next = last.clone();
        next.act(action, self.0);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_, w: &World| w.holders() <= 1),
            Property::always("tokens rise", |_, w: &World| !w.unordered),
            Property::always(
                "a remote waiter is bypassed a bounded number of times",
                |_, w: &World| w.processes.iter().all(|p| p.bypasses <= BYPASS),
            ),
            Property::always("whoever waits is served", |_, w: &World| {
                w.processes.iter().enumerate().all(|(me, p)| p.is_served(me, w))
            }),
            Property::always("a parked lease keeps nobody waiting", |_, w: &World| {
                let heard = |p: &Process| p.news.contains(&News::Contended(p.turn));
                w.queue.is_empty() || w.processes.iter().all(|p| !p.machine.is_parked() || heard(p))
            }),
            Property::sometimes("a parked lease is taken again", |_, w: &World| {
                w.parkings > 0
                    && w.processes.iter().any(|p| p.machine.holds(p.turn) && p.token % BLOCK == 2)
            }),
            Property::sometimes("a hand-over passes a remote waiter by", |_, w: &World| {
                w.processes.iter().any(|p| p.bypasses > 0)
            }),
            Property::sometimes("everybody has had it", |_, w: &World| {
                w.arrivals == 6 && w.last >= 2 * BLOCK && w.holder.is_none()
            }),
        ]
    }
}

fn violations(bug: Bug) -> Vec<&'static str> {
    let checker = Cohorts(bug)
        .checker()
        .threads(2)
        .timeout(Duration::from_secs(300))
        .target_state_count(6_000_000)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let mut broken: Vec<_> = Cohorts(bug)
        .properties()
        .into_iter()
        .filter(|p| match p.expectation {
            stateright::Expectation::Sometimes => !found.contains_key(p.name),
            _ => found.contains_key(p.name),
        })
        .map(|p| p.name)
        .collect();
    broken.sort_unstable();
    broken
}

#[test]
fn two_processes_of_two_tasks_keep_the_laws() {
    assert_eq!(violations(Bug::None), [""; 0]);
}

#[test]
fn the_laws_find_every_bug_that_is_built_in() {
    for (bug, law) in [
        (Bug::FeedsAfterLoss, "one holder"),
        (Bug::SameToken, "tokens rise"),
        (Bug::NeverLeaves, "a remote waiter is bypassed a bounded number of times"),
        (Bug::ForgetsToAsk, "whoever waits is served"),
        (Bug::StaysParked, "a parked lease keeps nobody waiting"),
    ] {
        let broken = violations(bug);
        assert!(broken.contains(&law), "{bug:?}: {broken:?}");
    }
}
