//! The one door to spawning: the library's own thread, and named threads for stores.
//!
//! Renewals, cancels and dropped guards run on one thread of the library's own, so that a blocked
//! executor does not lose locks and a guard can be dropped where there is no runtime at all.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};

use crate::{Error, Kind, simulation};

struct Library {
    pid: u32,
    handle: Handle,
}

thread_local! {
    static IS_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&Library) -> T) -> T {
    let mut slot = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    // A forked child has the memory of the thread but not the thread.
    let library = match slot.take() {
        Some(l) if l.pid == pid => l,
        _ => start(pid),
    };
    f(slot.insert(library))
}

fn start(pid: u32) -> Library {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the library's runtime starts (it needs three file descriptors)");
    let handle = runtime.handle().clone();
    let work = move || {
        IS_LIBRARY.set(true);
        runtime.block_on(std::future::pending::<()>());
    };
    thread("distlock", work).expect("the library's thread starts");
    Library { pid, handle }
}

/// Runs a future on the library's own thread. Call it with no lock held: in a simulation that thread
/// may run before this returns.
///
/// # Panics
/// When the operating system gives no thread or file descriptor for it.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Some(world) = simulation::world() {
        return world.spawn(Box::pin(work));
    }
    with(|l| drop(l.handle.spawn(work)));
}

/// Runs a future on the library's own thread and blocks this one until it is done. Fine with and
/// without a runtime around; it blocks the calling thread as its name says.
///
/// # Panics
/// When called on the library's own thread, which could then never finish the work, or when the
/// work itself panics.
pub fn block_on<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    assert!(!on_library_thread(), "distlock::blocking cannot be used inside distlock's callbacks");
    let (tx, rx) = mpsc::sync_channel(1);
    spawn(async move {
        let _ = tx.send(work.await);
    });
    rx.recv().expect("the work did not panic")
}

/// Whether this is the library's own thread: stores pick the connection by it.
#[must_use]
pub fn on_library_thread() -> bool {
    IS_LIBRARY.get() || simulation::world().is_some_and(|w| w.on_library_thread())
}

/// Runs work that blocks on a thread of its own and awaits its answer.
///
/// # Errors
/// When the operating system gives no thread, or the work panics.
///
/// # Cancel safety
/// Dropping the future does not stop the work; its answer is thrown away.
pub async fn unblock<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (tx, rx) = tokio::sync::oneshot::channel();
    let started = thread("distlock-unblock", move || drop(tx.send(work())));
    let failed = |why| Error::new(Kind::Store, why);
    started.map_err(|e| failed("no thread to be had").because(e).transient())?;
    rx.await.unwrap_or_else(|_| Err(failed("work on a thread of its own panicked")))
}

/// Starts a named thread, for a store whose calls block.
///
/// # Errors
/// When the operating system gives no thread.
pub fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[allow(clippy::disallowed_methods)] // the door
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_librarys_thread_with_and_without_a_runtime() {
        assert!(block_on(async { on_library_thread() }));
        assert!(!on_library_thread());
        let rt = Builder::new_current_thread().build().unwrap();
        rt.block_on(async { assert_eq!(block_on(async { 7 }), 7) });
    }
}
