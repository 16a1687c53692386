//! The sessions of a client: one a TTL, opened when it is first asked for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::url::Host;
use distlock_core::{BootInstant, Error, Kind, engine};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex as Turn, oneshot};
use zookeeper_client::{Client, Connector, Error as Zk, SessionState};

use crate::pacer;
use crate::session::Session;
use crate::store::Shared;
use crate::trouble::{MINORITY, no_session};

/// How long opening a session may take.
const OPENING: Duration = Duration::from_secs(5);
/// How long each server may take to say that it is read-only.
const ASIDE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(100);
/// A connection that has been silent for this long is made anew, or sooner in a short session.
const SILENCE: Duration = Duration::from_secs(4);

type Slot = Arc<Turn<Option<Arc<Session>>>>;

/// All sessions of a client.
#[derive(Default)]
pub(crate) struct Pool {
    slots: Mutex<HashMap<Duration, Slot>>,
    /// The shortest session the servers grant, once they were asked for less; in milliseconds.
    shortest: AtomicU64,
}

impl Pool {
    fn slot(&self, ttl: Duration) -> Slot {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(ttl).or_default().clone()
    }

    /// The session for a TTL. Those who come while it is being opened wait for it.
    pub(crate) async fn session(
        &self,
        shared: &Arc<Shared>,
        ttl: Duration,
    ) -> Result<Arc<Session>, Error> {
        let slot = self.slot(ttl);
        let mut slot = slot.lock().await;
        if let Some(session) = slot.as_ref().filter(|s| s.serves(shared.moment())) {
            session.touch(shared.clock.now());
            return Ok(session.clone());
        }
        if let Some(old) = slot.take() {
            old.retire();
        }
        // On the library's own thread: that is where connections live, whoever asks for them.
        let (tx, rx) = oneshot::channel();
        let opening = shared.clone();
        engine::spawn(async move {
            let _ = tx.send(opening.pool.open(&opening, ttl).await);
        });
        let session = rx.await.unwrap_or_else(|_| Err(closed()))?;
        *slot = Some(session.clone());
        Ok(session)
    }

    /// Any session that is open: one that is connected, if there is one.
    pub(crate) fn any(&self) -> Option<Arc<Session>> {
        let slots: Vec<Slot> = {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.values().cloned().collect()
        };
        let open = |slot: &Slot| slot.try_lock().ok()?.clone().filter(|s| !s.is_over());
        let open: Vec<Arc<Session>> = slots.iter().filter_map(open).collect();
        let connected = |s: &&Arc<Session>| s.state().peek_state() == SessionState::SyncConnected;
        open.iter().find(connected).or(open.first()).cloned()
    }

    /// Lets go of a session that nobody uses.
    pub(crate) fn drop_idle(&self, session: &Arc<Session>) -> bool {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = |slot: &Slot| match slot.try_lock() {
            // In use just now.
            Err(_) => None,
            Ok(s) => Some(s.as_ref().is_some_and(|s| Arc::ptr_eq(s, session))),
        };
        let states: Vec<_> = slots.iter().map(|(ttl, slot)| (*ttl, mine(slot))).collect();
        if states.iter().any(|(_, s)| s.is_none()) || !session.is_idle() {
            return false;
        }
        session.retire();
        for (ttl, _) in states.iter().filter(|(_, s)| *s == Some(true)) {
            slots.remove(ttl);
        }
        true
    }

    /// Lets go of all of them.
    pub(crate) fn clear(&self) -> Vec<Arc<Session>> {
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        slots.into_values().filter_map(|slot| slot.try_lock().ok()?.take()).collect()
    }

    /// Opens a session, and looks after it.
    async fn open(&self, shared: &Arc<Shared>, ttl: Duration) -> Result<Arc<Session>, Error> {
        let end = shared.clock.now().plus(OPENING);
        let shortest = Duration::from_millis(self.shortest.load(Ordering::Acquire));
        let least = shared.options.tick.unwrap_or_default() * 4;
        let mut wish = ttl.max(shortest * 2).max(least);
        let (client, asked) = loop {
            let asked = shared.moment();
            let client = connect(shared, wish, end).await?;
            let granted = client.session_timeout();
            if granted <= wish || granted < shortest {
                break (client, asked);
            }
            // The servers' shortest is two of their ticks, and a lease must outlast four.
            self.shortest.store(u64::try_from(granted.as_millis()).unwrap_or(0), Ordering::Release);
            wish = granted * 2;
        };
        let granted = client.session_timeout();
        let raised = Duration::from_millis(self.shortest.load(Ordering::Acquire)) / 2;
        let tick = shared.options.tick.unwrap_or_else(|| shared.options.tick(granted).max(raised));
        let begin = Session::begin(shared, client, asked, tick);
        let session = shared
            .clock
            .timeout(end.since(shared.clock.now()).max(AGAIN), begin)
            .await
            .unwrap_or_else(|| Err(no_session(None, OPENING)))?;
        pacer::start(shared, &session);
        Ok(session)
    }
}

/// A client with a session of its own, within the time there is.
async fn connect(shared: &Shared, ttl: Duration, end: BootInstant) -> Result<Client, Error> {
    let mut last = None;
    loop {
        let left = end.since(shared.clock.now());
        if left.is_zero() {
            break;
        }
        let attempt = connector(shared, ttl).connect(&shared.cluster);
        match shared.clock.timeout(left, attempt).await {
            Some(Ok(client)) => return Ok(client),
            Some(Err(e @ (Zk::AuthFailed | Zk::BadArguments(_)))) => {
                return Err(no_session(Some(e), OPENING));
            }
            Some(Err(e)) => last = Some(e),
            None => break,
        }
        shared.clock.sleep(AGAIN).await;
    }
    // One that has lost the others may still answer questions: worth saying.
    for host in &shared.options.hosts {
        if shared.clock.timeout(ASIDE, is_read_only(host)).await == Some(true) {
            return Err(Error::new(Kind::Refused, "the server is read-only")
                .transient()
                .with_hint(MINORITY));
        }
    }
    Err(no_session(last, OPENING))
}

/// What a server says that was told to serve without the others: any of them may be asked.
async fn is_read_only(host: &Host) -> bool {
    let Host { host, port } = host;
    let Ok(mut stream) = TcpStream::connect((host.as_str(), port.unwrap_or_default())).await else {
        return false;
    };
    let mut answer = [0; 2];
    let asked = stream.write_all(b"isro").await;
    asked.is_ok() && stream.read_exact(&mut answer).await.is_ok() && answer == *b"ro"
}

fn connector(shared: &Shared, ttl: Duration) -> Connector {
    // Detached: what is in line at the end stays until its session ends, as `min_hold` wants it.
    let connector = Client::connector()
        .with_session_timeout(ttl)
        .with_connection_timeout((ttl * 2 / 5).min(SILENCE))
        .with_fail_eagerly()
        .with_detached();
    match &shared.options.login {
        Some((user, password)) => {
            connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes())
        }
        None => connector,
    }
}

fn closed() -> Error {
    Error::new(Kind::Closed, "this client was closed").with_hint("connect again")
}
