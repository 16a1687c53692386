//! The sessions of a client: one a class of TTLs, opened when it is first asked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::url::Host;
use distlock_core::{BootInstant, Error, Kind, Mutex, SingleFlight};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Connector, Error as Zk, SessionState};

use crate::errors::{MINORITY, no_session};
use crate::session::Session;
use crate::session_upkeep;
use crate::store::Shared;

/// How long opening a session may take.
const OPENING: Duration = Duration::from_secs(5);
/// How long each server may take to say that it is read-only.
const ASIDE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(100);
/// A connection that has been silent for this long is made anew, or sooner in a short session.
const SILENCE: Duration = Duration::from_secs(4);

/// The session of one class of TTLs.
#[derive(Default)]
struct Slot {
    session: Mutex<Option<Arc<Session>>>,
    opening: SingleFlight<Result<Arc<Session>, Error>>,
}

impl Slot {
    /// Its session, if new entries may stand in it.
    fn serving(&self, shared: &Shared) -> Option<Arc<Session>> {
        let session = self.session.lock().clone().filter(|s| s.serves(shared.reading()))?;
        session.touch(shared.clock.now());
        Some(session)
    }
}

/// All sessions of a client.
#[derive(Default)]
pub(crate) struct Pool {
    slots: Mutex<HashMap<Duration, Arc<Slot>>>,
    /// The shortest session the servers grant, once they were asked for less; in milliseconds.
    shortest: AtomicU64,
    /// The longest, once they were asked for more; in milliseconds, zero before.
    longest: AtomicU64,
}

impl Pool {
    /// The session for a TTL. Calls that come while it is being opened share that: it goes on when
    /// the call that began it is dropped, and the session is there for the next.
    pub(crate) async fn session(
        &self,
        shared: &Arc<Shared>,
        ttl: Duration,
    ) -> Result<Arc<Session>, Error> {
        let ttl = self.class(ttl);
        let slot = self.slots.lock().entry(ttl).or_default().clone();
        if let Some(session) = slot.serving(shared) {
            return Ok(session);
        }
        let (shared, at) = (shared.clone(), slot.clone());
        let opened = slot.opening.join(|| async move {
            if let Some(session) = at.serving(&shared) {
                return Ok(session);
            }
            if let Some(old) = at.session.lock().take() {
                old.retire();
            }
            let session = shared.pool.open(&shared, ttl).await?;
            *at.session.lock() = Some(session.clone());
            if shared.is_closed() {
                session.end();
                return Err(closed());
            }
            Ok(session)
        });
        opened.await.unwrap_or_else(|| Err(closed()))
    }

    /// The TTL of the session that entries of a TTL stand in: never shorter, unless the servers
    /// grant no longer one. A session for each TTL that differs by a millisecond would be a
    /// connection and a dozen writes in every TTL for each.
    fn class(&self, ttl: Duration) -> Duration {
        let ttl = rounded(ttl);
        match self.longest.load(Ordering::Acquire) {
            0 => ttl,
            longest => ttl.min(Duration::from_millis(longest)),
        }
    }

    /// Any session that is open: one that is connected, if there is one.
    pub(crate) fn any(&self) -> Option<Arc<Session>> {
        let open = |slot: &Arc<Slot>| slot.session.lock().clone().filter(|s| !s.is_over());
        let open: Vec<Arc<Session>> = self.slots.lock().values().filter_map(open).collect();
        let connected = |s: &&Arc<Session>| s.state().peek_state() == SessionState::SyncConnected;
        open.iter().find(connected).or(open.first()).cloned()
    }

    /// Lets go of a session that nobody uses.
    pub(crate) fn drop_idle(&self, session: &Arc<Session>) -> bool {
        let mut slots = self.slots.lock();
        if !session.is_idle() {
            return false;
        }
        session.retire();
        let mine =
            |slot: &Slot| slot.session.lock().as_ref().is_some_and(|s| Arc::ptr_eq(s, session));
        slots.retain(|_, slot| !mine(slot));
        true
    }

    /// Lets go of all of them.
    pub(crate) fn clear(&self) -> Vec<Arc<Session>> {
        let slots = std::mem::take(&mut *self.slots.lock());
        slots.into_values().filter_map(|slot| slot.session.lock().take()).collect()
    }

    /// Opens a session, and looks after it.
    async fn open(&self, shared: &Arc<Shared>, ttl: Duration) -> Result<Arc<Session>, Error> {
        let end = shared.clock.now().plus(OPENING);
        let shortest = Duration::from_millis(self.shortest.load(Ordering::Acquire));
        let least = shared.options.tick.unwrap_or_default() * 4;
        let mut wish = ttl.max(shortest * 2).max(least);
        let (client, asked) = loop {
            let asked = shared.reading();
            let client = connect(shared, wish, end).await?;
            let granted = client.session_timeout();
            if granted < wish {
                let longest = u64::try_from(granted.as_millis()).unwrap_or(0);
                self.longest.store(longest, Ordering::Release);
            }
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
        let left = end.since(shared.clock.now()).max(AGAIN);
        let session = shared.clock.timeout(left, begin).await;
        let session = session.unwrap_or_else(|| Err(no_session(None, OPENING)))?;
        session_upkeep::start(shared, &session);
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
    // Detached: what is in the queue at the end stays until its session ends, as `min_hold` wants it.
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

/// A TTL rounded up to a few in each power of ten: 1, 1.25, 1.5, 1.75, 2, 2.5, … 5, 6, … 10.
fn rounded(ttl: Duration) -> Duration {
    let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX / 2).max(1);
    let unit = 10_u64.pow(ms.ilog10());
    let step = match ms / unit {
        1 => unit / 4,
        2..=4 => unit / 2,
        _ => unit,
    };
    Duration::from_millis(ms.next_multiple_of(step.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_that_differ_little_are_one_class() {
        let class = |ms| rounded(Duration::from_millis(ms)).as_millis();
        for whole in [1000, 1500, 2000, 2500, 4000, 8000, 10_000, 15_000, 30_000, 40_000, 600_000] {
            assert_eq!(class(whole), u128::from(whole));
        }
        assert_eq!(
            [class(9001), class(9999), class(10_001), class(1)],
            [10_000, 10_000, 12_500, 1]
        );
        let all: std::collections::BTreeSet<_> = (1000..40_000).map(class).collect();
        assert!(all.len() < 30, "{all:?}");
        assert!(
            (1000..40_000).all(|ms| (u128::from(ms)..=u128::from(ms) * 5 / 4).contains(&class(ms)))
        );
    }
}
