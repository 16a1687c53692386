//! One run: client processes at a store, what is done to them, and what they write down.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::backend::{BootInstant, Clock};
use distlock::capability::{Family, Survives};
use distlock::{Error, Token};
use distlock_testkit::history::Recorder;
use distlock_testkit::{Child, ProxiedRoute, Resource};

use crate::client::{Client, PATIENCE, Pending};
use crate::dice::Dice;
use crate::place::Place;
use crate::progress::Progress;
use crate::role;
use crate::stores::Group;
use distlock_lab::record::{Fault, Violation};

/// Why a story could not be told to its end.
#[derive(Debug)]
pub(crate) struct Trouble(pub(crate) String);

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        let hint = e.hint().map(|h| format!(" ({h})")).unwrap_or_default();
        Self(format!("{e}{hint}"))
    }
}

impl From<String> for Trouble {
    fn from(said: String) -> Self {
        Self(said)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(e: std::io::Error) -> Self {
        Self(e.to_string())
    }
}

/// How a story ends: what happened, in a sentence.
pub(crate) type Told = Result<String, Trouble>;

/// How much there is to sell at first.
const STOCK: i64 = 40;

/// What is done to servers, as the record calls it.
pub(crate) const SERVER_KILLED: &str = "server killed";
pub(crate) const SERVER_RESTARTED: &str = "server restarted";
pub(crate) const SERVER_PAUSED: &str = "server paused";
pub(crate) const FAILOVER: &str = "failover";
pub(crate) const CLOCK_FORWARD: &str = "clock forward";
pub(crate) const CLOCK_BACK: &str = "clock back";
/// And to the roads that end with broken connections.
pub(crate) const CUT: &str = "cut";
pub(crate) const LOST_ANSWERS: &str = "lost answers";
pub(crate) const RESET: &str = "reset";

/// When two holders are possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permit {
    /// From the fault on, until a TTL after it.
    Whole,
    /// For a moment when it is over.
    AtItsEnd,
}

/// Locks of different runs at one store never have the same name.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// The stage of one run.
pub(crate) struct Scene {
    pub(crate) place: Rc<Place>,
    pub(crate) clients: Vec<Client>,
    /// Every process that was started, and which client it was.
    pub(crate) pids: Vec<(u32, usize)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) found: Vec<Violation>,
    pub(crate) locks: Vec<String>,
    pub(crate) start: BootInstant,
    pub(crate) ttl: Duration,
    pub(crate) progress: Progress,
    /// Nobody planned this run by hand: two holders are no surprise where the store says that they are
    /// possible.
    pub(crate) unplanned: bool,
    run: u32,
    dir: tempfile::TempDir,
    notes: Recorder,
}

impl Scene {
    /// An empty stage at a store.
    pub(crate) fn new(
        place: Rc<Place>,
        ttl: Duration,
        progress: Progress,
    ) -> Result<Self, Trouble> {
        let dir = tempfile::Builder::new().prefix("run-").tempdir_in(place.dir.path())?;
        for part in ["histories", "resources"] {
            std::fs::create_dir(dir.path().join(part))?;
        }
        let notes = Recorder::create(&dir.path().join("histories").join("lab"))?;
        Ok(Self {
            ttl: place.ttl(ttl),
            place,
            clients: Vec::new(),
            pids: Vec::new(),
            faults: Vec::new(),
            found: Vec::new(),
            locks: Vec::new(),
            start: Clock::system().now(),
            progress,
            unplanned: false,
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            dir,
            notes,
        })
    }

    pub(crate) fn histories(&self) -> PathBuf {
        self.dir.path().join("histories")
    }

    pub(crate) fn resources(&self) -> PathBuf {
        self.dir.path().join("resources")
    }

    /// What a lock protects, by the name of the resource.
    pub(crate) fn resource(&self, lock: &str, kind: &str) -> Resource {
        Resource::at(self.resources().join(format!("{lock}.{kind}")))
    }

    /// Nanoseconds since the run began.
    pub(crate) fn now(&self) -> u64 {
        Clock::system().now().as_nanos().saturating_sub(self.start.as_nanos())
    }

