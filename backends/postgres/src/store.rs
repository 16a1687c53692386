//! The default store: the lease family on functions of the database.
//!
//! 1. Every move is one function call, so one round trip and one transaction; it locks the lock's
//!    row, then reads the server's clock. A lock that this process had to itself before is taken and
//!    given back by one UPDATE instead, and a turn confirmed by one (`short`); where that finds
//!    anything else, the function is called after it. Their clock is the moment at which they came,
//!    which is early after a wait for the row: whatever ends, ends later than it says.
//! 2. A busy lock puts the request in line, with the channel its process listens on.
//! 3. A release promotes the head and notifies its channel, if its process is there; one that is not
//!    is passed over, but keeps its place.
//! 4. The woken waiter asks again, which confirms the promotion, and believes that answer.
//!
//! Calls have one connection, the library's renewals and cancels another, and a third listens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Due, Force, Forced, Key};
use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Run, only};
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::state::{Pulse, Reply};
use distlock_core::{BootInstant, Clock, Error, FullName, Kind, ReqId, Store, Token, engine};
use distlock_sql::{ConnectionGroup, ConnectionWorker};

use crate::call::{call, call_once, call_telling};
use crate::connector::Connector;
use crate::contention::ContentionHint;
use crate::errors::is_kept;
use crate::fast_path;
use crate::inspect;
use crate::listener::NotifyListener;
use crate::moves::{self, BATCH, batches};
use crate::options::PostgresOptions;
use crate::statements::Statements;

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
    say: Arc<Statements>,
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
        say: Statements,
        front: ConnectionGroup<Connector>,
        (listener, contention): (NotifyListener, Arc<ContentionHint>),
    ) -> Result<Self, Error> {
        let clock = Clock::system();
        let back = Arc::new(ConnectionWorker::new(connector, clock.clone(), options.timeout, 1));
        let (say, watched) = (Arc::new(say), Arc::default());
        let known = say.clone();
        // A cancel is sent when things go wrong already: it should not begin with a connection and a
        // question how it is spelled. Who only looks may find functions of another version.
        if !options.look_only {
            let warm = call!(back, [known], conn, moves::prepare(conn, &known));
            warm.await.map_err(|e| e.during("connect").store(&site))?;
        }
        Ok(Self { capability, site, clock, say, front, back, listener, contention, watched })
    }

    /// Looks after a lock once a promotion of ours must have been confirmed.
    ///
    /// A process that was killed this very moment is taken for alive until the server has noticed;
    /// whoever is next would hear of it only with its next heartbeat. And a server that crashed
    /// before the confirmation may have forgotten the release, for which nobody waited at the disk:
    /// then it is given back again, or it would be held for the rest of its lease. The latest of a
    /// lock is enough: what was released before it was on disk when it was granted.
    fn look_after(&self, key: &Key) {
        let now = self.clock.now();
        let watched = || self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched().insert(key.lock.clone(), (key.req, now)).is_some() {
            return;
        }
        let (back, say, clock) = (self.back.clone(), self.say.clone(), self.clock.clone());
        let (watched, lock) = (self.watched.clone(), key.lock.clone());
        engine::spawn(async move {
            loop {
                clock.sleep(CONFIRMED).await;
                let (latest, over) = {
                    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some((req, at)) = watched.get(&lock).copied() else { return };
                    let over = clock.now().since(at) >= CONFIRMED;
                    if over {
                        watched.remove(&lock);
                    }
                    (Key { lock: lock.clone(), req }, over)
                };
                for pause in PAUSES {
                    match settle(&back, &say, &latest).await {
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
        let (say, due): (_, Arc<[Due]>) = (self.say.clone(), due.into());
        call!(
            self.worker(class, &due[0].key.lock),
            [say, due],
            conn,
            moves::renew(conn, &say, &due)
        )
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
        let (say, via, asked) = (self.say.clone(), self.listener.via(), ask.clone());
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
        let call = call_telling!(
            self.worker(class, &ask.lock),
            again,
            [say, via, asked],
            conn,
            moves::acquire(conn, &say, &asked, wait_lease, &via)
        );
        let reply = call.await.inspect_err(|_| self.contention.stir(&ask.lock))?;
        self.contention.hear(&ask.lock, &reply);
        Ok(reply)
    }

    async fn heartbeat(&self, class: Class, waiting: &[(Key, Duration)]) -> Replies {
        let mut replies = Replies::with_capacity(waiting.len());
        for batch in batches(waiting) {
            let batch: Arc<[_]> = batch.into();
            let (say, via) = (self.say.clone(), self.listener.via());
            let n = batch.len();
            let call = call!(
                self.worker(class, &batch[0].0.lock),
                [say, via, batch],
                conn,
                moves::heartbeat(conn, &say, &batch, &via)
            );
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
        let (say, mine) = (self.say.clone(), key.clone());
        let call = call!(
            self.worker(class, &key.lock),
            [say, mine],
            conn,
            moves::release(conn, &say, &mine)
        );
        let (reply, promoted) = call.await?;
        if promoted {
            self.look_after(key);
        }
        Ok(reply)
    }

    async fn cancel(&self, class: Class, key: &Key) -> Result<Reply, Error> {
        let (say, mine) = (self.say.clone(), key.clone());
        self.contention.stir(&key.lock);
        call!(self.worker(class, &key.lock), [say, mine], conn, moves::cancel(conn, &say, &mine))
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
        let (say, via, asked) = (self.say.clone(), via.clone(), ask.clone());
        let again = self.listener.repeats(ask.req);
        let taken = call_telling!(
            self.worker(class, &ask.lock),
            again,
            [say, via, asked],
            conn,
            fast_path::take(conn, &say, &asked, &via)
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
        let (say, asked) = (self.say.clone(), ask.clone());
        let confirmed = call!(
            self.worker(class, &ask.lock),
            [say, via, asked],
            conn,
            fast_path::confirm(conn, &say, &asked, via.as_deref())
        );
        confirmed.await.inspect_err(|_| self.contention.stir(&ask.lock))
    }

    /// Fast path: release with one UPDATE; false falls back to the full function.
    async fn give(&self, class: Class, key: &Key) -> Result<bool, Error> {
        if !self.contention.knows(&key.lock) {
            return Ok(false);
        }
        let (say, mine) = (self.say.clone(), key.clone());
        let given = call!(
            self.worker(class, &key.lock),
            [say, mine],
            conn,
            fast_path::give(conn, &say, &mine)
        )
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
    say: &Arc<Statements>,
    over: &Key,
) -> Result<(), Error> {
    let (known, due): (_, Arc<[_]>) = (say.clone(), [(over.clone(), CONFIRMED)].into());
    let pulses = call!(back, [known, due], conn, moves::heartbeat(conn, &known, &due, "")).await?;
    if matches!(pulses[..], [Reply::Pulse(Pulse::Turn)]) {
        let (known, over) = (say.clone(), over.clone());
        call!(back, [known, over], conn, moves::release(conn, &known, &over)).await?;
    }
    Ok(())
}

impl Store for Postgres {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Postgres {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.clock
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
        let (say, query) = (self.say.clone(), query.clone());
        let call =
            call!(self.front.first(), [say, query], conn, inspect::inspect(conn, &say, &query));
        call.await.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.contention.stir(lock);
        let (say, name) = (self.say.clone(), lock.clone());
        // Without a token it means whoever holds the lock, and that may be another one the next time.
        let call = call_once!(
            self.front.first(),
            [say, name],
            conn,
            moves::force(conn, &say, &name, token, how)
        );
        let forced = call.await.and_then(Reply::forced);
        forced.map_err(|e| e.during("force").lock(lock).store(&self.site))
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
