//! The recipe the world runs, on one server: `SET name random NX PX ttl`, compare-and-delete,
//! compare-and-extend.
//!
//! 1. The key is the lock's name (`dl:p:SPACE:NAME` in a namespace), the value a random one of this very
//!    request: clients in other languages exclude us, and we them.
//! 2. Beside it, under our own prefix: a fence counter, who holds it, who waits.
//! 3. Taking is one script: `SET NX PX` and the next token in one step.
//! 4. Giving back compares and deletes, and tells the first of our waiters; it asks again.
//! 5. Nobody tells us of a foreign holder's release, so waiters also ask again by themselves, less
//!    and less often, each at its own pace.
//!
//! There is no line: whoever asks at the right moment enters. After a restart or failover the
//! quarantine keeps *us* from granting; foreign clients know nothing of it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Due, Event, Force, Forced, Key};
use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Run, Wake};
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::state::{End, Left, Pulse, Reply};
use distlock_core::{Clock, Error, FullName, Kind, LockInfo, LossReason, ReqId, Store, Token};
use redis::Value;

use crate::call::{Call, Script};
use crate::capability::capability;
use crate::keys::{Keys, PREFIX};
use crate::link::Link;
use crate::listing::Listing;
use crate::node::Shared;
use crate::open::Target;
use crate::recipe::{self, holder, left, text, token, view};
use crate::replicas;
use crate::router::Router;
use crate::scan;
use crate::scripts::agreed;

/// The further key that says who holds a lock: what is listed.
const INFO: &str = ":i";
/// How many locks one call renews.
const BATCH: usize = 256;

macro_rules! script {
    ($name:literal, $head:expr) => {
        LazyLock::new(|| {
            let head = concat!($head, "\n", include_str!("plain/prelude.lua"));
            let body = include_str!(concat!("plain/", $name, ".lua"));
            Script::new($name, agreed(&format!("{head}{body}")))
        })
    };
}
static ACQUIRE: LazyLock<Script> = script!("acquire", "#!lua");
static RELEASE: LazyLock<Script> = script!("release", "#!lua flags=allow-oom");
static FORCE: LazyLock<Script> = script!("force", "#!lua flags=allow-oom");
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    let body = include_str!("plain/renew.lua");
    Script::new("renew", agreed(&format!("#!lua flags=allow-oom\n{body}")))
});
static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new("inspect", include_str!("plain/inspect.lua").to_owned()));

/// The plain recipe over one server or one watched primary.
pub struct Plain {
    capability: Capability,
    site: String,
    shared: Arc<Shared>,
    router: Router,
    listing: Listing,
}