    /// A lock of this run.
    pub(crate) fn lock(&mut self, name: &str) -> String {
        let name = format!("{name}.{}.{}", std::process::id(), self.run);
        self.locks.push(name.clone());
        name
    }

    /// So many clients, each in a process of its own, by the shortest way.
    pub(crate) async fn clients(&mut self, n: usize) -> Result<(), Trouble> {
        for _ in 0..n {
            self.client(None, None).await?;
        }
        self.all_ready(n).await;
        Ok(())
    }

    /// So many clients, each by a road of its own, where there are roads.
    pub(crate) async fn clients_by_road(&mut self, n: usize) -> Result<(), Trouble> {
        for _ in 0..n {
            let road = self.place.clone().road().await?;
            self.client(road, None).await?;
        }
        self.all_ready(n).await;
        Ok(())
    }

    async fn all_ready(&mut self, n: usize) {
        let first = self.clients.len() - n;
        for client in &mut self.clients[first..] {
            client.ready().await;
        }
    }

    /// Starts one more client; it is not ready yet.
    pub(crate) async fn client(
        &mut self,
        road: Option<ProxiedRoute>,
        url: Option<&str>,
    ) -> Result<usize, Trouble> {
        let index = self.clients.len();
        let name = client_name(index);
        let child = self.process(road.as_ref().map(ProxiedRoute::url).or(url));
        self.pids.push((child.pid(), index));
        self.clients.push(Client::new(name, child, road));
        Ok(index)
    }

    fn process(&self, url: Option<&str>) -> Child {
        let history = self.histories().join(self.pids.len().to_string());
        let (history, resources) = (path(history), path(self.resources()));
        let url = url.unwrap_or(self.place.url());
        let args = [("url", url), ("history", &history), ("resources", &resources)];
        Child::start(role::NAME, &args)
    }

    // What clients do.

    fn take_line(&self, verb: &str, lock: &str, renew: bool, patience: Option<Duration>) -> String {
        let renew = if renew { "renew" } else { "once" };
        let patience = patience.map_or("-".to_owned(), |d| d.as_millis().to_string());
        format!("{verb} {lock} {} {renew} {patience}", self.ttl.as_millis())
    }

    /// A client asks for a lock and will wait for it.
    pub(crate) async fn asks(&mut self, who: usize, lock: &str) -> Pending {
        let line = self.take_line(&format!("take {lock}"), lock, true, None);
        self.clients[who].begin(&line).await
    }

    /// The lock that a client asked for is granted; its token.
    pub(crate) async fn granted(&mut self, who: usize, asked: Pending) -> Result<u64, Trouble> {
        let said = self.clients[who].answer(asked).await;
        let token = said.strip_prefix("granted ").and_then(|t| t.parse().ok());
        let name = &self.clients[who].name;
        token
            .inspect(|_| self.progress.grant())
            .ok_or_else(|| Trouble(format!("client {name} asked for a lock and was told: {said}")))
    }

    /// C6: the lock that a client asked for is granted soon, now that nothing is in the way.
    pub(crate) async fn is_served(
        &mut self,
        who: usize,
        asked: Pending,
        within: Duration,
    ) -> Option<u64> {
        let granted = Clock::system().timeout(within, self.granted(who, asked)).await;
        match granted {
            Some(Ok(token)) => return Some(token),
            Some(Err(Trouble(why))) => self.finds("C6", why),
            None => {
                let name = &self.clients[who].name;
                let what = format!("client {name} was not served within {within:?}");
                self.finds("C6", what);
            }
        }
        None
    }

    /// C6: a client asks again and again, as one does after an error, until it is served.
    pub(crate) async fn insists(&mut self, who: usize, lock: &str) -> bool {
        let (line, within) =
            (self.take_line(&format!("take {lock}"), lock, true, None), self.soon());
        let served = self.gets(who, &line, within).await.is_ok();
        if !served {
            let name = &self.clients[who].name;
            let what = format!("client {name} was not served within {within:?}");
            self.finds("C6", what);
        }
        served
    }

    /// A client takes a lock with another TTL, in seconds, that nobody renews.
    pub(crate) async fn takes_for(
        &mut self,
        who: usize,
        lock: &str,
        seconds: u64,
    ) -> Result<u64, Trouble> {
        let line = format!("take {lock} {lock} {} once -", seconds * 1000);
        self.gets(who, &line, PATIENCE).await
    }

