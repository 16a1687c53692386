//! The default store: the lease family on functions of the database.
//!
//! 1. Every move is one function call, so one round trip and one transaction; it locks the lock's
//!    row, then reads the server's clock. A lock that this process had to itself before is taken and
//!    given back by one UPDATE instead, and a turn confirmed by one (`fast_path`); where that finds
//!    anything else, the function is called after it. Their clock is the moment at which they came,
//!    which is early after a wait for the row: whatever ends, ends later than it says.
//! 2. A busy lock puts the request in the queue, with the channel its process listens on.
//! 3. A release promotes the head and notifies its channel, if its process is there; one that is not
//!    is passed over, but keeps its place.
//! 4. The woken waiter asks again, which confirms the promotion, and believes that answer.
//!
//! Calls have one connection, the library's renewals and cancels another, and a third listens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::lease::only;
use distlock_core::state::Pulse;
use distlock_core::{
    Ask, Backend, BootInstant, Capability, Class, Clock, Due, Error, EventSink, Force, Forced,
    FullName, Key, Kind, LeaseDriver, LeaseStore, LockInfo, Move, Mutex, Query, Replies, Reply,
    ReqId, Run, Store, StoreInfo, Token, engine,
};
use distlock_sql::{ConnectionGroup, ConnectionWorker};

use crate::function_calls::{self, BATCH, batches};
use crate::schema::Schema;
use crate::statements::Statements;
use crate::{
    connector::Connector,
    contention_hint::ContentionHint,
    errors::{is_kept, work},
    fast_path, inspect,
    listener::NotifyListener,
    options::PostgresOptions,
};

/// A promotion lasts a second unless it is confirmed.
const CONFIRMED: Duration = Duration::from_millis(1050);
/// How many seconds to wait between tries to look after a lock: a server takes a while to come back.
const PAUSES: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Locks in tables of a PostgreSQL database.
///
/// Dropping it ends its connections after what is under way.
pub struct Postgres {
    capability: Capability,
    site: String,
    clock: Clock,
    sql: Arc<Statements>,
    front: ConnectionGroup<Connector>,
    back: Arc<ConnectionWorker<Connector>>,
    listener: NotifyListener,
    /// Locks that may be acquired and released by the fast path.
    contention: Arc<ContentionHint>,
    /// Locks that are looked after already, and what was released last, and when.
    watched: Arc<Mutex<HashMap<FullName, (ReqId, BootInstant)>>>,
}

impl Postgres {
    pub(crate) async fn at(
        connector: Arc<Connector>,
        site: String,
        capability: Capability,
        options: &PostgresOptions,
        schema: &Schema,
        front: ConnectionGroup<Connector>,
        listener: NotifyListener,
    ) -> Result<Self, Error> {
        let clock = Clock::system();
        let back = Arc::new(ConnectionWorker::new(connector, clock.clone(), options.timeout, 1));
        let (sql, watched) = (Arc::new(Statements::new(schema)), Arc::default());
        let contention = listener.contention();
        let known = sql.clone();
        // A cancel is sent when things go wrong already: it should not begin with a connection and a
        // question how it is spelled. A client that only looks may find functions of another version.
        if !options.look_only {
            let warm = back.call(work!(|conn, known| function_calls::prepare(conn, &known)));
            warm.await.map_err(|e| e.during("connect").store(&site))?;
        }
        Ok(Self { capability, site, clock, sql, front, back, listener, contention, watched })
    }

    /// Looks after a lock once a promotion of ours must have been confirmed.
    ///
    /// A process that was killed this very moment is taken for alive until the server has noticed;
    /// the next waiter would hear of it only with its next heartbeat. And a server that crashed
    /// before the confirmation may have forgotten the release, for which nobody waited at the disk:
    /// then it is given back again, or it would be held for the rest of its lease. The latest of a
    /// lock is enough: what was released before it was on disk when it was granted.
    fn look_after(&self, key: &Key) {
        let now = self.clock.now();
        let watched = || self.watched.lock();
        if watched().insert(key.lock.clone(), (key.req, now)).is_some() {
            return;
        }
        let (back, sql, clock) = (self.back.clone(), self.sql.clone(), self.clock.clone());
        let (watched, lock) = (self.watched.clone(), key.lock.clone());
        engine::spawn(async move {
            loop {
                clock.sleep(CONFIRMED).await;
                let (latest, over) = {
                    let mut watched = watched.lock();
                    let Some((req, at)) = watched.get(&lock).copied() else { return };
                    let over = clock.now().since(at) >= CONFIRMED;
                    if over {
                        watched.remove(&lock);
                    }
                    (Key { lock: lock.clone(), req }, over)
                };
                for pause in PAUSES {
                    match settle(&back, &sql, &latest).await {
                        Ok(()) => break,
                        Err(e) if e.kind() == Kind::Closed => return,
                        Err(e) => tracing::debug!(error = %e, "nobody looked after a promotion"),
                    }
                    clock.sleep(Duration::from_secs(pause)).await;
                }
                if over {
                    return;
                }
            }
        });
    }

