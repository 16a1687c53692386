//! Where the primary is: at a fixed address, or wherever the sentinels say.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Kind, Mutex};
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::address::{Address, Credentials};
use crate::connection::{Connection, Fault, Hears};

/// How long sentinels may still answer once a majority has.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// How long the highest failover epoch seen overrides lower ones. Not for ever: a sentinel set up
/// anew restarts its epochs.
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
    credentials: Credentials,
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
    pub(crate) fn new(name: String, sentinels: Vec<Address>, credentials: Credentials) -> Self {
        Self { name, sentinels, credentials, latest: Mutex::default() }
    }

    /// Takes in what a sentinel says; where the primary is by the latest failover known. A sentinel
    /// that answers after another may know less.
    fn learn(&self, word: Word, now: BootInstant) -> Address {
        let mut latest = self.latest.lock();
        latest.take_if(|(_, heard)| now.since(*heard) > REMEMBERED);
        let (word, heard) = match latest.take() {
            Some((known, heard)) if known.epoch > word.epoch => (known, heard),
            _ => (word, now),
        };
        let address = word.address.clone();
        *latest = Some((word, heard));
        address
    }

    /// A connection to one of the sentinels that notifies `moved` whenever a primary has moved, and when
    /// it ends.
    pub(crate) async fn listen(
        &self,
        turn: usize,
        clock: &Clock,
        timeout: Duration,
        moved: Arc<Notify>,
    ) -> Result<Connection, Error> {
        let address = &self.sentinels[turn % self.sentinels.len()];
        let hears: Hears = Arc::new(move |_| moved.notify_one());
        let wire =
            Connection::open(address, &self.credentials, clock, timeout, Some(hears)).await?;
        wire.subscribe(SWITCHED).await.map_err(|fault| fault.told())?;
        Ok(wire)
    }

    /// Where the primary is, with what the sentinel at the other end of a connection says now.
    pub(crate) async fn named(&self, wire: &Connection, clock: &Clock) -> Option<Address> {
        let word = self.word(wire).await.ok()??;
        Some(self.learn(word, clock.now()))
    }

    /// What the sentinel at the other end of a connection says; `None` when it names no primary.
    ///
    /// `SENTINEL MASTER` alone is not enough: while the leader of a failover moves the replicas, it
    /// answers with the new epoch and the old address. The epoch is read first, so that it is never
    /// newer than the address.
    async fn word(&self, wire: &Connection) -> Result<Option<Word>, Fault> {
        let ask = async |what| wire.send(redis::cmd("SENTINEL").arg(what).arg(&self.name)).await;
        let Some(epoch) = config_epoch(ask("MASTER").await?) else { return Ok(None) };
        let address = address(ask("GET-MASTER-ADDR-BY-NAME").await?);
        Ok(address.map(|address| Word { epoch, address }))
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

/// Asks servers side by side, and waits for each next answer for at most `timeout`: one that is silent
/// must not keep back what the others say. A majority elects, so one of it knows: once as many have said
/// something that `counts`, each next answer has little time left. To be called on the library's thread.
pub(crate) async fn ask_all<T: Send + 'static>(
    questions: impl Iterator<Item = impl Future<Output = Result<T, Error>> + Send + 'static>,
    clock: &Clock,
    timeout: Duration,
    counts: impl Fn(&T) -> bool,
) -> Vec<Result<T, Error>> {
    #[allow(clippy::disallowed_methods)] // ends with this function, on the library's thread
    let mut asking: JoinSet<_> = questions.collect();
    let (asked, mut counted, mut wait, mut answers) = (asking.len(), 0, timeout, Vec::new());
    while let Some(Some(ended)) = clock.timeout(wait, asking.join_next()).await {
        // A task that panicked has no answer.
        let Ok(answer) = ended else { continue };
        counted += usize::from(answer.as_ref().is_ok_and(&counts));
        answers.push(answer);
        if 2 * counted > asked {
            wait = STRAGGLERS;
        }
    }
    answers
}

/// Asks every sentinel and believes the one that saw the latest failover: one that was cut off
/// would name a primary that is none any more.
async fn find(watched: &Arc<Watched>, clock: &Clock, timeout: Duration) -> Result<Address, Error> {
    let sentinels = 0..watched.sentinels.len();
    let asking = sentinels.map(|i| {
        let (watched, clock) = (watched.clone(), clock.clone());
        async move { ask(&watched, i, &clock, timeout).await }
    });
    let (mut latest, mut strangers, mut trouble) = (None::<Word>, 0, None);
    for answer in ask_all(asking, clock, timeout, Option::is_some).await {
        match answer {
            Ok(Some(word)) if latest.as_ref().is_some_and(|l| word.epoch <= l.epoch) => {}
            Ok(Some(word)) => latest = Some(word),
            Ok(None) => strangers += 1,
            Err(e) => trouble = Some(e),
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
    let wire = Connection::open(address, &watched.credentials, clock, timeout / 2, None).await?;
    match watched.word(&wire).await {
        Ok(word) => Ok(word),
        Err(fault) if fault.told().message().contains("No such master") => Ok(None),
        Err(fault) => Err(fault.told().store(format!("sentinel at {address}"))),
    }
}

/// Counts the failovers that a sentinel knows of, by its answer to `SENTINEL MASTER`.
fn config_epoch(answer: Value) -> Option<u64> {
    let pairs: Vec<(String, String)> = redis::from_redis_value(answer).ok()?;
    let epoch = pairs.into_iter().find(|(key, _)| key == "config-epoch");
    Some(epoch.and_then(|(_, epoch)| epoch.parse().ok()).unwrap_or(0))
}

/// The answer to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn address(answer: Value) -> Option<Address> {
    let (host, port): (String, u16) = redis::from_redis_value(answer).ok()?;
    Some(Address::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_is_counted_once_though_another_task_panics() {
        let clock = Clock::system();
        let questions = (0..3).map(|i| {
            let clock = clock.clone();
            async move {
                clock.sleep(STRAGGLERS * 2 * i).await;
                if i == 1 {
                    // Without the panic hook, which takes time to print a backtrace.
                    std::panic::resume_unwind(Box::new("a task that panics"));
                }
                Ok(i)
            }
        });
        let timeout = Duration::from_secs(60);
        let answers = ask_all(questions, &clock, timeout, |_| true).await;
        let told: Vec<u32> = answers.into_iter().flatten().collect();
        assert_eq!(told, [0, 2], "one of three is no majority: the last has all its time");
    }
}
