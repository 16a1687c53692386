//! A connection that outlives its callers.
//!
//! A statement that is dropped between its first byte and its answer leaves a connection nobody
//! can use, or worse, one that goes back to a pool with a lock on it. So connections belong to
//! tasks on the library's own thread; a caller sends what it wants done and waits for the answer.
//! If it goes away, what was sent is finished all the same, and what was not is never sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Kind, Mutex, engine};
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
    jobs: Mutex<Option<UnboundedSender<Job<O::Conn>>>>,
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
    first: UnboundedSender<Job<C>>,
    load: Arc<Load>,
    spare: Arc<Spare>,
}

impl<O: Opens> ConnectionWorker<O> {
    /// Starts the tasks behind it; connections are made when they are first needed. Every call ends
    /// within `bound`.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration, connections: usize) -> Self {
        Self::start(opens, clock, bound, connections.max(1), None)
    }

    /// One more connection beside this one, which does what the other cannot.
    pub(crate) fn extra(&self, opens: Arc<O>, spare: Arc<Spare>) -> Self {
        let first = self.jobs.lock().clone();
        let extra = first.map(|first| Extra { first, load: Arc::clone(&self.load), spare });
        Self::start(opens, self.clock.clone(), self.bound, 1, extra)
    }

    /// With a part in the work of another: then it has one connection.
    fn start(
        opens: Arc<O>,
        clock: Clock,
        bound: Duration,
        connections: usize,
        mut extra: Option<Extra<O::Conn>>,
    ) -> Self {
        let (tx, rx) = unbounded_channel();
        let (end, ended) = unbounded_channel();
        let rx = Arc::new(AsyncMutex::new(rx));
        let (refused, load) = (Arc::default(), Arc::<Load>::default());
        for _ in 0..connections {
            let worker = Worker {
                jobs: Arc::clone(&rx),
                opens: Arc::clone(&opens),
                clock: clock.clone(),
                bound,
                refused: Arc::clone(&refused),
                conn: None,
                load: Arc::clone(&load),
                extra: extra.take(),
                _end: end.clone(),
            };
            engine::spawn(worker.work());
        }
        let (jobs, ended) = (Mutex::new(Some(tx)), AsyncMutex::new(ended));
        Self { jobs, ended, load, clock, bound }
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
        let job = Job { until, repeat, call: Box::new(Call { work, answer, result: None }) };
        let sent = self.jobs.lock().as_ref().is_some_and(|jobs| {
            self.load.waiting.fetch_add(1, Ordering::Relaxed);
            jobs.send(job).is_ok()
        });
        async move {
            if !sent {
                return Err(closed());
            }
            reply.await.unwrap_or_else(|_| Err(closed().unknown()))
        }
    }

    /// Ends what is under way and closes the connections.
    pub async fn close(&self) {
        drop(self.jobs.lock().take());
        let mut ended = self.ended.lock().await;
        // Nothing is ever sent there: it ends when the last worker does.
        let _ = self.clock.timeout(self.bound + FAREWELL, ended.recv()).await;
    }
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the store was closed").with_hint("open it again")
}

fn late(bound: Duration) -> Error {
    Error::unanswered(bound).not_applied()
}

/// Whether a job is sent again when the connection broke under it.
enum Repeat {
    Never,
    Silently,
    /// After a call of this.
    Telling(Box<dyn Fn() + Send>),
}

/// Something to be done.
struct Job<C> {
    until: BootInstant,
    repeat: Repeat,
    call: Box<dyn AnyCall<C>>,
}

/// A call, whatever its answer's type is.
trait AnyCall<C>: Send {
    /// Whether anybody waits for its answer.
    fn is_wanted(&self) -> bool;
    /// Does it; says whether the connection broke.
    fn run<'c>(&'c mut self, conn: &'c mut C) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;
    /// Answers what came out; or this error, when nothing did.
    fn answer(self: Box<Self>, error: Option<Error>);
}

struct Call<T, F> {
    work: F,
    answer: oneshot::Sender<Result<T, Error>>,
    result: Option<Result<T, Error>>,
}

impl<C, T, F> AnyCall<C> for Call<T, F>
where
    C: Send,
    T: Send,
    F: for<'c> Fn(&'c mut C) -> Work<'c, T> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run<'c>(&'c mut self, conn: &'c mut C) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        let work = (self.work)(conn);
        let result = &mut self.result;
        Box::pin(async move {
            let done = work.await;
            let broken = done.as_ref().is_err_and(|trouble| trouble.broken);
            *result = Some(done.map_err(|trouble| trouble.error));
            broken
        })
    }

    fn answer(self: Box<Self>, error: Option<Error>) {
        let result = error.map(Err).or(self.result);
        let _ = self.answer.send(result.unwrap_or_else(|| Err(closed().unknown())));
    }
}

/// When and why there was last no connection to be had.
type Refused = Arc<Mutex<Option<(BootInstant, Error)>>>;

struct Worker<O: Opens> {
    jobs: Arc<AsyncMutex<UnboundedReceiver<Job<O::Conn>>>>,
    opens: Arc<O>,
    clock: Clock,
    bound: Duration,
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
            if job.call.is_wanted() {
                self.serve(job).await;
            }
        }
        self.farewell().await;
    }

    /// The next call. An extra connection that none comes for is closed.
    async fn next(&mut self) -> Option<Job<O::Conn>> {
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

    async fn serve(&mut self, mut job: Job<O::Conn>) {
        let (until, bound, clock) = (job.until, self.bound, self.clock.clone());
        let once = matches!(job.repeat, Repeat::Never);
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
                _ => self.connected(until).await,
            };
            let left = until.since(clock.now());
            let conn = match conn {
                Ok(_) if left.is_zero() => return job.call.answer(Some(told(late(bound), sent))),
                Ok(conn) => conn,
                Err(e) => match &self.extra {
                    // No more connections for us: the first one does it.
                    Some(extra) if !sent && !until.since(clock.now()).is_zero() => {
                        extra.spare.0.store(clock.now().as_nanos(), Ordering::Release);
                        extra.load.waiting.fetch_add(1, Ordering::Relaxed);
                        return drop(extra.first.send(job));
                    }
                    _ => return job.call.answer(Some(told(e, sent))),
                },
            };
            if sent && let Repeat::Telling(again) = &job.repeat {
                again();
            }
            sent = true;
            match clock.timeout(left, job.call.run(conn)).await {
                Some(false) => return job.call.answer(None),
                Some(true) => {
                    self.conn = None;
                    if last {
                        return job.call.answer(None);
                    }
                }
                None => {
                    // Its answer would be taken for that of the next statement.
                    self.conn = None;
                    return job.call.answer(Some(Error::unanswered(bound)));
                }
            }
        }
    }

    async fn connected(&mut self, until: BootInstant) -> Result<&mut O::Conn, Error> {
        // Not `if let`: the borrow would last for the whole function.
        if self.conn.is_none() {
            if let Some((at, error)) = &*self.refused.lock()
                && self.clock.now().since(*at) < PAUSE
            {
                return Err(error.clone());
            }
            let left = until.since(self.clock.now());
            let opened = self.clock.timeout(left, self.opens.open()).await;
            let opened = opened.unwrap_or_else(|| Err(late(self.bound)));
            *self.refused.lock() = match &opened {
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
