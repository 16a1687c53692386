//! A connection that outlives its callers.
//!
//! A statement that is dropped between its first byte and its answer leaves a connection nobody
//! can use, or worse, one that goes back to a pool with a lock on it. So connections belong to
//! tasks on the library's own thread; a caller sends what it wants done and waits for the answer.
//! If it goes away, what was sent is finished all the same, and what was not is never sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Kind, engine};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

/// What is done on a connection.
pub type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'c>>;

/// After a connection could not be had, everybody is told the same for this long.
const PAUSE: Duration = Duration::from_millis(100);
/// An extra connection that is not used for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// How connections are made.
pub trait Opens: Send + Sync + 'static {
    /// A connection. Dropping it closes it.
    type Conn: Send + 'static;

    /// Makes one, ready for use.
    fn open(&self) -> impl Future<Output = Result<Self::Conn, Error>> + Send;

    /// Closes one in order.
    fn close(&self, conn: Self::Conn) -> impl Future<Output = ()> + Send;
}

/// Something went wrong on a connection.
#[derive(Debug)]
pub struct Trouble {
    /// What.
    pub error: Error,
    /// Whether the connection is of no use any more. What was asked for is then tried once more on
    /// a new one, unless it may be done once only.
    pub broken: bool,
}

impl Trouble {
    /// The other side answered with an error; the connection is fine.
    #[must_use]
    pub fn answered(error: Error) -> Self {
        Self { error, broken: false }
    }

    /// The connection broke, and nobody knows what the other side did.
    #[must_use]
    pub fn broken(error: Error) -> Self {
        Self { error: error.unknown(), broken: true }
    }
}

/// The way to one connection, or to a few that share the work.
pub struct ConnectionWorker<O: Opens> {
    jobs: Mutex<Option<UnboundedSender<Boxed<O::Conn>>>>,
    ended: AsyncMutex<UnboundedReceiver<()>>,
    load: Arc<Load>,
    clock: Clock,
    bound: Duration,
}

/// What a worker has to do.
#[derive(Default)]
struct Load {
    /// How many calls wait to be taken up.
    waiting: AtomicUsize,
    /// It has been connected.
    connected: AtomicBool,
}

/// What extra connections share: when one was last refused, in nanoseconds since boot.
#[derive(Default)]
pub(crate) struct Spare(AtomicU64);

impl Spare {
    pub(crate) fn refused(&self) -> Option<BootInstant> {
        let at = self.0.load(Ordering::Acquire);
        (at > 0).then(|| BootInstant::from_nanos(at))
    }
}

/// How an extra connection differs: what it cannot serve goes to the first, and it closes when idle.
struct Extra<C> {
    first: UnboundedSender<Boxed<C>>,
    load: Arc<Load>,
    spare: Arc<Spare>,
}

