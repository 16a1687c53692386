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

use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal};
use distlock_core::leased::Leased;
use distlock_core::seam::{Ask, Backend, Due, Force, Forced, Key, Released};
use distlock_core::state::{Pulse, Reply, answer};
use distlock_core::{BootInstant, Clock, Error, FullName, Kind, ReqId, Store, Token, engine};
use distlock_sql::Lane;

use crate::call::{call, call_once, call_telling};
use crate::door::Door;
use crate::ear::Ear;
use crate::look;
use crate::moves::{self, BATCH, batches};
use crate::options::PostgresOptions;
use crate::quiet::Quiet;
use crate::short;
use crate::statements::Statements;
use crate::trouble::is_kept;

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
    front: Lane<Door>,
    back: Arc<Lane<Door>>,
    ear: Ear,
    /// Locks that may be taken and given back the short way.
    quiet: Arc<Quiet>,
    /// Locks that are looked after already, and what was released last, and when.
    watched: Arc<Mutex<HashMap<FullName, (ReqId, BootInstant)>>>,
}

impl Postgres {
    pub(crate) async fn at(
        door: Arc<Door>,
        site: String,
        capability: Capability,
        options: &PostgresOptions,
        say: Statements,
        front: Lane<Door>,
        (ear, quiet): (Ear, Arc<Quiet>),
    ) -> Result<Self, Error> {
        let clock = Clock::system();
        let back = Arc::new(Lane::new(door, clock.clone(), options.timeout, 1));
        let (say, watched) = (Arc::new(say), Arc::default());
        let known = say.clone();
        // A cancel is sent when things go wrong already: it should not begin with a connection and a
        // question how it is spelled. Who only looks may find functions of another version.
        if !options.look_only {
            let warm = call!(back, [known], conn, moves::prepare(conn, &known));
            warm.await.map_err(|e| e.during("connect").store(&site))?;
        }
        Ok(Self { capability, site, clock, say, front, back, ear, quiet, watched })
    }

    fn told<'a>(&'a self, what: &'static str, lock: &'a FullName) -> impl Fn(Error) -> Error + 'a {
        move |e| e.during(what).lock(lock).store(&self.site)
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

    async fn renew_at_once(&self, due: &[Due]) -> Result<Vec<Reply>, Error> {
        let (say, due): (_, Arc<[Due]>) = (self.say.clone(), due.into());
        call!(self.lane(), [say, due], conn, moves::renew(conn, &say, &due)).await
    }

    async fn renew_each(&self, due: &[Due]) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::with_capacity(due.len());
        for one in due.chunks(1) {
            match self.renew_at_once(one).await {
                Ok(reply) => replies.extend(reply.into_iter().map(Ok)),
                Err(e) => replies.push(Err(e)),
            }
        }
        replies
    }

    /// The short way; `None` where it is closed or not the usual case.
    async fn take(&self, ask: &Arc<Ask>, via: &Arc<str>) -> Result<Option<Reply>, Error> {
        if !short::fits(ask) || !self.quiet.knows(&ask.lock) {
            return Ok(None);
        }
        let (say, via, asked) = (self.say.clone(), via.clone(), ask.clone());
        let again = self.ear.repeats(ask.req);
        let taken = call_telling!(
            self.lane(),
            again,
            [say, via, asked],
            conn,
            short::take(conn, &say, &asked, &via)
        );
        let taken = taken.await;
        if !matches!(taken, Ok(Some(_))) {
            self.quiet.stir(&ask.lock);
        }
        taken
    }

    /// The short way for one whose turn it is; `None` where it is not the usual case.
    async fn confirm(&self, ask: &Arc<Ask>, via: Option<Arc<str>>) -> Result<Option<Reply>, Error> {
        let (say, asked) = (self.say.clone(), ask.clone());
        let confirmed = call!(
            self.lane(),
            [say, via, asked],
            conn,
            short::confirm(conn, &say, &asked, via.as_deref())
        );
        confirmed.await.inspect_err(|_| self.quiet.stir(&ask.lock))
    }

    /// The short way; false where it is closed or not the usual case.
    async fn give(&self, key: &Key) -> Result<bool, Error> {
        if !self.quiet.knows(&key.lock) {
            return Ok(false);
        }
        let (say, mine) = (self.say.clone(), key.clone());
        let given = call!(self.lane(), [say, mine], conn, short::give(conn, &say, &mine)).await;
        if !matches!(given, Ok(true)) {
            self.quiet.stir(&key.lock);
        }
        given
    }

    fn lane(&self) -> &Lane<Door> {
        if engine::on_library_thread() { &self.back } else { &self.front }
    }
}

