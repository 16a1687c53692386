//! The task of one connection: the future that writes its calls and reads its answers.
//!
//! 1. It runs as a task on the library's thread, so that no answer depends on a caller's poll.
//! 2. A caller whose call is the only one unanswered polls it once, right after enqueuing the call:
//!    the write happens on the caller's thread, without a thread hop.
//! 3. Wake-ups during that poll are noted and passed on to the task afterwards: nobody contends for
//!    the future, and none is lost.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A caller polls the future: wake-ups are noted, and passed on when it is done.
const POLLED: u8 = 1;
/// A wake-up was noted.
const WOKEN: u8 = 2;

/// The task of a connection, shared with its callers.
pub(crate) struct ConnectionTask {
    /// `None` once the connection has ended.
    run: Mutex<Option<Run>>,
    state: AtomicU8,
    /// Wakes the task on the library's thread.
    task: AtomicWaker,
}

impl ConnectionTask {
    pub(crate) fn new(run: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        let (run, state) = (Mutex::new(Some(Box::pin(run) as Run)), AtomicU8::new(0));
        Arc::new(Self { run, state, task: AtomicWaker::new() })
    }

    /// Drives the connection until it ends or nobody needs it. To be run on the library's thread.
    pub(crate) async fn drive(self: Arc<Self>, unneeded: CancellationToken) {
        let run = poll_fn(|cx| {
            self.task.register(cx.waker());
            match self.run.try_lock() {
                Ok(mut run) => self.advance(&mut run),
                // A caller polls it, and passes this wake-up on afterwards.
                Err(TryLockError::WouldBlock) => {
                    self.wake_by_ref();
                    Poll::Pending
                }
                // A poll panicked: what that leaves cannot be driven any further.
                Err(TryLockError::Poisoned(_)) => Poll::Ready(()),
            }
        });
        tokio::select! {
            () = run => {}
            () = unneeded.cancelled() => {}
        }
        // Ends the connection, and the cycle: its socket keeps a waker that keeps this future.
        self.run.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Enqueues a call and writes it on this thread, unless the future is being polled just now.
    pub(crate) fn write<T>(self: &Arc<Self>, enqueue: impl FnOnce() -> T) -> T {
        let Ok(mut run) = self.run.try_lock() else { return enqueue() };
        let polled = Polled::new(self);
        let enqueued = enqueue();
        // Answers what was noted until here, by polling.
        self.state.swap(POLLED, Ordering::AcqRel);
        if self.advance(&mut run).is_ready() {
            self.wake_by_ref();
        }
        // First the future, then the note that somebody polls it: the task finds it free.
        drop(run);
        drop(polled);
        enqueued
    }

    fn advance(self: &Arc<Self>, run: &mut Option<Run>) -> Poll<()> {
        let Some(future) = run else { return Poll::Ready(()) };
        let waker = Waker::from(self.clone());
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *run = None;
        }
        polled
    }
}

impl Wake for ConnectionTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One atomic step: noted while somebody polls, who sees the note when done, or passed on.
        let note = |state| (state & POLLED != 0).then_some(state | WOKEN);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, note).is_err() {
            self.task.wake();
        }
    }
}

/// A caller polls the future, for as long as this lives.
struct Polled<'a>(&'a ConnectionTask);

impl<'a> Polled<'a> {
    fn new(task: &'a ConnectionTask) -> Self {
        task.state.swap(POLLED, Ordering::AcqRel);
        Self(task)
    }
}

impl Drop for Polled<'_> {
    /// Passes on what was noted, and a panic in any case: the task then ends the connection.
    fn drop(&mut self) {
        let noted = self.0.state.swap(0, Ordering::AcqRel) & WOKEN != 0;
        if noted || std::thread::panicking() {
            self.0.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use distlock_core::engine;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    type Question = (usize, oneshot::Sender<usize>);

    /// Answers questions, and counts those that were taken up on another thread than the library's.
    fn echo(elsewhere: Arc<AtomicUsize>) -> (mpsc::Sender<Question>, Arc<ConnectionTask>) {
        let (ask, mut asked) = mpsc::channel::<Question>(64);
        let task = ConnectionTask::new(async move {
            while let Some((n, answer)) = asked.recv().await {
                if !engine::on_library_thread() {
                    elsewhere.fetch_add(1, Ordering::Relaxed);
                }
                let _ = answer.send(n);
            }
        });
        (ask, task)
    }

    #[test]
    fn what_is_enqueued_alone_is_taken_up_where_the_caller_is() {
        let elsewhere = Arc::<AtomicUsize>::default();
        let (ask, task) = echo(elsewhere.clone());
        let (answer, mut answered) = oneshot::channel();
        task.write(|| ask.try_send((7, answer)).unwrap());
        assert_eq!(answered.try_recv().unwrap(), 7);
        assert_eq!(elsewhere.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn no_wake_up_is_lost_between_callers_and_the_task() {
        let elsewhere = Arc::<AtomicUsize>::default();
        let (ask, task) = echo(elsewhere.clone());
        let unneeded = CancellationToken::new();
        engine::spawn(task.clone().drive(unneeded.clone()));
        thread::scope(|scope| {
            for writes in [true, true, false, false] {
                let (ask, task) = (ask.clone(), task.clone());
                scope.spawn(move || {
                    for n in 0..20_000 {
                        let (answer, answered) = oneshot::channel();
                        match writes {
                            true => task.write(|| ask.try_send((n, answer)).unwrap()),
                            // Left to the task, or to whoever polls next.
                            false => ask.try_send((n, answer)).unwrap(),
                        }
                        assert_eq!(answered.blocking_recv().unwrap(), n);
                    }
                });
            }
        });
        assert!(elsewhere.load(Ordering::Relaxed) > 0);
        unneeded.cancel();
        while !ask.is_closed() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_in_a_callers_poll_ends_the_connection() {
        let (ask, mut asked) = mpsc::channel::<()>(1);
        let task = ConnectionTask::new(async move {
            asked.recv().await;
            panic!("a bug in the future");
        });
        let caller = AssertUnwindSafe(|| task.write(|| ask.try_send(()).unwrap()));
        assert!(catch_unwind(caller).is_err());
        engine::block_on(task.drive(CancellationToken::new()));
        assert!(ask.is_closed());
    }
}
