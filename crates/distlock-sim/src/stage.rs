//! The stage of one program: its store, its processes' clients, its laws.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Backend, Key};
use distlock_core::lease::Wake;
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::memory::Memory;
use distlock_core::name::Namespace;
use distlock_core::quorum::QuorumDriver;
use distlock_core::session_driver::SessionDriver;
use distlock_core::state::Rules;
use distlock_core::{FullName, Locks, Mode, Name, Owner, Ticket};
use distlock_testkit::doubles::{Fault, MemoryNode, MemoryQueue};

use crate::laws::Laws;
use crate::lease::Wired;
use crate::program::{Family, Program, Trouble};
use crate::session::Sessions;
use crate::world::World;

/// The store's side.
pub(crate) enum Store {
    Lease { memory: Memory, wired: Vec<Wired> },
    Line(MemoryQueue),
    Session { first: Sessions, clients: Vec<Sessions> },
    Quorum(Vec<MemoryNode>),
}

/// See the module.
pub(crate) struct Stage {
    pub(crate) world: Rc<World>,
    pub(crate) program: Program,
    pub(crate) store: RefCell<Store>,
    pub(crate) clients: RefCell<Vec<Locks>>,
    pub(crate) names: Vec<FullName>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) laws: RefCell<Laws>,
    /// Detached holds that nobody has taken up.
    pub(crate) tickets: RefCell<Vec<(usize, String, Mode, Ticket)>>,
    /// The keys of what is held through guards, for hints.
    pub(crate) held: RefCell<Vec<(usize, Key)>>,
    pub(crate) closed: RefCell<Vec<bool>>,
    /// By task: what it does just now.
    pub(crate) doing: RefCell<Vec<String>>,
    /// By task: whether it goes on.
    pub(crate) running: RefCell<Vec<bool>>,
}

const NODES: usize = 3;

impl Stage {
    pub(crate) fn new(world: Rc<World>, program: &Program) -> Rc<Self> {
        let clock = world.clock.clone();
        let store = match program.family {
            Family::Lease => {
                // A store whose calls cannot be delivered twice remembers few released requests.
                let rules = Rules { released_cap: 2, ..Rules::default() };
                let memory = Memory::with_rules("memory:".to_owned(), clock.clone(), rules);
                Store::Lease { memory, wired: Vec::new() }
            }
            Family::Queue => {
                let line = MemoryQueue::new("line:", clock.clone());
                line.fault(Fault::Simulated);
                Store::Line(line)
            }
            Family::Session => {
                let first = Sessions::new(clock.clone());
                Store::Session { first, clients: Vec::new() }
            }
            Family::Quorum => {
                let node = |i| {
                    let node = MemoryNode::new(format!("node{i}:"), clock.clone());
                    node.fault(Fault::Simulated);
                    node
                };
                Store::Quorum((0..NODES).map(node).collect())
            }
        };
        let names = (0..program.names).map(|i| FullName {
            space: Namespace::default(),
            name: Name::new(["a", "b"][i]).expect("a name"),
        });
        let owners = (0..3).map(|i| Owner::named(format!("owner{i}")).expect("an owner"));
        let laws = Laws::new(world.clone(), program);
        let stage = Rc::new(Self {
            world,
            store: RefCell::new(store),
            clients: RefCell::default(),
            names: names.collect(),
            owners: owners.collect(),
            laws: RefCell::new(laws),
            tickets: RefCell::default(),
            held: RefCell::default(),
            closed: RefCell::new(vec![false; program.processes]),
            doing: RefCell::new(vec![String::new(); program.actors.len()]),
            running: RefCell::new(vec![true; program.actors.len()]),
            program: program.clone(),
        });
        for process in 0..program.processes {
            let locks = stage.client(process);
            stage.clients.borrow_mut().push(locks);
        }
        stage
    }

    /// A client of the store, in a process.
    pub(crate) fn client(&self, process: usize) -> Locks {
        let ttl = self.program.ttl;
        self.world.at(process, || {
            let backend: Arc<dyn Backend> = match &mut *self.store.borrow_mut() {
                Store::Lease { memory, wired } => {
                    let one = Wired::new(memory.client());
                    wired.push(one.clone());
                    Arc::new(LeaseDriver::new(one))
                }
                Store::Line(line) => {
                    Arc::new(distlock_core::queue::QueueDriver::new(line.client()))
                }
                Store::Session { first, clients } => {
                    let one = first.client();
                    clients.push(one.clone());
                    Arc::new(SessionDriver::new(one))
                }
                Store::Quorum(nodes) => {
                    let nodes = nodes.iter().map(MemoryNode::client).collect();
                    Arc::new(QuorumDriver::new("quorum:", nodes).expect("an odd number of nodes"))
                }
            };
            Locks::options().ttl(ttl).label("sim").open(backend).expect("sound options")
        })
    }

