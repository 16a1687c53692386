//! Gives back what was dropped: guards, and acquires that nobody waits for any more.
//!
//! Each is repeated on the library's own thread until the store has acknowledged it, or until the
//! lease has ended by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine;
use crate::seam::{Backend, Key};
use crate::teeth::{self, Bug};

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// On top of the TTL: a request under way may start its lease this much later.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Reaper {
    backend: Arc<dyn Backend>,
    pending: AtomicUsize,
    idle: Notify,
    /// Whose holds these are. A forked copy of this process must give back none of them.
    pid: u32,
}

impl Reaper {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Self::of_process(backend, std::process::id())
    }

    pub(crate) fn of_process(backend: Arc<dyn Backend>, pid: u32) -> Arc<Self> {
        Arc::new(Self { backend, pending: AtomicUsize::new(0), idle: Notify::new(), pid })
    }

    /// Whether this is a forked copy of the process that made it.
    pub(crate) fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Undoes a request, whatever became of it. Returns at once.
    pub(crate) fn abandon(self: &Arc<Self>, key: Key, ttl: Duration) {
        self.repeat(key, ttl, false);
    }

    /// Releases a hold whose guard was dropped. Returns at once.
    pub(crate) fn release(self: &Arc<Self>, key: Key, ttl: Duration) {
        self.repeat(key, ttl, true);
    }

    fn repeat(self: &Arc<Self>, key: Key, ttl: Duration, release: bool) {
        if self.forked() {
            return;
        }
        let pending = Pending::new(self.clone());
        engine::spawn(async move {
            let reaper = &pending.0;
            let clock = reaper.backend.clock();
            let end = clock.now().plus(ttl).plus(GRACE);
            let mut wait = FIRST_RETRY;
            loop {
                let done = match release {
                    true => reaper.backend.release(&key, None).await.map(drop),
                    false => reaper.backend.abandon(&key).await,
                };
                let Err(e) = done else { break };
                if clock.now() >= end || teeth::bites(Bug::ReaperTriesOnce) {
                    tracing::warn!(lock = %key.lock, error = %e, "left to expire");
                    break;
                }
                clock.sleep(wait).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
        });
    }

    /// Waits until nothing is left to give back.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// One thing that is being given back. Counted down also when a store panics: whoever closes must
/// not wait for it for ever.
struct Pending(Arc<Reaper>);

impl Pending {
    fn new(reaper: Arc<Reaper>) -> Self {
        reaper.pending.fetch_add(1, Ordering::AcqRel);
        Self(reaper)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
