//! A store whose locks are tied to connections, in memory and behind the simulated network.
//!
//! A connection stands in the line of one lock. It is forgotten when it closes, and when it holds
//! the lock and was not heard of for a TTL.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Ask, StoreInfo, Watcher};
use distlock_core::capability::{Capability, Expiry, Family};
use distlock_core::clock::BootInstant;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{EventSink, Wake};
use distlock_core::session::{Alive, Locked, SessionStore};
use distlock_core::simulation::call;
use distlock_core::{
    Clock, Error, Force, Forced, FullName, Kind, LossReason, Patience, QueueStatus, Released,
    Token, TokenRange,
};
use tokio::sync::Notify;

const SITE: &str = "sessions:";
/// How long a client waits for a release to be answered.
const CALL: Duration = Duration::from_secs(5);

/// One client of the store.
#[derive(Clone)]
pub struct Sessions {
    server: Arc<Server>,
    sink: Arc<Mutex<Option<EventSink>>>,
}

struct Server {
    promises: Capability,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    lines: BTreeMap<FullName, Line>,
}

#[derive(Default)]
struct Line {
    /// The first one holds the lock.
    conns: VecDeque<Standee>,
    token: u64,
    /// Closed before their request arrived.
    closed: Vec<u64>,
}

struct Standee {
    id: u64,
    ttl: Duration,
    token: Option<Token>,
    heard: BootInstant,
    bell: Arc<Notify>,
}

/// A connection. Its drop closes it, and the server hears of that a moment later.
pub struct Conn {
    client: Sessions,
    name: FullName,
    id: u64,
    open: bool,
}

/// Where a connection stands.
enum Stands {
    Holds(Token),
    Waits,
    Gone,
}

fn broken(why: &'static str) -> Error {
    Error::new(Kind::Unreachable, why).store(SITE)
}

impl Sessions {
    /// A server with its first client.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let mut promises = distlock_core::memory::capability().clone();
        (promises.expiry, promises.detach) = (Expiry::Ttl, false);
        (promises.family, promises.handover) = (Family::Session, false);
        promises.reentry = distlock_core::capability::Reentry::Client;
        let server = Server { promises, clock, state: Mutex::default() };
        Self { server: Arc::new(server), sink: Arc::default() }
    }

    /// Another client.
    #[must_use]
    pub fn client(&self) -> Self {
        Self { server: self.server.clone(), sink: Arc::default() }
    }

    fn sink(&self) -> Option<EventSink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the client something that may or may not be so.
    pub fn tell(&self, wake: Wake) {
        if let Some(sink) = self.sink() {
            sink(wake);
        }
    }

    fn open(&self, name: &FullName) -> Conn {
        let mut state = self.server.state();
        state.next += 1;
        Conn { client: self.clone(), name: name.clone(), id: state.next, open: true }
    }

    async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Fn(&mut State, BootInstant) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let server = self.server.clone();
        call(SITE, what, move || {
            let now = server.clock.now();
            let mut state = server.state();
            state.expire(now);
            let answer = work(&mut state, now);
            state.promote(now);
            answer
        })
        .await
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let answer = self.info().clock.timeout(CALL, call).await;
        answer.unwrap_or_else(|| Err(broken("no answer").unknown()))
    }

    async fn confirm(&self, conn: &Conn) -> Result<Stands, Error> {
        let (name, id) = (conn.name.clone(), conn.id);
        self.ask("alive", move |state, now| {
            let Some(standee) = state.find(&name, id) else { return Stands::Gone };
            standee.heard = now;
            standee.token.map_or(Stands::Waits, Stands::Holds)
        })
        .await
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&mut self, name: &FullName, id: u64) -> Option<&mut Standee> {
        self.lines.get_mut(name)?.conns.iter_mut().find(|s| s.id == id)
    }

    fn join(&mut self, ask: &Ask, id: u64, bell: &Arc<Notify>, now: BootInstant) -> Option<bool> {
        let line = self.lines.entry(ask.lock.clone()).or_default();
        if line.closed.contains(&id) {
            return None;
        }
        if !line.conns.iter().any(|s| s.id == id) {
            if ask.patience == Patience::Never && !line.conns.is_empty() {
                return Some(false);
            }
            let (ttl, bell) = (ask.ttl, bell.clone());
            line.conns.push_back(Standee { id, ttl, token: None, heard: now, bell });
        }
        Some(true)
    }

    fn close(&mut self, name: &FullName, id: u64) -> bool {
        let line = self.lines.entry(name.clone()).or_default();
        line.closed.push(id);
        let held = line.conns.front().is_some_and(|s| s.id == id && s.token.is_some());
        line.conns.retain(|s| s.id != id);
        held
    }

    fn expire(&mut self, now: BootInstant) {
        for line in self.lines.values_mut() {
            let over = |s: &Standee| s.token.is_some() && s.heard.plus(s.ttl) <= now;
            if line.conns.front().is_some_and(over) {
                line.conns.pop_front();
            }
        }
    }

    /// Whoever is first in line holds the lock, and is told.
    fn promote(&mut self, now: BootInstant) {
        for line in self.lines.values_mut() {
            let Some(first) = line.conns.front_mut().filter(|s| s.token.is_none()) else {
                continue;
            };
            line.token += 1;
            first.token = Token::new(line.token).ok();
            first.heard = now;
            let bell = first.bell.clone();
            crate::world::reliably(move || bell.notify_one());
        }
    }
}