    pub(crate) fn locks(&self, process: usize) -> Locks {
        self.clients.borrow()[process].clone()
    }

    /// Whether some task goes on.
    pub(crate) fn busy(&self) -> bool {
        self.running.borrow().contains(&true)
    }

    /// Whether it is about a process that was killed.
    fn dead(&self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::StallTask(actor, _) => {
                let actor = self.program.actors.get(actor);
                actor.is_some_and(|a| self.world.dead(a.process))
            }
            Trouble::StallLibrary(p, _)
            | Trouble::Cut(p, _)
            | Trouble::Doubt(p)
            | Trouble::Everybody(p) => self.world.dead(p),
            Trouble::Down(..) | Trouble::Restart(_) | Trouble::Kill(_) => false,
        }
    }

    /// A process is killed, as soon as nobody stands in the middle of a step.
    fn kill(self: &Rc<Self>, process: usize) {
        if !self.world.kill(process) {
            let stage = self.clone();
            return self.world.later(0, Duration::from_millis(1), move || stage.kill(process));
        }
        let actors = self.program.actors.iter().enumerate();
        let mine = || actors.clone().filter(|(_, a)| a.process == process).map(|(i, _)| i);
        mine().for_each(|i| {
            self.running.borrow_mut()[i] = false;
            self.doing.borrow_mut()[i].clear();
        });
        self.laws.borrow_mut().kill(process, mine());
    }

    /// Something goes wrong.
    pub(crate) fn trouble(self: &Rc<Self>, trouble: Trouble, tasks: &[usize]) {
        let world = &self.world;
        match trouble {
            Trouble::Kill(process) => self.kill(process),
            _ if self.dead(trouble) => {}
            Trouble::StallTask(actor, d) => {
                if let Some(task) = tasks.get(actor) {
                    world.stall_task(*task, d);
                }
            }
            Trouble::StallLibrary(process, d) => world.stall_library(process, d),
            Trouble::Cut(process, d) => world.cut(process, d),
            Trouble::Down(n, d) => match &*self.store.borrow() {
                Store::Lease { .. } => world.down("memory:", d),
                Store::Line(_) => world.down("line:", d),
                Store::Session { .. } => world.down("sessions:", d),
                Store::Quorum(_) => world.down(&format!("node{}:", n % NODES), d),
            },
            Trouble::Restart(n) => {
                if let Store::Quorum(nodes) = &*self.store.borrow() {
                    world.note(|| format!("node{} restarts without its data", n % NODES));
                    let quarantine = self.program.ttl + Duration::from_secs(1);
                    nodes[n % NODES].lose_data(quarantine);
                    world.trouble_all();
                    // Nobody is granted before the quarantine ends.
                    self.laws.borrow_mut().withheld.fill(true);
                }
            }
            Trouble::Doubt(process) => {
                let keys: Vec<Key> = {
                    let held = self.held.borrow();
                    held.iter().filter(|(p, _)| *p == process).map(|(_, k)| k.clone()).collect()
                };
                world.note(|| format!("process {process} is told that its holds may be gone"));
                let store = self.store.borrow();
                for key in keys {
                    let doubt = Wake::Event(distlock_core::backend::Event::InDoubt(key));
                    world.at(process, || match &*store {
                        Store::Lease { wired, .. } => wired[process].tell(doubt),
                        Store::Session { clients, .. } => clients[process].tell(doubt),
                        _ => {}
                    });
                }
            }
            Trouble::Everybody(process) => {
                world.note(|| format!("process {process} may have missed wake-ups"));
                let store = self.store.borrow();
                world.at(process, || match &*store {
                    Store::Lease { wired, .. } => wired[process].tell(Wake::Everybody),
                    Store::Session { clients, .. } => {
                        // Again and again for a while: a look takes a moment, and meets others.
                        for n in 0..24 {
                            let client = clients[process].clone();
                            let later = Duration::from_micros(1500) * n;
                            world.later(process, later, move || client.tell(Wake::Everybody));
                        }
                    }
                    Store::Line(line) => line.lose_watches(),
                    Store::Quorum(_) => {}
                });
            }
        }
    }
}