impl<O: Opens> ConnectionWorker<O> {
    /// Starts the tasks behind it; connections are made when they are first needed. Every call ends
    /// within `bound`.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration, connections: usize) -> Self {
        let (tx, rx) = unbounded_channel();
        let (end, ended) = unbounded_channel();
        let rx = Arc::new(AsyncMutex::new(rx));
        let (refused, load) = (Arc::default(), Arc::<Load>::default());
        for _ in 0..connections.max(1) {
            let worker = Worker {
                jobs: rx.clone(),
                opens: opens.clone(),
                clock: clock.clone(),
                refused: Arc::clone(&refused),
                conn: None,
                load: Arc::clone(&load),
                extra: None,
                _end: end.clone(),
            };
            engine::spawn(worker.work());
        }
        let (jobs, ended) = (Mutex::new(Some(tx)), AsyncMutex::new(ended));
        Self { jobs, ended, load, clock, bound }
    }

    /// One more connection beside this one, which does what the other cannot.
    pub(crate) fn extra(&self, opens: Arc<O>, spare: Arc<Spare>) -> Self {
        let (tx, rx) = unbounded_channel();
        let (end, ended) = unbounded_channel();
        let load = Arc::<Load>::default();
        let first = lock(&self.jobs).clone();
        let extra = first.map(|first| Extra { first, load: Arc::clone(&self.load), spare });
        let worker = Worker {
            jobs: Arc::new(AsyncMutex::new(rx)),
            opens,
            clock: self.clock.clone(),
            refused: Arc::default(),
            conn: None,
            load: Arc::clone(&load),
            extra,
            _end: end,
        };
        engine::spawn(worker.work());
        let (jobs, ended) = (Mutex::new(Some(tx)), AsyncMutex::new(ended));
        Self { jobs, ended, load, clock: self.clock.clone(), bound: self.bound }
    }

    /// How many calls wait to be taken up.
    pub(crate) fn waiting(&self) -> usize {
        self.load.waiting.load(Ordering::Relaxed)
    }

    /// Whether it has been connected.
    pub(crate) fn has_connected(&self) -> bool {
        self.load.connected.load(Ordering::Relaxed)
    }

    /// Does something on a connection that is idempotent: `work` is called a second time when the
    /// connection broke under the first.
    ///
    /// # Errors
    /// What `work` says, and [`Kind::Unreachable`] when there is no connection or no answer in
    /// time; not applied if it was never sent.
    ///
    /// # Cancel safety
    /// Dropping it takes back what was not sent yet; what was sent is finished.
    pub fn call<T, F>(&self, work: F) -> impl Future<Output = Result<T, Error>> + use<T, F, O>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        self.ask(work, Repeat::Silently)
    }

    /// The same, and calls `again` before `work` is sent a second time: the first may have arrived, or
    /// may still, after whatever follows.
    ///
    /// # Errors
    /// As [`ConnectionWorker::call`].
    ///
    /// # Cancel safety
    /// As [`ConnectionWorker::call`].
    pub fn call_telling<T, F, A>(
        &self,
        again: A,
        work: F,
    ) -> impl Future<Output = Result<T, Error>> + use<T, F, A, O>
    where
        T: Send + 'static,
        A: Fn() + Send + 'static,
        F: for<'c> Fn(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        self.ask(work, Repeat::Telling(Box::new(again)))
    }

    /// Does something that is not idempotent: it is sent once, on a connection made for it, because
    /// one that the server ended meanwhile would leave its outcome unknown.
    ///
    /// # Errors
    /// As [`ConnectionWorker::call`]; with an unknown outcome when the connection broke under it.
    ///
    /// # Cancel safety
    /// As [`ConnectionWorker::call`].
    pub fn call_once<T, F>(&self, work: F) -> impl Future<Output = Result<T, Error>> + use<T, F, O>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        self.ask(work, Repeat::Never)
    }

    /// Sends a job at once. What waits for its answer is small: a thousand may wait.
    fn ask<T, F>(
        &self,
        work: F,
        repeat: Repeat,
    ) -> impl Future<Output = Result<T, Error>> + use<T, F, O>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut O::Conn) -> Work<'c, T> + Send + 'static,
    {
        let (answer, reply) = oneshot::channel();
        let until = self.clock.now().plus(self.bound);
        let call = Call { work, answer, result: None, until, bound: self.bound, repeat };
        let sent = match &*lock(&self.jobs) {
            Some(jobs) => {
                self.load.waiting.fetch_add(1, Ordering::Relaxed);
                jobs.send(Box::new(call)).is_ok()
            }
            None => false,
        };
        async move {
            if !sent {
                return Err(closed());
            }
            reply.await.unwrap_or_else(|_| Err(closed().unknown()))
        }
    }

    /// Ends what is under way and closes the connections.
    pub async fn close(&self) {
        drop(lock(&self.jobs).take());
        let mut ended = self.ended.lock().await;
        // Nothing is ever sent there: it ends when the last worker does.
        let _ = self.clock.timeout(self.bound + FAREWELL, ended.recv()).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the store was closed").with_hint("open it again")
}

fn late(bound: Duration) -> Error {
    Error::new(Kind::Unreachable, format!("no answer within {bound:?}")).with_hint(
        "see whether the database runs and can be reached; the same call may be repeated",
    )
}

/// Whether a job is sent again when the connection broke under it.
enum Repeat {
    Never,
    Silently,
    /// After a call of this.
    Telling(Box<dyn Fn() + Send>),
}

/// Something to be done, whatever its answer's type is.
trait Job<C>: Send {
    /// Whether anybody waits for it.
    fn is_wanted(&self) -> bool;
    fn until(&self) -> BootInstant;
    fn bound(&self) -> Duration;
    fn repeat(&self) -> &Repeat;
    /// Does it; says whether the connection broke.
    fn run<'c>(&'c mut self, conn: &'c mut C) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;
    /// Tells what came out.
    fn tell(self: Box<Self>);
    /// Tells that nothing did.
    fn fail(self: Box<Self>, error: Error);
}

struct Call<T, F> {
    work: F,
    answer: oneshot::Sender<Result<T, Error>>,
    result: Option<Result<T, Error>>,
    until: BootInstant,
    bound: Duration,
    repeat: Repeat,
}