    async fn renew_at_once(&self, class: Class, due: &[Due]) -> Result<Vec<Reply>, Error> {
        let (sql, due): (_, Arc<[Due]>) = (self.sql.clone(), due.into());
        self.worker(class, &due[0].key.lock)
            .call(work!(|conn, sql, due| function_calls::renew(conn, &sql, &due)))
            .await
    }

    async fn renew(&self, class: Class, due: &[Due]) -> Replies {
        let mut replies = Replies::with_capacity(due.len());
        for batch in due.chunks(BATCH) {
            match self.renew_at_once(class, batch).await {
                Ok(renewed) => replies.extend(renewed.into_iter().map(Ok)),
                // One row that somebody keeps locked: the others of the batch are not to expire.
                Err(e) if is_kept(&e) && batch.len() > 1 => {
                    for one in batch.chunks(1) {
                        match self.renew_at_once(class, one).await {
                            Ok(renewed) => replies.extend(renewed.into_iter().map(Ok)),
                            Err(e) => replies.push(Err(e)),
                        }
                    }
                }
                Err(e) => replies.extend(batch.iter().map(|_| Err(e.clone()))),
            }
        }
        replies
    }

    async fn acquire(
        &self,
        class: Class,
        ask: Arc<Ask>,
        wait_lease: Option<Duration>,
    ) -> Result<Reply, Error> {
        let (sql, via, asked) = (self.sql.clone(), self.listener.via(), ask.clone());
        // In boxes of their own, so that a call under way does not carry what they are made of.
        let shortly = match self.listener.has_called(&ask.req) {
            true if !fast_path::fits_a_turn(&ask) => None,
            true => {
                let via = wait_lease.is_some().then(|| via.clone());
                Box::pin(self.confirm(class, &asked, via)).await?
            }
            false => Box::pin(self.take(class, &asked, &via)).await?,
        };
        if let Some(reply) = shortly {
            self.contention.hear(&ask.lock, &reply);
            return Ok(reply);
        }
        let again = self.listener.repeats(ask.req);
        let call = self.worker(class, &ask.lock).call_telling(
            again,
            work!(|conn, sql, via, asked| function_calls::acquire(
                conn, &sql, &asked, wait_lease, &via
            )),
        );
        let reply = call.await.inspect_err(|_| self.contention.stir(&ask.lock))?;
        self.contention.hear(&ask.lock, &reply);
        Ok(reply)
    }

    async fn heartbeat(&self, class: Class, waiting: &[(Key, Duration)]) -> Replies {
        let mut replies = Replies::with_capacity(waiting.len());
        for batch in batches(waiting) {
            let batch: Arc<[_]> = batch.into();
            let (sql, via) = (self.sql.clone(), self.listener.via());
            let n = batch.len();
            let call = self.worker(class, &batch[0].0.lock).call(work!(|conn, sql, via, batch| {
                function_calls::heartbeat(conn, &sql, &batch, &via)
            }));
            match call.await {
                Ok(pulses) => replies.extend(pulses.into_iter().map(Ok)),
                Err(e) => replies.extend(vec![Err(e); n]),
            }
        }
        replies
    }

    async fn release(&self, class: Class, key: &Key) -> Result<Reply, Error> {
        if self.give(class, key).await? {
            return Ok(Reply::Released);
        }
        let (sql, mine) = (self.sql.clone(), key.clone());
        let call = self
            .worker(class, &key.lock)
            .call(work!(|conn, sql, mine| function_calls::release(conn, &sql, &mine)));
        let (reply, promoted) = call.await?;
        if promoted {
            self.look_after(key);
        }
        Ok(reply)
    }

    async fn cancel(&self, class: Class, key: &Key) -> Result<Reply, Error> {
        let (sql, mine) = (self.sql.clone(), key.clone());
        self.contention.stir(&key.lock);
        self.worker(class, &key.lock)
            .call(work!(|conn, sql, mine| function_calls::cancel(conn, &sql, &mine)))
            .await
    }

