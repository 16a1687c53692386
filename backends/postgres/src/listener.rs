//! The connection that listens.
//!
//! 1. It listens on a channel of a number nobody else has, and at first is told something on another
//!    connection of ours: what does not arrive would not arrive later either. Only then is anything
//!    set on a connection: behind a pooler it would be somebody else's next.
//! 2. It keeps an advisory lock on that number, so that a promotion of a waiter can see whether it
//!    would be heard. It runs nothing else: in the session that holds it, that lock looks free.
//! 3. When it breaks, it is made anew under another number, because the server may not know yet that
//!    the old one is gone; and everybody asks again, because something may have been missed.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::{Clock, Error, EventSink, FullName, Kind, Mutex, ReqId, Wake, engine};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::watch;

use crate::connector::{Connector, OURS};
use crate::errors::{POOLED, refusal};
use crate::{contention_hint::ContentionHint, notification};

/// Max requests remembered that were told of their turn.
const MANY: usize = 4096;
/// A connection that is silent for this long is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(3);
/// The pause before another try to connect, doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// What it is told first.
const HELLO: &str = "hello";

/// The listening connection. Dropping it ends it.
pub(crate) struct NotifyListener(Arc<Inner>);

/// What is known of it.
struct Inner {
    connector: Arc<Connector>,
    clock: Clock,
    bound: Duration,
    sink: OnceLock<EventSink>,
    via: Mutex<Arc<str>>,
    contention: Arc<ContentionHint>,
    /// Requests that were told of their turn and have not asked since.
    called: Mutex<HashSet<ReqId>>,
    closed: watch::Sender<bool>,
}

impl NotifyListener {
    /// Connects and listens.
    ///
    /// # Errors
    /// [`Kind::Refused`] behind a pooler that does not keep a session together, and whatever keeps
    /// a connection from coming about.
    pub(crate) async fn open(
        connector: Arc<Connector>,
        clock: Clock,
        bound: Duration,
    ) -> Result<Self, Error> {
        let contention = Arc::new(ContentionHint::new(clock.clone()));
        let (sink, via, closed) = (OnceLock::new(), Mutex::default(), watch::Sender::new(false));
        let called = Mutex::default();
        let inner = Inner { connector, clock, bound, sink, via, contention, called, closed };
        let listener = Self(Arc::new(inner));
        let (told, first) = tokio::sync::oneshot::channel();
        // On the library's thread, where the connection is to live.
        engine::spawn(Arc::clone(&listener.0).work(told));
        let lost = || Err(Error::new(Kind::Closed, "the store was closed"));
        first.await.unwrap_or_else(|_| lost())?;
        Ok(listener)
    }

    /// Where this process can be told something.
    pub(crate) fn via(&self) -> Arc<str> {
        self.0.via.lock().clone()
    }

    /// Locks that are quiet as far as is known: what it is told says of others that they are not.
    pub(crate) fn contention(&self) -> Arc<ContentionHint> {
        Arc::clone(&self.0.contention)
    }

    /// Whether a request was told of its turn since it last asked.
    pub(crate) fn has_called(&self, req: &ReqId) -> bool {
        self.0.called.lock().remove(req)
    }

    /// Where wake-ups go.
    pub(crate) fn listen(&self, sink: EventSink) {
        let _ = self.0.sink.set(sink);
    }

    /// Tells that a request is sent again.
    pub(crate) fn repeats(&self, req: ReqId) -> impl Fn() + Send + 'static {
        let inner = self.0.clone();
        move || inner.tell(Wake::Repeated(req))
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.0.closed.send_replace(true);
    }
}

impl Drop for NotifyListener {
    /// Takes effect at once.
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn tell(&self, wake: Wake) {
        if let Some(sink) = self.sink.get() {
            sink(wake);
        }
    }

    fn note(&self, lock: &FullName, wake: &Wake) {
        self.contention.wake(lock);
        if let Wake::Turn(req) = wake {
            let mut called = self.called.lock();
            // Requests that were dropped meanwhile do not ask any more.
            if called.len() >= MANY {
                called.clear();
            }
            called.insert(*req);
        }
    }

