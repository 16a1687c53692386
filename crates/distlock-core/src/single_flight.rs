//! Single flight: one run of an operation for everybody who waits for its answer.

use std::future::Future;

use tokio::sync::watch;

use crate::{Mutex, engine};

/// Shares one run of an operation among all callers that need its answer: opening a session, say,
/// or logging in.
///
/// The run is on the library's own thread. So it goes on when the caller that began it is dropped,
/// and a caller that is not polled holds nobody up, as the owner of an async lock would.
pub struct SingleFlight<T>(Mutex<Option<watch::Receiver<Option<T>>>>);

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// The answer of the run that is under way, or of a new one; `None` when it panicked.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the answer; the run goes on.
    pub async fn join<F>(&self, start: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut answer = self.run(start);
        let answer = answer.wait_for(Option::is_some).await.ok()?;
        answer.clone()
    }

    fn run<F>(&self, start: impl FnOnce() -> F) -> watch::Receiver<Option<T>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.0.lock();
        let under_way =
            |run: &&watch::Receiver<Option<T>>| run.borrow().is_none() && run.has_changed().is_ok();
        if let Some(run) = running.as_ref().filter(under_way) {
            return run.clone();
        }
        let (tx, rx) = watch::channel(None);
        let work = start();
        engine::spawn(async move {
            let answer = work.await;
            tx.send_replace(Some(answer));
        });
        *running = Some(rx.clone());
        rx
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_share_one_run_and_the_next_caller_begins_another() {
        let (flight, runs) = (SingleFlight::default(), Arc::new(AtomicUsize::new(0)));
        let go = Arc::new(Notify::new());
        let call = || {
            flight.join(|| {
                let (runs, go) = (runs.clone(), go.clone());
                async move {
                    go.notified().await;
                    runs.fetch_add(1, Ordering::AcqRel) + 1
                }
            })
        };
        // Begun and dropped: its run goes on for the others.
        tokio::select! {
            biased;
            _ = call() => panic!("nobody let it go"),
            () = std::future::ready(()) => {}
        }
        let let_go = async { go.notify_one() };
        let (one, two, ()) = tokio::join!(call(), call(), let_go);
        assert_eq!((one, two), (Some(1), Some(1)));
        go.notify_one();
        assert_eq!(call().await, Some(2));
    }
}