impl Drop for Conn {
    /// Takes effect as soon as the server notices.
    fn drop(&mut self) {
        if self.open {
            let (server, name, id) = (self.client.server.clone(), self.name.clone(), self.id);
            crate::world::reliably(move || {
                let now = server.clock.now();
                let mut state = server.state();
                state.close(&name, id);
                state.expire(now);
                state.promote(now);
            });
        }
    }
}

impl SessionStore for Sessions {
    type Conn = Conn;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.server.promises, site: SITE, clock: &self.server.clock }
    }

    async fn lock(&self, ask: &Ask, _: Watcher<'_>) -> Result<Locked<Conn>, Error> {
        let conn = self.open(&ask.lock);
        let until = match ask.patience {
            Patience::For(d) => self.info().clock.now().plus(d),
            _ => BootInstant::FAR,
        };
        let bell = Arc::new(Notify::new());
        let (wish, id, rung) = (ask.clone(), conn.id, bell.clone());
        let join = self.ask("lock", move |state, now| state.join(&wish, id, &rung, now));
        let busy = || Ok(Locked::Busy(QueueStatus::default()));
        // A call that hangs must not outlast the patience.
        let left = until.since(self.info().clock.now()).min(CALL);
        match self.info().clock.timeout(left, join).await {
            Some(joined) => match joined? {
                Some(true) => {}
                Some(false) => return busy(),
                None => return Err(broken("the connection was closed")),
            },
            None if self.info().clock.now() >= until => return busy(),
            None => return Err(broken("no answer").unknown()),
        }
        loop {
            // Now and then it looks whether it missed the bell.
            let look = self.info().clock.now().plus(Duration::from_secs(2)).min(until);
            let wait = look.since(self.info().clock.now());
            let _ = self.info().clock.timeout(wait, bell.notified()).await;
            let sent = self.server.promises.reading(self.info().clock);
            let left = until.since(self.info().clock.now()).min(CALL);
            match self.info().clock.timeout(left, self.confirm(&conn)).await {
                Some(Ok(Stands::Holds(token))) => {
                    let tokens = TokenRange::one(token);
                    return Ok(Locked::Held { conn, sent: Some(sent), tokens, waiters: 0 });
                }
                Some(Ok(Stands::Gone)) => return Err(broken("the connection was ended")),
                _ => {}
            }
            if self.info().clock.now() >= until || ask.patience == Patience::Never {
                return busy();
            }
        }
    }

    async fn alive(&self, conn: &mut Conn) -> Alive {
        match self.confirm(conn).await {
            Ok(Stands::Holds(_)) => Alive::Yes { waiters: 0 },
            Ok(_) => Alive::No(LossReason::Disconnected),
            Err(e) => Alive::Unknown(e),
        }
    }

    async fn unlock(&self, mut conn: Conn) -> Result<Released, Error> {
        let (name, id) = (conn.name.clone(), conn.id);
        let close = self.ask("unlock", move |state, _| state.close(&name, id));
        match self.info().clock.timeout(CALL, close).await {
            Some(held) => {
                let held = held?;
                conn.open = false;
                Ok(if held { Released::Released } else { Released::WasLost })
            }
            None => Err(broken("no answer").unknown()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let Query::Name(name) = query.clone() else { return Ok(Vec::new()) };
        let info = move |state: &mut State, _| {
            let line = state.lines.get(&name)?;
            let waiters = line.conns.len();
            (waiters > 0).then(|| LockInfo {
                lock: name.clone(),
                holds: Vec::new(),
                waiters: Vec::new(),
            })
        };
        Ok(self.bounded(self.ask("inspect", info)).await?.into_iter().collect())
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        _: Force,
    ) -> Result<Forced, Error> {
        let lock = lock.clone();
        let force = self.ask("force", move |state, _| {
            let Some(line) = state.lines.get_mut(&lock) else { return Forced::NoMatch };
            let meant = |s: &Standee| s.token.is_some() && (token.is_none() || s.token == token);
            match line.conns.front().is_some_and(meant) {
                true => {
                    line.conns.pop_front();
                    Forced::Done
                }
                false => Forced::NoMatch,
            }
        });
        self.bounded(force).await
    }

    fn listen(&self, sink: EventSink) {
        let sink = crate::world::sink(sink);
        *self.sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    async fn close(&self) {}
}