/// Lets time do its work on a lock, and gives back a hold of it that should not be there.
async fn settle(back: &Lane<Door>, say: &Arc<Statements>, over: &Key) -> Result<(), Error> {
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
        Arc::new(Leased::new(self))
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

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        let (say, via, asked) = (self.say.clone(), self.ear.via(), Arc::new(ask.clone()));
        let told = self.told("acquire", &ask.lock);
        // In boxes of their own, so that a call under way does not carry what they are made of.
        let shortly = match self.ear.has_called(&ask.req) {
            true if !short::fits_a_turn(ask) => Ok(None),
            true => {
                let via = wait_lease.is_some().then(|| via.clone());
                Box::pin(self.confirm(&asked, via)).await
            }
            false => Box::pin(self.take(&asked, &via)).await,
        };
        if let Some(reply) = shortly.map_err(&told)? {
            self.quiet.hear(&ask.lock, &reply);
            return answer::acquired(reply).map_err(told);
        }
        let again = self.ear.repeats(ask.req);
        let call = call_telling!(
            self.lane(),
            again,
            [say, via, asked],
            conn,
            moves::acquire(conn, &say, &asked, wait_lease, &via)
        );
        let reply = call.await.inspect_err(|_| self.quiet.stir(&ask.lock)).map_err(&told)?;
        self.quiet.hear(&ask.lock, &reply);
        answer::acquired(reply).map_err(told)
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        let mut pulses = vec![Pulse::Unknown; waiting.len()];
        for places in batches(waiting, |(key, _)| &key.lock) {
            let batch: Arc<[_]> = places.iter().map(|i| waiting[*i].clone()).collect();
            let (say, via) = (self.say.clone(), self.ear.via());
            let call = call!(
                self.lane(),
                [say, via, batch],
                conn,
                moves::heartbeat(conn, &say, &batch, &via)
            );
            let replies: Vec<Reply> =
                call.await.map_err(|e| e.during("heartbeat").store(&self.site))?;
            for (i, reply) in places.into_iter().zip(replies) {
                pulses[i] = answer::pulsed(reply)?;
            }
        }
        Ok(pulses)
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(due.len());
        for batch in due.chunks(BATCH) {
            let replies = match self.renew_at_once(batch).await {
                Ok(replies) => replies.into_iter().map(Ok).collect(),
                // One row that somebody keeps locked: the others of the batch are not to expire.
                Err(e) if is_kept(&e) && batch.len() > 1 => self.renew_each(batch).await,
                Err(e) => vec![Err(e); batch.len()],
            };
            let told = |(reply, d): (Result<_, Error>, &Due)| {
                answer::renewed(reply.map_err(self.told("renew", &d.key.lock)))
            };
            renewals.extend(replies.into_iter().zip(batch).map(told));
        }
        renewals
    }

    /// The requeued request joins by its own acquire.
    async fn release(&self, key: &Key, _requeue: Option<&Ask>) -> Result<Released, Error> {
        if self.give(key).await.map_err(self.told("release", &key.lock))? {
            return Ok(Released::Released);
        }
        let (say, mine) = (self.say.clone(), key.clone());
        let call = call!(self.lane(), [say, mine], conn, moves::release(conn, &say, &mine));
        let (reply, promoted) = call.await.map_err(self.told("release", &key.lock))?;
        if promoted {
            self.look_after(key);
        }
        answer::released(reply).map_err(self.told("release", &key.lock))
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        let (say, mine) = (self.say.clone(), key.clone());
        self.quiet.stir(&key.lock);
        let call = call!(self.lane(), [say, mine], conn, moves::cancel(conn, &say, &mine));
        call.await.map(drop).map_err(self.told("cancel", &key.lock))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (say, query) = (self.say.clone(), query.clone());
        let call = call!(self.lane(), [say, query], conn, look::inspect(conn, &say, &query));
        call.await.map_err(|e| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        self.quiet.stir(lock);
        let (say, name) = (self.say.clone(), lock.clone());
        // Without a token it means whoever holds the lock, and that may be another one the next time.
        let call =
            call_once!(self.lane(), [say, name], conn, moves::force(conn, &say, &name, token, how));
        call.await.and_then(answer::forced).map_err(self.told("force", lock))
    }

    fn listen(&self, ears: Ears) {
        self.ear.listen(ears);
    }

    async fn close(&self) {
        self.ear.close();
        self.front.close().await;
        self.back.close().await;
    }
}