    /// A client takes a lock, however long it has to wait.
    pub(crate) async fn takes(&mut self, who: usize, lock: &str) -> Result<u64, Trouble> {
        let line = self.take_line(&format!("take {lock}"), lock, true, None);
        self.gets(who, &line, PATIENCE).await
    }

    /// A client takes a lock that nobody renews.
    pub(crate) async fn takes_once(&mut self, who: usize, lock: &str) -> Result<u64, Trouble> {
        let line = self.take_line(&format!("take {lock}"), lock, false, None);
        self.gets(who, &line, PATIENCE).await
    }

    /// A client asks until it is granted what it asks for. A store that stood still for a moment
    /// lets a first question fail, and one asks again then.
    async fn gets(&mut self, who: usize, line: &str, within: Duration) -> Result<u64, Trouble> {
        let clock = Clock::system();
        let end = clock.now().plus(within);
        loop {
            let asked = self.clients[who].begin(line).await;
            match clock.timeout(within, self.granted(who, asked)).await {
                Some(Err(_)) if clock.now() < end => clock.sleep(Duration::from_millis(50)).await,
                Some(told) => return told,
                None => return Err(Trouble(format!("no answer to {line:?} within {within:?}"))),
            }
        }
    }

    /// A client tries a lock for a while; whether it got it, and what it was told.
    pub(crate) async fn tries(
        &mut self,
        who: usize,
        lock: &str,
        patience: Duration,
    ) -> (bool, String) {
        let line = self.take_line(&format!("take {lock}"), lock, true, Some(patience));
        let said = self.clients[who].ask(&line).await;
        (said.starts_with("granted"), said)
    }

    /// The holder enters its lock again.
    pub(crate) async fn enters(&mut self, who: usize, lock: &str) -> Result<u64, Trouble> {
        let line = self.take_line(&format!("enter {lock} {lock}#2"), lock, true, None);
        let asked = self.clients[who].begin(&line).await;
        self.granted(who, asked).await
    }

    /// A client gives a lock back; what it was told.
    pub(crate) async fn releases(&mut self, who: usize, lock: &str) -> String {
        self.clients[who].ask(&format!("release {lock}")).await
    }

    /// A client looks at its lock.
    pub(crate) async fn believes(&mut self, who: usize, lock: &str) -> bool {
        self.clients[who].ask(&format!("look {lock}")).await == "valid"
    }

    /// A client reads what a lock protects, sees that its lock is valid, and is about to write.
    pub(crate) async fn is_about_to_write(
        &mut self,
        who: usize,
        lock: &str,
        fenced: bool,
        work: Duration,
    ) -> Result<Pending, Trouble> {
        let (kind, how) = if fenced { ("counter", "fenced") } else { ("unfenced", "plain") };
        let line = format!("update {lock} {lock}.{kind} {how} {}", work.as_millis());
        let pending = self.clients[who].begin(&line).await;
        match self.clients[who].answer(pending).await.as_str() {
            "looked" => Ok(pending),
            other => Err(Trouble(format!("client {who} could not begin to write: {other}"))),
        }
    }

    /// The write has been tried; whether it was let in.
    pub(crate) async fn wrote(&mut self, who: usize, write: Pending) -> bool {
        self.clients[who].answer(write).await.starts_with("taken")
    }

    /// Everybody works at random on these locks from now on.
    pub(crate) async fn work(
        &mut self,
        seed: u64,
        locks: &[String],
    ) -> Result<Vec<Pending>, Trouble> {
        for lock in locks {
            // Something to be sold.
            let first = Token::MIN;
            self.resource(lock, "stock").put("lab", first, false, STOCK)?;
        }
        let mut works = Vec::new();
        for who in 0..self.clients.len() {
            works.push(self.works(who, seed, locks).await);
        }
        Ok(works)
    }

    /// One works at random on these locks from now on.
    pub(crate) async fn works(&mut self, who: usize, seed: u64, locks: &[String]) -> Pending {
        let seed = Dice::of(seed, &format!("client {who}")).next();
        let line = format!("work {seed} {} {}", self.ttl.as_millis(), locks.join(","));
        self.clients[who].begin(&line).await
    }

