//! The door for a deterministic simulation: what a test installs on its thread to be asked for
//! tasks, randomness and messages instead of the machine.
//!
//! Nothing is installed outside the project's own tests. The doors look here once for each spawned
//! task, each request id and each hash map, never on the way of a renewal or a check.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::hash::BuildHasher;
use std::rc::Rc;

use tokio::sync::oneshot;

use crate::{Error, EventSink, Fut, Kind};

/// What stands in for the machine on the simulation's thread.
pub trait World {
    /// Runs a future as a task of the library's thread.
    fn spawn(&self, work: Fut<'static, ()>);

    /// Whether the task that runs just now is one of the library's thread.
    fn on_library_thread(&self) -> bool;

    /// Fills a buffer from the seeded generator.
    fn fill(&self, bytes: &mut [u8]);

    /// Takes a request to a store; the world decides when and how often it arrives, and what
    /// becomes of its answer.
    fn send(&self, site: &str, what: &'static str, message: Message);

    /// Where a store is to drop its wake-ups for the client behind this sink: the world
    /// takes them there.
    fn sink(&self, sink: EventSink) -> EventSink;
}

/// A request under way, told what happens to it.
pub type Message = Box<dyn FnMut(Delivery)>;

/// What happens to a request. One that is told nothing more is never answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It arrives and is served; again, if it is told so again.
    Arrives,
    /// Its last answer reaches the caller.
    Answers,
    /// The connection breaks: the caller does not know whether it was served.
    Breaks,
    /// There is no connection: it never left.
    Refused,
}

thread_local! {
    static INSTALLED: Cell<bool> = const { Cell::new(false) };
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// The world stays installed on this thread until this is dropped.
#[must_use = "the world is taken away when this is dropped"]
pub struct Installed(());

/// Installs a world on this thread.
pub fn install(world: Rc<dyn World>) -> Installed {
    WORLD.with(|w| *w.borrow_mut() = Some(world));
    INSTALLED.set(true);
    Installed(())
}

impl Drop for Installed {
    fn drop(&mut self) {
        INSTALLED.set(false);
        WORLD.with(|w| w.borrow_mut().take());
    }
}

/// The world of this thread, if one is installed.
pub(crate) fn world() -> Option<Rc<dyn World>> {
    if !INSTALLED.get() {
        return None;
    }
    WORLD.with(|w| w.borrow().clone())
}

/// One request to a store in memory: it travels, is served, and its answer travels back, as the
/// world has it. Dropped, it goes on its way all the same.
///
/// # Errors
/// [`Kind::Unreachable`] when the world breaks or refuses the connection.
///
/// # Panics
/// When no world is installed on this thread.
pub async fn call<T: Send + 'static>(
    site: &str,
    what: &'static str,
    work: impl Fn() -> T + 'static,
) -> Result<T, Error> {
    let (tx, rx) = oneshot::channel();
    let (mut tx, mut answer) = (Some(tx), None);
    let message: Message = Box::new(move |delivery| {
        let reply = match delivery {
            Delivery::Arrives => {
                answer = Some(work());
                return;
            }
            Delivery::Answers => answer.take().ok_or(Delivery::Breaks),
            other => Err(other),
        };
        if let Some(tx) = tx.take() {
            let _ = tx.send(reply);
        }
    });
    world().expect("a simulation is installed on this thread").send(site, what, message);
    let broken = |why| Error::new(Kind::Unreachable, why).store(site);
    match rx.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Delivery::Refused)) => Err(broken("no connection")),
        _ => Err(broken("the connection broke").unknown()),
    }
}

/// Where wake-ups for a client go: by way of the world if one is installed.
pub fn sink(sink: EventSink) -> EventSink {
    match world() {
        Some(world) => world.sink(sink),
        None => sink,
    }
}

/// The library's hash maps. Their order decides the order of calls, so a simulation needs it to be
/// the same each time; everybody else gets a random one.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hashing>;

pub(crate) type HashSet<T> = std::collections::HashSet<T, Hashing>;

/// How the library's hash maps hash.
#[derive(Clone)]
pub(crate) enum Hashing {
    Random(RandomState),
    Simulated,
}

impl Default for Hashing {
    fn default() -> Self {
        match INSTALLED.get() {
            true => Self::Simulated,
            false => Self::Random(RandomState::new()),
        }
    }
}

impl BuildHasher for Hashing {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        match self {
            Self::Random(random) => random.build_hasher(),
            Self::Simulated => DefaultHasher::new(),
        }
    }
}