    async fn work(self: Arc<Self>, first: tokio::sync::oneshot::Sender<Result<(), Error>>) {
        let mut closed = self.closed.subscribe();
        let over = async move {
            let _ = closed.wait_for(|closed| *closed).await;
        };
        tokio::select! {
            () = over => {}
            () = self.serve(first) => {}
        }
    }

    async fn serve(&self, first: tokio::sync::oneshot::Sender<Result<(), Error>>) {
        let mut listener = match self.connect(true).await {
            Ok(listener) => {
                let _ = first.send(Ok(()));
                listener
            }
            Err(e) => {
                let _ = first.send(Err(e));
                return;
            }
        };
        loop {
            self.hear(&mut listener).await;
            let mut pause = PAUSE.0;
            listener = loop {
                match self.connect(false).await {
                    Ok(listener) => break listener,
                    Err(e) => tracing::debug!(error = %e, "no connection listens for wake-ups now"),
                }
                self.clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            };
            self.tell(Wake::Everybody);
        }
    }

    /// Passes on what is told until the connection breaks.
    async fn hear(&self, listener: &mut PgListener) {
        loop {
            match self.clock.timeout(QUIET, listener.try_recv()).await {
                Some(Ok(Some(told))) => {
                    if let Some((lock, wake)) = notification::parse(told.payload()) {
                        self.note(&lock, &wake);
                        self.tell(wake);
                    }
                }
                Some(Ok(None) | Err(_)) => return,
                None => {
                    // A connection that nobody answers on looks like one where nothing happens.
                    let there = self.clock.timeout(self.bound, listener.execute("SELECT 1")).await;
                    if !matches!(there, Some(Ok(_))) {
                        return;
                    }
                }
            }
        }
    }

    async fn connect(&self, first: bool) -> Result<PgListener, Error> {
        let bounded = self.clock.timeout(self.bound, self.connect_once(first)).await;
        bounded.unwrap_or_else(|| {
            Err(Error::unanswered(self.bound).not_applied().with_hint(
                "see whether the database runs and can be reached, and whether it has as many \
                 connections as it takes",
            ))
        })
    }

    async fn connect_once(&self, first: bool) -> Result<PgListener, Error> {
        // A pool tries again in silence; this one says at once what is wrong.
        let caller = match first {
            true => Some(PgConnection::connect_with(&self.connector.to).await.map_err(refusal)?),
            false => None,
        };
        // The driver listens only on connections of a pool.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .acquire_timeout(self.bound)
            .connect_lazy_with(self.connector.to.clone());
        let mut listener = PgListener::connect_with(&pool).await.map_err(refusal)?;
        listener.eager_reconnect(false);
        let number = u64::from_be_bytes(first_half(ReqId::random()));
        let channel = format!("distlock_{number:016x}");
        listener.listen(&channel).await.map_err(refusal)?;
        if let Some(caller) = caller {
            self.greet(caller, &mut listener, &channel).await?;
        }
        sqlx::raw_sql(OURS).execute(&mut listener).await.map_err(refusal)?;
        let alive = sqlx::query("SELECT pg_advisory_lock($1)").bind(number.cast_signed());
        listener.execute(alive).await.map_err(refusal)?;
        *self.via.lock() = channel.into();
        Ok(listener)
    }

    /// Sees whether what is told on another connection arrives here. A pooler that hands out
    /// connections for one transaction gives it to another client that has that connection just then.
    async fn greet(
        &self,
        mut caller: PgConnection,
        listener: &mut PgListener,
        channel: &str,
    ) -> Result<(), Error> {
        let hello = format!("NOTIFY {channel}, '{HELLO}'");
        caller.execute(AssertSqlSafe(hello)).await.map_err(refusal)?;
        let heard = self.clock.timeout(self.bound / 2, listener.try_recv()).await;
        let _ = caller.close().await;
        match heard {
            Some(Ok(Some(told))) if told.payload() == HELLO => Ok(()),
            Some(Err(e)) => Err(refusal(e)),
            Some(Ok(_)) | None => {
                let what = "what is told to this connection does not arrive";
                Err(Error::new(Kind::Refused, what).with_hint(POOLED))
            }
        }
    }
}

/// Half of a random number.
fn first_half(id: ReqId) -> [u8; 8] {
    let mut half = [0; 8];
    half.copy_from_slice(&id.as_bytes()[..8]);
    half
}