    /// C6: now that nothing is wrong any more, everybody who works is served at every lock.
    pub(crate) async fn everybody_is_served(&mut self, works: &[Pending]) {
        let within = self.soon();
        for client in &mut self.clients {
            client.begin("serve").await;
        }
        let end = Clock::system().now().plus(within);
        for (who, work) in works.iter().enumerate() {
            let left = end.since(Clock::system().now()).max(Duration::from_millis(1));
            let answer = self.clients[who].answer(*work);
            if Clock::system().timeout(left, answer).await.as_deref() != Some("served") {
                let name = self.clients[who].name.clone();
                self.finds("C6", format!("client {name} was not served within {within:?}"));
            }
        }
    }

    /// Everybody who works stops.
    pub(crate) async fn stops(&mut self, works: Vec<Pending>) {
        for (who, work) in works.into_iter().enumerate() {
            self.clients[who].begin("stop").await;
            // One that waits in vain was found out already; it is ended with its process.
            let stopped = self.clients[who].answer(work);
            let _ = Clock::system().timeout(Duration::from_secs(10), stopped).await;
        }
    }

    /// The older of two holders writes after the younger one: a fence must refuse it.
    pub(crate) async fn writes_late(&mut self, who: usize, lock: &str) {
        let late = self.writes(who, lock, true).await;
        if late.is_ok_and(|taken| taken) {
            self.finds("C3", "the older holder's write was taken after the younger one's");
        }
    }

    /// A client reads and writes, as one does.
    pub(crate) async fn writes(
        &mut self,
        who: usize,
        lock: &str,
        fenced: bool,
    ) -> Result<bool, Trouble> {
        let write = self.is_about_to_write(who, lock, fenced, Duration::ZERO).await?;
        Ok(self.wrote(who, write).await)
    }

    // What is done to them.

    /// Writes down that something is done; [`Scene::over`] that it is over.
    pub(crate) fn strikes(&mut self, what: &str, whom: &str) -> usize {
        self.progress.fault(what);
        let fault =
            Fault { at: self.now(), until: None, what: what.to_owned(), whom: whom.to_owned() };
        self.faults.push(fault);
        self.faults.len() - 1
    }

    /// Writes down that it is over.
    pub(crate) fn over(&mut self, fault: usize) {
        self.faults[fault].until = Some(self.now());
    }

    /// Stops a client in its tracks.
    pub(crate) fn pauses(&mut self, who: usize) -> usize {
        let name = self.clients[who].name.clone();
        let fault = self.strikes("pause", &name);
        self.clients[who].child.stop();
        fault
    }

    /// Lets it go on.
    pub(crate) fn resumes(&mut self, who: usize, fault: usize) {
        self.over(fault);
        self.clients[who].child.resume();
    }

    /// Kills a client.
    pub(crate) async fn kills(&mut self, who: usize) {
        let name = self.clients[who].name.clone();
        let fault = self.strikes("kill", &name);
        self.notes.kills(self.clients[who].pid);
        self.clients[who].child.kill().await;
        self.clients[who].alive = false;
        self.over(fault);
    }

    /// Puts a new process in the place of a killed client.
    pub(crate) async fn replaces(&mut self, who: usize) {
        let url = self.clients[who].road.as_ref().map(|r| r.url().to_owned());
        let child = self.process(url.as_deref());
        self.pids.push((child.pid(), who));
        let road = self.clients[who].road.take();
        self.clients[who] = Client::new(client_name(who), child, road);
        self.clients[who].ready().await;
    }

    /// Does something to the road of a client; the fault, where it has a road.
    pub(crate) fn on_the_road(
        &mut self,
        who: usize,
        what: &str,
        act: impl Fn(&ProxiedRoute),
    ) -> Option<usize> {
        self.clients[who].road.as_ref()?;
        let name = self.clients[who].name.clone();
        let fault = self.strikes(what, &name);
        act(self.clients[who].road.as_ref()?);
        Some(fault)
    }

    /// The road of a client is well again.
    pub(crate) fn heals(&mut self, who: usize, fault: Option<usize>) {
        if let Some(road) = &self.clients[who].road {
            road.heal();
            // What was lost on the way makes a stream of bytes useless.
            road.reset();
        }
        if let Some(fault) = fault {
            self.over(fault);
        }
    }