impl Plain {
    pub(crate) async fn at(target: &Target) -> Result<Self, Error> {
        let (shared, router) = target.router(reads);
        let (capability, site) = (capability(target.kind, &target.options), target.site.clone());
        let store = Self { capability, site, shared, router, listing: Listing::default() };
        store.router.greet().await?;
        Ok(store)
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Reply, Error> {
        let keys = keys(&ask.lock)?;
        let link = self.router.link(&Keys::of(&ask.lock)).await?;
        if let Some((left, why)) = link.quarantined(&self.shared.clock) {
            return Err(Error::not_yet(left, why));
        }
        let args = vec![
            value_of(ask.req),
            millis(ask.ttl),
            ask.owner.as_str().into(),
            ask.label.as_str().into(),
            ask.min_hold.as_micros().to_string().into_bytes(),
            link.via.clone().into_bytes(),
            if wait_lease.is_some() { b"1".to_vec() } else { b"0".to_vec() },
        ];
        let clock = &self.shared.clock;
        let make = |link: &Link| {
            let make = || {
                let mut args = args.clone();
                args.extend(link.agreed.args());
                Call { script: &ACQUIRE, keys: keys.clone(), args }
            };
            link.quarantined(clock).is_none().then(make)
        };
        let (value, link) = self.router.play_if(&Keys::of(&ask.lock), make).await?;
        let Some(value) = value else {
            let (left, why) = link.quarantined(clock).unwrap_or_default();
            return Err(Error::not_yet(left, why));
        };
        let words = words(value)?;
        let odd = || odd(&Value::Array(words.clone()));
        match (text(words.first()), words.get(1..).unwrap_or_default()) {
            (Some("G"), rest) => {
                let token = token(rest.first()).ok_or_else(odd)?;
                let remaining = left(rest.get(1)).ok_or_else(odd)?;
                replicas::wait(&link, &self.shared, remaining).await?;
                let block = NonZeroU32::MIN;
                Ok(Reply::Granted { token, block, remaining, waiters: 0, floor: token })
            }
            (Some("B"), rest) => {
                let left = left(rest.first());
                let holder = holder(rest.get(1..).unwrap_or_default(), left);
                Ok(Reply::Busy { ahead: 0, why: Left { holder, left } })
            }
            (Some("S"), _) => Ok(Reply::Tombstoned(End::Cancelled)),
            _ => Err(odd()),
        }
    }

    async fn release(&self, key: &Key) -> Result<Reply, Error> {
        let words = self.give(key, b"r").await?;
        match text(words.first()) {
            Some("R") => Ok(Reply::Released),
            Some("L") => Ok(Reply::Lost(LossReason::Gone)),
            _ => Err(odd(&Value::Array(words))),
        }
    }

    async fn call(&self, script: &'static Script, lock: &FullName, args: Vec<Vec<u8>>) -> Played {
        let keys = keys(lock)?;
        let make = |_: &_| Call { script, keys: keys.clone(), args: args.clone() };
        let (value, _) = self.router.play(&Keys::of(lock), make).await?;
        words(value)
    }

    /// Releases or cancels.
    async fn give(&self, key: &Key, how: &[u8]) -> Played {
        let keys = keys(&key.lock)?;
        let make = |link: &Link| {
            let args = vec![value_of(key.req), how.to_vec(), link.via.clone().into_bytes()];
            Call { script: &RELEASE, keys: keys.clone(), args }
        };
        let (value, _) = self.router.play(&Keys::of(&key.lock), make).await?;
        words(value)
    }

    async fn inspect_all(&self, locks: &[FullName]) -> Result<Vec<LockInfo>, Error> {
        let Some(first) = locks.first() else { return Ok(Vec::new()) };
        let keys: Vec<Vec<u8>> =
            locks.iter().map(keys).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let make = |_: &_| Call { script: &INSPECT, keys: keys.clone(), args: Vec::new() };
        let (value, _) = self.router.play(&Keys::of(first), make).await?;
        let Value::Array(answers) = value else { return Err(odd(&value)) };
        let seen = locks.iter().zip(answers).map(|(lock, answer)| view(lock, &words(answer)?, odd));
        Ok(seen.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }
}

type Played = Result<Vec<Value>, Error>;

fn words(value: Value) -> Played {
    match value {
        Value::Array(words) => Ok(words),
        other => Err(odd(&other)),
    }
}

fn odd(value: &Value) -> Error {
    Error::new(Kind::Store, format!("an answer that makes no sense: {value:?}")).unknown()
}

/// The recipe's key and ours beside it.
fn keys(lock: &FullName) -> Result<Vec<Vec<u8>>, Error> {
    let name = recipe::key(lock, PREFIX, &[PREFIX])?;
    let keys = Keys::of(lock);
    let ours = ["f", "i", "l", "c"].map(|part| keys.part(part));
    Ok(std::iter::once(name).chain(ours).map(String::into_bytes).collect())
}

fn millis(d: Duration) -> Vec<u8> {
    d.as_millis().to_string().into_bytes()
}

fn value_of(req: ReqId) -> Vec<u8> {
    req.to_string().into_bytes()
}

fn reads(message: &[u8]) -> Option<Wake> {
    let text = std::str::from_utf8(message).ok()?;
    let req = text.get(1..33)?.parse().ok()?;
    match text.as_bytes().first()? {
        b't' => Some(Wake::Turn(req)),
        b'x' => {
            let lock = Keys::lock_of(text.get(33..)?.strip_suffix(INFO)?.as_bytes())?;
            Some(Wake::Event(Event::Lost(Key { lock, req }, LossReason::Revoked)))
        }
        _ => None,
    }
}

impl Store for Plain {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Plain {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn ends_in_time(&self) -> bool {
        true
    }

    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::new();
        for run in Run::split(moves) {
            match run {
                Run::Acquire(ask, wait) => replies.push(self.acquire(&ask, wait).await),
                // Nobody stands in a queue here.
                Run::Heartbeat(beats) => {
                    replies.extend(beats.iter().map(|_| Ok(Reply::Pulse(Pulse::Unknown))));
                }
                Run::Renew(due) => {
                    for batch in due.chunks(BATCH) {
                        replies.extend(self.renew(batch).await);
                    }
                }
                Run::Release(key) => replies.push(self.release(&key).await),
                Run::Cancel(key) => {
                    replies.push(self.give(&key, b"c").await.map(|_| Reply::Cancelled));
                }
            }
        }
        replies
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let look = async {
            let Query::Prefix { space, prefix, after, limit } = query else {
                let Query::Name(lock) = query else { return Ok(Vec::new()) };
                return self.inspect_all(std::slice::from_ref(lock)).await;
            };
            let scan = async {
                let mut names = Vec::new();
                for node in self.router.all().await? {
                    names.extend(scan::scan(&node, space, prefix, (INFO, "hash")).await?);
                }
                Ok(names)
            };
            let (clock, page) = (&self.shared.clock, (space, prefix.as_str(), after.as_ref()));
            let names = self.listing.names(clock, page, scan).await?;
            let mut found = Vec::new();
            for names in names.chunks(BATCH) {
                found.extend(self.inspect_all(names).await?);
                if found.len() >= *limit {
                    break;
                }
            }
            found.truncate(*limit);
            if let Some(last) = found.get(limit - 1) {
                self.listing.keep(clock, prefix, &last.lock, &names);
            }
            Ok(found)
        };
        look.await.map_err(|e: Error| e.during("inspect").store(&self.site))
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let told = |e: Error| e.during("force").lock(lock).store(&self.site);
        let how = if how == Force::Now { b"n".to_vec() } else { b"r".to_vec() };
        let token = token.map(|t| t.get().to_string()).unwrap_or_default();
        let words = {
            let args = vec![token.into_bytes(), how, millis(self.shared.options.max_ttl)];
            self.call(&FORCE, lock, args).await.map_err(&told)?
        };
        match text(words.first()) {
            Some("F") => Ok(Forced::Done),
            Some("N") => Ok(Forced::NoMatch),
            _ => Err(told(odd(&Value::Array(words)))),
        }
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.shared.sink.set(sink);
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.router.close();
    }
}

impl Plain {
    async fn renew(&self, due: &[Due]) -> Replies {
        let Some(first) = due.first() else { return Vec::new() };
        let shortest = due.iter().map(|d| d.ttl).min().unwrap_or_default();
        let play = async {
            let mut all = Vec::with_capacity(due.len() * 5);
            let mut args = Vec::with_capacity(due.len() * 2);
            for d in due {
                all.extend(keys(&d.key.lock)?);
                args.extend([value_of(d.key.req), millis(d.ttl)]);
            }
            let make = |link: &Link| {
                let args = link.agreed.args().into_iter().chain(args.clone()).collect();
                Call { script: &RENEW, keys: all.clone(), args }
            };
            let (value, link) = self.router.play(&Keys::of(&first.key.lock), make).await?;
            replicas::wait(&link, &self.shared, shortest).await?;
            let answers = words(value)?;
            if answers.len() == due.len() { Ok(answers) } else { Err(odd(&Value::Array(answers))) }
        };
        let home = Keys::of(&first.key.lock);
        match self.router.pressing(&self.shared.clock, &home, shortest / 4, play).await {
            Ok(answers) => answers
                .iter()
                .map(|answer| match left(Some(answer)) {
                    Some(remaining) => Ok(Reply::Renewed { remaining, waiters: 0 }),
                    None => Ok(Reply::Lost(LossReason::Gone)),
                })
                .collect(),
            Err(e) => vec![Err(e); due.len()],
        }
    }
}

impl Drop for Plain {
    /// Takes effect at once: connections end, and nothing is connected again.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}
