//! Where the primary is: at a fixed address, or wherever the sentinels say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Kind};
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::address::{Address, Entry};
use crate::wire::{Hears, Wire};

/// How long sentinels may still answer once a majority has.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// How long the word of a sentinel goes before older ones of others. Not for ever: who watches the
/// service anew counts failovers anew.
const REMEMBERED: Duration = Duration::from_secs(30);

/// The channel on which a sentinel says that a primary has moved.
const SWITCHED: &str = "+switch-master";

/// Where the primary is.
pub(crate) enum PrimaryAddress {
    Fixed(Address),
    /// Sentinels know.
    Watched(Arc<Watched>),
}

/// A primary that sentinels watch.
pub(crate) struct Watched {
    name: String,
    sentinels: Vec<Address>,
    /// How the sentinels are entered.
    entry: Entry,
    /// The latest failover that any sentinel told of, and when it did.
    latest: Mutex<Option<(Word, BootInstant)>>,
}

/// What one sentinel says.
#[derive(Clone)]
struct Word {
    /// Counts failovers: the highest is the latest.
    epoch: u64,
    address: Address,
}

impl Watched {
    pub(crate) fn new(name: String, sentinels: Vec<Address>, entry: Entry) -> Self {
        Self { name, sentinels, entry, latest: Mutex::default() }
    }

    /// Takes in what a sentinel says; where the primary is by the latest failover known. A sentinel
    /// that answers after another may know less.
    fn learn(&self, word: Word, now: BootInstant) -> Address {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.take_if(|(_, heard)| now.since(*heard) > REMEMBERED);
        let (word, heard) = match latest.take() {
            Some((known, heard)) if known.epoch > word.epoch => (known, heard),
            _ => (word, now),
        };
        let address = word.address.clone();
        *latest = Some((word, heard));
        address
    }

    /// A connection to one of the sentinels that rings whenever it says that a primary has moved, and
    /// when it ends.
    pub(crate) async fn listen(
        &self,
        turn: usize,
        clock: &Clock,
        timeout: Duration,
        bell: Arc<Notify>,
    ) -> Result<Wire, Error> {
        let address = &self.sentinels[turn % self.sentinels.len()];
        let hears: Hears = Arc::new(move |_| bell.notify_one());
        let wire = Wire::open(address, &self.entry, clock, timeout, Some(hears)).await?;
        wire.subscribe(SWITCHED).await.map_err(|fault| fault.told())?;
        Ok(wire)
    }

    /// Where the primary is, with what the sentinel at the other end of a connection says now.
    pub(crate) async fn named(&self, wire: &Wire, clock: &Clock) -> Option<Address> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("MASTER").arg(&self.name);
        let word = word(wire.send(&cmd).await.ok()?)?;
        Some(self.learn(word, clock.now()))
    }
}

impl PrimaryAddress {
    /// Finds it. To be called on the library's thread.
    pub(crate) async fn find(&self, clock: &Clock, timeout: Duration) -> Result<Address, Error> {
        match self {
            Self::Fixed(address) => Ok(address.clone()),
            Self::Watched(watched) => find(watched, clock, timeout).await,
        }
    }
}

/// Asks every sentinel and believes the one that saw the latest failover: one that was cut off
/// would name a primary that is none any more.
async fn find(watched: &Arc<Watched>, clock: &Clock, timeout: Duration) -> Result<Address, Error> {
    let mut asking = JoinSet::new();
    for i in 0..watched.sentinels.len() {
        let (watched, clock) = (watched.clone(), clock.clone());
        #[allow(clippy::disallowed_methods)] // ends with this function, on the library's thread
        asking.spawn(async move { ask(&watched, i, &clock, timeout).await });
    }
    let (mut latest, mut words, mut strangers, mut trouble) = (None::<Word>, 0, 0, None);
    let mut wait = timeout;
    while let Some(Some(answer)) = clock.timeout(wait, asking.join_next()).await {
        match answer {
            Ok(Ok(Some(word))) => {
                words += 1;
                if latest.as_ref().is_none_or(|l| word.epoch > l.epoch) {
                    latest = Some(word);
                }
            }
            Ok(Ok(None)) => strangers += 1,
            Ok(Err(e)) => trouble = Some(e),
            Err(_) => {}
        }
        // A majority elects, so one of it knows: no need to wait long for the silent ones.
        if 2 * words > watched.sentinels.len() {
            wait = STRAGGLERS;
        }
    }
    if let Some(word) = latest {
        return Ok(watched.learn(word, clock.now()));
    }
    let names: Vec<String> = watched.sentinels.iter().map(ToString::to_string).collect();
    let site = format!("sentinels {}", names.join(", "));
    if strangers > 0 {
        return Err(Error::new(
            Kind::Usage,
            format!("the sentinels watch no primary called {:?}", watched.name),
        )
        .store(site)
        .with_hint("the URL's path is its name: redis+sentinel://host:26379/mymaster"));
    }
    let e = Error::new(Kind::Unreachable, "no sentinel answers").store(site);
    let e = e.with_hint("see whether the sentinels run; their usual port is 26379");
    Err(match trouble {
        Some(why) if why.kind() == Kind::Credentials => why.with_hint(
            "these are the sentinels, which have a password of their own: ?sentinel_password=…; \
             the login before the hosts is that of the redis servers",
        ),
        Some(why) => e.because(why),
        None => e,
    })
}

async fn ask(
    watched: &Watched,
    i: usize,
    clock: &Clock,
    timeout: Duration,
) -> Result<Option<Word>, Error> {
    let address = &watched.sentinels[i];
    // Half the time: one that does not answer must leave time for the primary itself.
    let wire = Wire::open(address, &watched.entry, clock, timeout / 2, None).await?;
    let mut cmd = redis::cmd("SENTINEL");
    cmd.arg("MASTER").arg(&watched.name);
    match wire.send(&cmd).await {
        Ok(answer) => Ok(word(answer)),
        Err(fault) if fault.told().message().contains("No such master") => Ok(None),
        Err(fault) => Err(fault.told().store(format!("sentinel at {address}"))),
    }
}

fn word(answer: Value) -> Option<Word> {
    let pairs: Vec<(String, String)> = redis::from_redis_value(answer).ok()?;
    let get = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let (host, port) = (get("ip")?.to_owned(), get("port")?.parse().ok()?);
    let epoch = get("config-epoch").and_then(|e| e.parse().ok()).unwrap_or(0);
    Some(Word { epoch, address: Address::Tcp { host, port } })
}
