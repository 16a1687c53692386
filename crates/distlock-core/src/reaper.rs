//! Gives back what was dropped: guards, and acquires that nobody waits for any more.
//!
//! Each is repeated on the library's own thread until the store has acknowledged it, or until the
//! lease has ended by itself. However many are dropped at once, a bounded number of calls is under
//! way at each server of the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::{Backend, Backoff, BootInstant, Clock, GRACE, HashMap, Key, Mutex, engine};

/// Max calls under way at one server.
const AT_ONCE: usize = 64;

pub(crate) struct Reaper {
    backend: Arc<dyn Backend>,
    /// What is left to give back, releases that their guards see to included.
    pending: AtomicUsize,
    /// Counts what the store has acknowledged.
    acknowledged: AtomicUsize,
    /// Somebody waits for that to end.
    draining: AtomicBool,
    progress: Notify,
    backlogs: Mutex<HashMap<u64, Backlog>>,
    /// The store was closed: nothing is tried twice any more.
    closed: AtomicBool,
    /// The process of these holds. A forked copy of this process must give back none of them.
    pid: u32,
}

/// What is to be given back at one server, by when to try.
#[derive(Default)]
struct Backlog {
    queue: BTreeMap<(BootInstant, u64), Job>,
    next_id: u64,
    workers: usize,
    /// One worker sleeps until the first retry is due; rung when that is sooner than it thinks.
    sleeper: Option<Arc<Notify>>,
}

struct Job {
    key: Key,
    release: bool,
    end: BootInstant,
    retry: Backoff,
    _pending: Pending,
}

enum Next {
    Try(Job),
    Sleep(BootInstant, Arc<Notify>),
    Nothing,
}

impl Reaper {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Self::of_process(backend, std::process::id())
    }

    pub(crate) fn of_process(backend: Arc<dyn Backend>, pid: u32) -> Arc<Self> {
        Arc::new(Self {
            backend,
            pending: AtomicUsize::new(0),
            acknowledged: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            progress: Notify::new(),
            backlogs: Mutex::default(),
            closed: AtomicBool::new(false),
            pid,
        })
    }

    fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    /// Whether this is a forked copy of the process that made it.
    pub(crate) fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Undoes a request, whatever became of it. Returns at once.
    pub(crate) fn abandon(self: &Arc<Self>, key: Key, ttl: Duration) {
        self.begin(key, ttl, false);
    }

    /// Releases a hold whose guard was dropped. Returns at once.
    pub(crate) fn release(self: &Arc<Self>, key: Key, ttl: Duration) {
        self.begin(key, ttl, true);
    }

    /// Counts a release that somebody else sees to, so that closing waits for it.
    pub(crate) fn under_way(self: &Arc<Self>) -> Pending {
        Pending::new(self.clone())
    }

    /// The store has acknowledged such a release.
    pub(crate) fn acknowledged(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(self: &Arc<Self>, key: Key, ttl: Duration, release: bool) {
        if self.forked() {
            return;
        }
        let (shard, now) = (self.backend.shard(&key.lock), self.clock().now());
        let end = now.plus(ttl).plus(GRACE);
        let pending = Pending::new(self.clone());
        let job = Job { key, release, end, retry: Backoff::default(), _pending: pending };
        let mut backlogs = self.backlogs.lock();
        let backlog = backlogs.entry(shard).or_default();
        backlog.put(now, job);
        let hire = backlog.workers < AT_ONCE;
        backlog.workers += usize::from(hire);
        drop(backlogs);
        if hire {
            self.hire(shard);
        }
    }

    /// Starts a worker that is counted already.
    fn hire(self: &Arc<Self>, shard: u64) {
        let worker = Worker { reaper: self.clone(), shard, over: false };
        engine::spawn(async move { worker.run().await });
    }

    /// What a worker does next. A worker without work is not counted any more.
    fn next(self: &Arc<Self>, shard: u64) -> Next {
        let now = self.clock().now();
        let mut backlogs = self.backlogs.lock();
        let Some(backlog) = backlogs.get_mut(&shard) else { return Next::Nothing };
        if let Some(first) = backlog.queue.first_entry().filter(|e| e.key().0 <= now) {
            let job = first.remove();
            let hire = backlog.workers < AT_ONCE && backlog.first().is_some_and(|at| at <= now);
            backlog.workers += usize::from(hire);
            drop(backlogs);
            if hire {
                self.hire(shard);
            }
            return Next::Try(job);
        }
        match backlog.first().filter(|_| backlog.sleeper.is_none()) {
            Some(at) => {
                let notify = Arc::<Notify>::default();
                backlog.sleeper = Some(notify.clone());
                Next::Sleep(at, notify)
            }
            None => {
                backlog.workers -= 1;
                if backlog.workers == 0 {
                    backlogs.remove(&shard);
                }
                Next::Nothing
            }
        }
    }

    async fn attempt(self: &Arc<Self>, shard: u64, mut job: Job) {
        let done = match job.release {
            true => self.backend.release(&job.key).await.map(drop),
            false => self.backend.abandon(&job.key).await,
        };
        let Err(e) = done else { return self.acknowledged() };
        let now = self.clock().now();
        let closed = self.closed.load(Ordering::Acquire);
        if now >= job.end || closed {
            tracing::warn!(lock = %job.key.lock, error = %e, "left to expire");
            return;
        }
        let at = now.plus(job.retry.next());
        if let Some(backlog) = self.backlogs.lock().get_mut(&shard) {
            backlog.put(at, job);
        }
    }

    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::SeqCst)
    }

    /// Waits until nothing is left to give back, or until nothing was acknowledged for a while; says
    /// how much is left. What is given up meanwhile prolongs nothing.
    pub(crate) async fn drained(&self, silence: Duration) -> usize {
        self.draining.store(true, Ordering::SeqCst);
        let (mut seen, mut end) = (0, self.clock().now().plus(silence));
        loop {
            let progress = self.progress.notified();
            let left = self.pending.load(Ordering::SeqCst);
            let (now, acknowledged) =
                (self.clock().now(), self.acknowledged.load(Ordering::SeqCst));
            if std::mem::replace(&mut seen, acknowledged) != acknowledged {
                end = now.plus(silence);
            }
            if left == 0 || self.clock().timeout(end.since(now), progress).await.is_none() {
                return left;
            }
        }
    }

    /// Tries nothing again: the store is about to be closed.
    pub(crate) fn stop(&self) {
        self.closed.store(true, Ordering::Release);
        let mut given_up = Vec::new();
        for backlog in self.backlogs.lock().values_mut() {
            given_up.extend(std::mem::take(&mut backlog.queue).into_values());
            if let Some(sleeper) = &backlog.sleeper {
                sleeper.notify_one();
            }
        }
        for job in given_up {
            tracing::warn!(lock = %job.key.lock, "left to expire");
        }
    }
}