    // How it ends.

    /// Something is wrong that no history shows.
    pub(crate) fn finds(&mut self, checker: &str, what: impl Into<String>) {
        let at = Some(self.now());
        self.found.push(Violation { checker: checker.to_owned(), what: what.into(), at });
    }

    /// Everybody gives everything back and ends.
    pub(crate) async fn ends(&mut self) {
        for client in self.clients.iter_mut().filter(|c| c.alive) {
            client.child.resume();
            if let Some(road) = &client.road {
                road.heal();
            }
            let bye = client.begin("bye").await;
            let done = client.answer(bye);
            done.await;
            client.alive = false;
        }
    }

    /// For how long after a fault of this kind two holders are possible, by what the store promises.
    pub(crate) fn permits_two(&self, what: &str) -> Option<Permit> {
        let promises = self.place.capability();
        let whole = |permitted: bool| permitted.then_some(Permit::Whole);
        if !self.unplanned {
            return None;
        }
        match what {
            // It catches up with its clock at once when it goes on, and says so itself.
            SERVER_PAUSED => whole(self.place.store.group == Group::Memcached),
            // A session's holder is told by the end of its connection, and the server that ended it
            // serves nobody before it runs again.
            SERVER_KILLED | SERVER_RESTARTED => whole(promises.restart == Survives::TwoHolders),
            FAILOVER => whole(promises.failover == Survives::TwoHolders),
            // Of a quorum only one is moved, which is enough where a bare majority granted a lock.
            // PostgreSQL counts by its wall clock how long a session has been silent.
            CLOCK_FORWARD => {
                let store = self.place.store;
                whole(store.by_wall_clock() || store.group == Group::Postgres)
            }
            // Its connections are ended, then or at last: the server and the holder hear of it at the
            // same moment, and the server may be a little quicker.
            CUT | LOST_ANSWERS | RESET => {
                let session = promises.family == Family::Session;
                (session && self.place.store.group != Group::Files).then_some(Permit::AtItsEnd)
            }
            _ => None,
        }
    }

    /// Lets time pass, where time itself is what the story is about.
    pub(crate) async fn passes(&self, d: Duration) {
        Clock::system().sleep(d).await;
    }

    /// The usual end: everybody goes, and nothing is left.
    pub(crate) async fn goes_home(&mut self) {
        self.ends().await;
        self.is_free(self.soon()).await;
    }

    /// C7: after everybody has ended nobody holds a lock and nobody stands in line, within so long.
    pub(crate) async fn is_free(&mut self, within: Duration) {
        let clock = Clock::system();
        let end = clock.now().plus(within);
        for lock in self.locks.clone() {
            loop {
                let left = match self.place.locks.show(&lock).await {
                    Ok(None) => break,
                    Ok(Some(left)) => left.to_string(),
                    Err(e) => e.to_string(),
                };
                if clock.now() >= end {
                    self.finds("C7", format!("after everybody has gone: {left}"));
                    break;
                }
                clock.sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until exactly so many stand in line.
    pub(crate) async fn stand_in_line(&self, lock: &str, n: usize) -> Result<(), Trouble> {
        let mut last = String::new();
        let wait = async {
            loop {
                match self.place.locks.show(lock).await {
                    Ok(Some(seen)) if seen.waiters.len() == n => return,
                    Ok(seen) => last = format!("{} in line", seen.map_or(0, |l| l.waiters.len())),
                    Err(e) => last = e.to_string(),
                }
                Clock::system().sleep(Duration::from_millis(20)).await;
            }
        };
        let there = Clock::system().timeout(PATIENCE, wait).await;
        there.ok_or_else(|| Trouble(format!("{n} were to stand in line, and there were {last}")))
    }

    /// The longest that anybody may have to wait for what time alone brings.
    pub(crate) fn soon(&self) -> Duration {
        PATIENCE.min(self.ttl * 2 + Duration::from_secs(20))
    }
}

fn path(path: PathBuf) -> String {
    path.display().to_string()
}

fn client_name(index: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(index % 26).unwrap_or(0));
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}
