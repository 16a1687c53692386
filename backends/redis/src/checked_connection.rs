//! A connection after login and the server checks, with the facts read from that server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{Clock, Error, Mutex};
use tokio::sync::Semaphore;

use crate::address::Address;
use crate::batcher::Batcher;
use crate::connection::{Connection, Fault, Hears};
use crate::options::RedisOptions;
use crate::quarantine::{self, Agreed, Quarantine};
use crate::reconnect::{LEFT, Shared};
use crate::replicas::Asked;
use crate::script_calls::ALL_COUNTED;
use crate::server_info::{Facts, SECTIONS};

const ROOM: usize = 128;

/// How a connection is entered.
pub(crate) struct Terms<'a> {
    pub(crate) shared: &'a Shared,
    /// The pub/sub channel this connection subscribes to.
    pub(crate) via: &'a str,
    /// The key of the quarantine's marker.
    pub(crate) marker: Option<String>,
    pub(crate) cluster: bool,
    /// Sentinels say where the primary is.
    pub(crate) watched: bool,
    pub(crate) hears: Hears,
}

/// Counts connections.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// An entered connection.
pub(crate) struct CheckedConnection {
    pub(crate) wire: Connection,
    pub(crate) address: Address,
    /// Where it can be told things.
    pub(crate) via: String,
    /// Whether nobody listens when PUBLISH says so. Each connection has a channel of its own at its
    /// own server; but in a cluster a slot may have moved, and its waiters listen at the server
    /// where they joined, which PUBLISH does not count, until their next heartbeat.
    pub(crate) counted: String,
    /// How many may ask for locks at once: a call under way is larger than a waiter, and ten
    /// thousand who begin to wait together should not cost ten thousand of them.
    pub(crate) room: Semaphore,
    /// Acquires and releases of many tasks in few calls; not in a cluster.
    pub(crate) acquires: Batcher,
    pub(crate) releases: Batcher,
    /// What its replicas were last asked.
    pub(crate) asked: Asked,
    /// Another one for each connection.
    pub(crate) number: u64,
    /// The longest TTL here.
    pub(crate) agreed: Agreed,
    facts: Facts,
    /// The key of the quarantine's marker.
    marker: Option<String>,
    /// What a quarantine lasts beyond the longest TTL.
    slack: Duration,
    quarantine: Mutex<Option<Quarantine>>,
}