impl Backlog {
    fn first(&self) -> Option<BootInstant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    fn put(&mut self, at: BootInstant, job: Job) {
        if let Some(sleeper) = self.sleeper.as_ref().filter(|_| self.first().is_none_or(|f| at < f))
        {
            sleeper.notify_one();
        }
        self.next_id += 1;
        self.queue.insert((at, self.next_id), job);
    }
}

/// One task that gives back one thing after the other.
struct Worker {
    reaper: Arc<Reaper>,
    shard: u64,
    /// Not counted any more.
    over: bool,
}

impl Worker {
    async fn run(mut self) {
        loop {
            match self.reaper.next(self.shard) {
                Next::Try(job) => self.reaper.attempt(self.shard, job).await,
                Next::Sleep(at, notify) => {
                    tokio::select! {
                        biased;
                        () = self.reaper.clock().sleep_until(at) => {}
                        () = notify.notified() => {}
                    }
                    if let Some(backlog) = self.reaper.backlogs.lock().get_mut(&self.shard) {
                        backlog.sleeper = None;
                    }
                }
                Next::Nothing => {
                    self.over = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Worker {
    /// A store that panics takes one worker with it: another takes its place, and the others' turn
    /// comes all the same.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut backlogs = self.reaper.backlogs.lock();
        let Some(backlog) = backlogs.get_mut(&self.shard) else { return };
        backlog.workers -= 1;
        if std::thread::panicking() && !backlog.queue.is_empty() {
            backlog.workers += 1;
            drop(backlogs);
            self.reaper.hire(self.shard);
        } else if backlog.workers == 0 {
            backlogs.remove(&self.shard);
        }
    }
}

/// One thing that is being given back. Counted down also when a store panics: a close must
/// not wait for it for ever.
pub(crate) struct Pending(Arc<Reaper>);

impl Pending {
    fn new(reaper: Arc<Reaper>) -> Self {
        reaper.pending.fetch_add(1, Ordering::SeqCst);
        Self(reaper)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::SeqCst);
        if self.0.draining.load(Ordering::SeqCst) {
            self.0.progress.notify_waiters();
        }
    }
}