    /// Fast path: acquire with one UPDATE; `None` falls back to the full function.
    async fn take(
        &self,
        class: Class,
        ask: &Arc<Ask>,
        via: &Arc<str>,
    ) -> Result<Option<Reply>, Error> {
        if !fast_path::fits(ask) || !self.contention.knows(&ask.lock) {
            return Ok(None);
        }
        let (sql, via, asked) = (self.sql.clone(), via.clone(), ask.clone());
        let again = self.listener.repeats(ask.req);
        let taken = self.worker(class, &ask.lock).call_telling(
            again,
            work!(|conn, sql, via, asked| fast_path::take(conn, &sql, &asked, &via)),
        );
        let taken = taken.await;
        if !matches!(taken, Ok(Some(_))) {
            self.contention.stir(&ask.lock);
        }
        taken
    }

    /// Fast path: confirm a promotion with one UPDATE; `None` falls back to the full function.
    async fn confirm(
        &self,
        class: Class,
        ask: &Arc<Ask>,
        via: Option<Arc<str>>,
    ) -> Result<Option<Reply>, Error> {
        let (sql, asked) = (self.sql.clone(), ask.clone());
        let confirmed =
            self.worker(class, &ask.lock).call(work!(|conn, sql, via, asked| fast_path::confirm(
                conn,
                &sql,
                &asked,
                via.as_deref()
            )));
        confirmed.await.inspect_err(|_| self.contention.stir(&ask.lock))
    }

    /// Fast path: release with one UPDATE; false falls back to the full function.
    async fn give(&self, class: Class, key: &Key) -> Result<bool, Error> {
        if !self.contention.knows(&key.lock) {
            return Ok(false);
        }
        let (sql, mine) = (self.sql.clone(), key.clone());
        let given = self
            .worker(class, &key.lock)
            .call(work!(|conn, sql, mine| fast_path::give(conn, &sql, &mine)))
            .await;
        if !matches!(given, Ok(true)) {
            self.contention.stir(&key.lock);
        }
        given
    }

    fn worker(&self, class: Class, lock: &FullName) -> &ConnectionWorker<Connector> {
        match class {
            Class::Caller => self.front.of(lock),
            Class::Upkeep => &self.back,
        }
    }
}

/// Lets time do its work on a lock, and gives back a hold of it that should not be there.
async fn settle(
    back: &ConnectionWorker<Connector>,
    sql: &Arc<Statements>,
    over: &Key,
) -> Result<(), Error> {
    let (known, due): (_, Arc<[_]>) = (sql.clone(), [(over.clone(), CONFIRMED)].into());
    let pulses = back
        .call(work!(|conn, known, due| function_calls::heartbeat(conn, &known, &due, "")))
        .await?;
    if matches!(pulses[..], [Reply::Pulse(Pulse::Turn)]) {
        let (known, over) = (sql.clone(), over.clone());
        back.call(work!(|conn, known, over| function_calls::release(conn, &known, &over))).await?;
    }
    Ok(())
}

impl Store for Postgres {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Postgres {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.clock }
    }

    fn ends_in_time(&self) -> bool {
        true
    }

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::with_capacity(moves.len());
        for run in Run::split(moves) {
            match run {
                Run::Acquire(ask, wait) => replies.push(self.acquire(class, ask, wait).await),
                Run::Heartbeat(waiting) => replies.extend(self.heartbeat(class, &waiting).await),
                Run::Renew(due) => replies.extend(self.renew(class, &due).await),
                Run::Release(key) => replies.push(self.release(class, &key).await),
                Run::Cancel(key) => replies.push(self.cancel(class, &key).await),
            }
        }
        replies
    }

    /// The rest in boxes: an acquire that waits for a connection should not carry room for it.
    async fn play_one(&self, class: Class, one: Move) -> Result<Reply, Error> {
        match one {
            Move::Acquire(ask, wait) => self.acquire(class, ask, wait).await,
            Move::Release(key) => Box::pin(self.release(class, &key)).await,
            other => only(Box::pin(self.play(class, vec![other])).await),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (sql, query) = (self.sql.clone(), query.clone());
        let first = self.front.first();
        first.call(work!(|conn, sql, query| inspect::inspect(conn, &sql, &query))).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.contention.stir(lock);
        let (sql, name) = (self.sql.clone(), lock.clone());
        // Without a token it means the holder, and that may be another one the next time.
        let call = self.front.first().call_once(work!(|conn, sql, name| function_calls::force(
            conn, &sql, &name, token, how
        )));
        call.await?.forced()
    }

    fn listen(&self, sink: EventSink) {
        self.listener.listen(sink);
    }

    async fn close(&self) {
        self.listener.close();
        self.front.close().await;
        self.back.close().await;
    }
}