impl CheckedConnection {
    /// Connects, asks the server what it is, and subscribes. To be called on the library's thread.
    pub(crate) async fn open(address: &Address, terms: Terms<'_>) -> Result<Self, Error> {
        let Terms { shared, via, marker, cluster, watched, hears } = terms;
        let Shared { credentials, options, clock, .. } = shared;
        let at = |e: Error| e.store(format!("redis at {address}"));
        let wire =
            Connection::open(address, credentials, clock, options.timeout, Some(hears)).await?;
        let mut facts = facts(&wire).await.map_err(at)?;
        facts.judge(cluster).map_err(at)?;
        if options.quarantine {
            facts.names_its_run().map_err(at)?;
        }
        facts.durable = facts.may_be_durable() && always_synced(&wire).await;
        // Until they have all left, clients may be granted locks by the primary before this one.
        let before = if watched && facts.promoted() { LEFT } else { Duration::ZERO };
        let slack = options.slack + before;
        let quarantine =
            judge(&wire, marker.as_deref(), &facts, options, slack, clock).await.map_err(at)?;
        let quarantine = Mutex::new(quarantine);
        let agreed = Agreed {
            marker: marker.clone().filter(|_| !cluster),
            max_ttl: options.max_ttl,
            keep: options.keep,
        };
        let (via, counted) = match cluster {
            true => (format!("{via}:{}", facts.home()), facts.home().to_owned()),
            false => (via.to_owned(), ALL_COUNTED.to_owned()),
        };
        wire.subscribe(&via).await.map_err(|fault| at(fault.told()))?;
        Ok(Self {
            wire,
            address: address.clone(),
            via,
            counted,
            room: Semaphore::new(ROOM),
            acquires: Batcher::default(),
            releases: Batcher::default(),
            asked: Asked::default(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            agreed,
            facts,
            marker,
            slack,
            quarantine,
        })
    }

    /// Which run of which server this is: no two servers have the same.
    pub(crate) fn run(&self) -> &str {
        &self.facts.run
    }

    /// How long nothing may be granted here, and why.
    pub(crate) fn quarantined(&self, clock: &Clock) -> Option<(Duration, String)> {
        let quarantine = self.quarantine.lock();
        quarantine.as_ref().and_then(|q| q.left(clock))
    }

    /// Agrees again on the longest TTL, and puts off the end of the marker that says so: it must
    /// live as long as anybody works here. Where somebody deleted it, it is written anew, and what
    /// that says of the quarantine holds from now on.
    ///
    /// # Errors
    /// [`Kind::Refused`](distlock_core::Kind::Refused) when the clients agreed on another one
    /// meanwhile.
    pub(crate) async fn agree(&self, options: &RedisOptions, clock: &Clock) -> Result<(), Error> {
        let marker = self.marker.as_deref();
        let judged = judge(&self.wire, marker, &self.facts, options, self.slack, clock);
        let quarantine = match judged.await {
            Ok(quarantine) => quarantine,
            // Nobody else has written another one either.
            Err(e) if e.is_transient() => return Ok(()),
            Err(e) => return Err(e),
        };
        *self.quarantine.lock() = quarantine;
        Ok(())
    }

    /// Whether the server is still the one that was entered.
    pub(crate) async fn is_current(&self) -> bool {
        let now = facts(&self.wire).await;
        now.is_ok_and(|now| {
            now.judge(true).or(now.judge(false)).is_ok() && now.same_life(&self.facts)
        })
    }
}

/// Agrees on the longest TTL, and says whether locks may have been lost here: by the marker, or,
/// where a marker's slot is not to be had, by what the server says of itself.
async fn judge(
    wire: &Connection,
    marker: Option<&str>,
    facts: &Facts,
    options: &RedisOptions,
    slack: Duration,
    clock: &Clock,
) -> Result<Option<Quarantine>, Error> {
    let max_ttl = options.max_ttl;
    let unmarked = || quarantine::unmarked(facts, max_ttl + slack, clock);
    let quarantine = match marker {
        None => unmarked(),
        Some(marker) => {
            match wire.run(&quarantine::ask(marker, facts, max_ttl, slack), false).await {
                Ok(answer) => quarantine::read(answer, marker, facts, max_ttl, clock)?,
                Err(fault) if matches!(fault.code(), "MOVED" | "ASK" | "TRYAGAIN") => unmarked(),
                // Connecting without the marker: no script that grants runs there either.
                Err(fault) if !options.quarantine && refuses_writes(&fault) => unmarked(),
                Err(fault) => return Err(fault.told()),
            }
        }
    };
    // Without a quarantine too all agree on the longest TTL: the others' quarantine counts on it.
    Ok(Some(quarantine).filter(|_| options.quarantine))
}

/// Whether the server takes no writes for now.
fn refuses_writes(fault: &Fault) -> bool {
    matches!(fault.code(), "MISCONF" | "NOREPLICAS")
}

async fn facts(wire: &Connection) -> Result<Facts, Error> {
    let mut info = redis::cmd("INFO");
    info.arg(&SECTIONS);
    let answer = wire.send(&info).await.map_err(|fault| fault.told())?;
    let text: String =
        redis::from_redis_value(answer).map_err(|e| Fault::Redis(e.into()).told())?;
    Facts::read(&text)
}

/// Whether every write is on disk before it is answered. Where nobody may ask, it is not.
async fn always_synced(wire: &Connection) -> bool {
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg("appendfsync");
    let Ok(answer) = wire.send(&ask).await else { return false };
    let pairs: Vec<(String, String)> = redis::from_redis_value(answer).unwrap_or_default();
    pairs.iter().any(|(_, value)| value == "always")
}