impl<C, T, F> Job<C> for Call<T, F>
where
    C: Send,
    T: Send,
    F: for<'c> Fn(&'c mut C) -> Work<'c, T> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn until(&self) -> BootInstant {
        self.until
    }

    fn bound(&self) -> Duration {
        self.bound
    }

    fn repeat(&self) -> &Repeat {
        &self.repeat
    }

    fn run<'c>(&'c mut self, conn: &'c mut C) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        let work = (self.work)(conn);
        let result = &mut self.result;
        Box::pin(async move {
            match work.await {
                Ok(value) => *result = Some(Ok(value)),
                Err(Trouble { error, broken }) => {
                    *result = Some(Err(error));
                    return broken;
                }
            }
            false
        })
    }

    fn tell(self: Box<Self>) {
        let result = self.result.unwrap_or_else(|| Err(closed().unknown()));
        let _ = self.answer.send(result);
    }

    fn fail(self: Box<Self>, error: Error) {
        let _ = self.answer.send(Err(error));
    }
}

/// When and why there was last no connection to be had.
type Refused = Arc<Mutex<Option<(BootInstant, Error)>>>;
type Jobs<C> = Arc<AsyncMutex<UnboundedReceiver<Boxed<C>>>>;
type Boxed<C> = Box<dyn Job<C>>;

struct Worker<O: Opens> {
    jobs: Jobs<O::Conn>,
    opens: Arc<O>,
    clock: Clock,
    refused: Refused,
    conn: Option<O::Conn>,
    load: Arc<Load>,
    extra: Option<Extra<O::Conn>>,
    /// Dropped when this ends.
    _end: UnboundedSender<()>,
}

impl<O: Opens> Worker<O> {
    async fn work(mut self) {
        loop {
            let Some(job) = self.next().await else { break };
            self.load.waiting.fetch_sub(1, Ordering::Relaxed);
            if job.is_wanted() {
                self.serve(job).await;
            }
        }
        self.farewell().await;
    }

    /// The next call. An extra connection that none comes for is closed.
    async fn next(&mut self) -> Option<Boxed<O::Conn>> {
        let jobs = Arc::clone(&self.jobs);
        let mut jobs = jobs.lock().await;
        if self.extra.is_some() && self.conn.is_some() {
            if let Some(next) = self.clock.timeout(IDLE, jobs.recv()).await {
                return next;
            }
            self.farewell().await;
        }
        jobs.recv().await
    }

    async fn farewell(&mut self) {
        if let Some(conn) = self.conn.take() {
            let _ = self.clock.timeout(FAREWELL, self.opens.close(conn)).await;
        }
    }

    async fn serve(&mut self, mut job: Boxed<O::Conn>) {
        let (until, clock) = (job.until(), self.clock.clone());
        let (bound, once) = (job.bound(), matches!(job.repeat(), Repeat::Never));
        if once {
            self.conn = None;
        }
        let mut sent = false;
        let told = |e: Error, sent| if sent { e.unknown() } else { e.not_applied() };
        for last in [once, true] {
            // Its time may have been over before its turn came: to send it would throw away the
            // connection, whose answer nobody would read.
            let conn = match until.since(clock.now()) {
                Duration::ZERO => Err(late(bound)),
                _ => self.connected(until, bound).await,
            };
            let left = until.since(clock.now());
            let conn = match conn {
                Ok(_) if left.is_zero() => return job.fail(told(late(bound), sent)),
                Ok(conn) => conn,
                Err(e) => match &self.extra {
                    // No more connections for us: the first one does it.
                    Some(extra) if !sent && !until.since(clock.now()).is_zero() => {
                        extra.spare.0.store(clock.now().as_nanos(), Ordering::Release);
                        extra.load.waiting.fetch_add(1, Ordering::Relaxed);
                        return drop(extra.first.send(job));
                    }
                    _ => return job.fail(told(e, sent)),
                },
            };
            if sent && let Repeat::Telling(again) = job.repeat() {
                again();
            }
            sent = true;
            match clock.timeout(left, job.run(conn)).await {
                Some(false) => return job.tell(),
                Some(true) => {
                    self.conn = None;
                    if last {
                        return job.tell();
                    }
                }
                None => {
                    // Its answer would be taken for that of the next statement.
                    self.conn = None;
                    return job.fail(late(bound).unknown());
                }
            }
        }
    }

    async fn connected(
        &mut self,
        until: BootInstant,
        bound: Duration,
    ) -> Result<&mut O::Conn, Error> {
        // Not `if let`: the borrow would last for the whole function.
        if self.conn.is_none() {
            if let Some((at, error)) = &*lock(&self.refused)
                && self.clock.now().since(*at) < PAUSE
            {
                return Err(error.clone());
            }
            let left = until.since(self.clock.now());
            let opened = self.clock.timeout(left, self.opens.open()).await;
            let opened = opened.unwrap_or_else(|| Err(late(bound)));
            *lock(&self.refused) = match &opened {
                Ok(_) => None,
                Err(e) => Some((self.clock.now(), e.clone())),
            };
            self.conn = Some(opened?);
            self.load.connected.store(true, Ordering::Relaxed);
        }
        self.conn.as_mut().ok_or_else(closed)
    }
}

#[cfg(test)]
mod tests;
