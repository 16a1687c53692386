//! The textbook lock on one server, shared with clients in other languages: `SET name random NX PX ttl`,
//! compare-and-delete, compare-and-extend.
//!
//! 1. The key is the lock's name (`dl:p:SPACE:NAME` in a namespace), the value a random one of this very
//!    request: clients in other languages exclude us, and we them.
//! 2. Beside it, under our own prefix: a fence counter, the holder, the waiters.
//! 3. Taking is one script: `SET NX PX` and the next token in one step.
//! 4. Giving back compares and deletes, and tells the first of our waiters; it asks again.
//! 5. Nobody tells us of a foreign holder's release, so waiters also ask again by themselves, less
//!    and less often, each at its own pace.
//!
//! The list of waiters gives no order: any request that arrives while the key is free gets the
//! lock. After a restart or failover the
//! quarantine keeps *us* from granting; foreign clients know nothing of it.

use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use distlock_core::state::{End, Left, Pulse};
use distlock_core::{
    Ask, Backend, Capability, Class, Due, Error, Event, EventSink, Force, Forced, FullName, Key,
    LeaseDriver, LeaseStore, LockInfo, LossReason, Move, Query, Replies, Reply, ReqId, Run, Store,
    StoreInfo, Token, Wake,
};
use redis::Value;

use crate::connection::{Call, Script};
use crate::keys::{Keys, PREFIX};
use crate::plain_common::{self, INSPECT, holder, inspected};
use crate::script_calls::{self, BATCH};
use crate::scripts::{FREES, GROWS, agreed};
use crate::{
    capability::capability, checked_connection::CheckedConnection, errors::odd, inspect::Listed,
    open::Target, reply_cursor::ReplyCursor, router::Router,
};

/// The further key that says who holds a lock: what is listed.
const INFO: &str = ":i";
const HELD: Listed = Listed { prefix: PREFIX, part: INFO, kind: "hash" };

const PRELUDE: &str = include_str!("plain/prelude.lua");

macro_rules! script {
    ($name:literal, $($head:expr),*) => {
        LazyLock::new(|| {
            let body = include_str!(concat!("plain/", $name, ".lua"));
            Script::new($name, agreed(&[$($head,)* body].concat()))
        })
    };
}
static ACQUIRE: LazyLock<Script> = script!("acquire", GROWS, PRELUDE);
static RELEASE: LazyLock<Script> = script!("release", FREES, PRELUDE);
static FORCE: LazyLock<Script> = script!("force", FREES, PRELUDE);
static RENEW: LazyLock<Script> = script!("renew", FREES);

/// The plain recipe over one server or one watched primary.
pub(crate) struct Plain {
    capability: Capability,
    router: Router,
}

impl Plain {
    pub(crate) async fn at(target: Target) -> Result<Self, Error> {
        let capability = capability(target.kind, &target.options);
        Ok(Self { capability, router: target.connect(reads).await? })
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Reply, Error> {
        let keys = keys(&ask.lock)?;
        let make = |link: &CheckedConnection| {
            let mut args = vec![
                value_of(ask.req),
                millis(ask.ttl),
                ask.owner.as_str().into(),
                ask.label.as_str().into(),
                ask.min_hold.as_micros().to_string().into_bytes(),
                link.via.clone().into_bytes(),
                if wait_lease.is_some() { b"1".to_vec() } else { b"0".to_vec() },
            ];
            args.extend(link.agreed.args());
            Call { script: &ACQUIRE, keys: keys.to_vec(), args }
        };
        let (value, link) = self.router.grant(&Keys::of(&ask.lock), make).await?;
        let reply = acquired(&value).ok_or_else(|| odd(&value))?;
        if let Reply::Granted { remaining, .. } = &reply {
            self.router.replicated(&link, *remaining).await?;
        }
        Ok(reply)
    }

    async fn release(&self, key: &Key) -> Result<Reply, Error> {
        let value = self.give(key, b"r").await?;
        match ReplyCursor::of(&value).and_then(|mut words| words.text()) {
            Some("R") => Ok(Reply::Released),
            Some("L") => Ok(Reply::Lost(LossReason::Gone)),
            _ => Err(odd(&value)),
        }
    }

    /// Releases or cancels.
    async fn give(&self, key: &Key, how: &[u8]) -> Result<Value, Error> {
        let keys = keys(&key.lock)?;
        let make = |link: &CheckedConnection| {
            let args = vec![value_of(key.req), how.to_vec(), link.via.clone().into_bytes()];
            Call { script: &RELEASE, keys: keys.to_vec(), args }
        };
        Ok(self.router.play(&Keys::of(&key.lock), make).await?.0)
    }

    async fn look(&self, locks: Vec<FullName>) -> Result<Vec<LockInfo>, Error> {
        let Some(first) = locks.first() else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for lock in &locks {
            let [name, _, info, ..] = keys(lock)?;
            all.extend([name, info]);
        }
        let make = |_: &_| Call { script: &INSPECT, keys: all.clone(), args: Vec::new() };
        let (value, _) = self.router.play(&Keys::of(first), make).await?;
        inspected(&locks, &value)
    }
}

fn acquired(value: &Value) -> Option<Reply> {
    let mut words = ReplyCursor::of(value)?;
    Some(match words.text()? {
        "G" => {
            let (token, remaining) = (Token::new(words.parsed()?).ok()?, words.key_left()?);
            let block = NonZeroU32::MIN;
            Reply::Granted { token, block, remaining, waiters: 0, floor: token }
        }
        "B" => {
            let left = words.key_left();
            Reply::Busy { ahead: 0, why: Left { holder: holder(words, left), left } }
        }
        "S" => Reply::Tombstoned(End::Cancelled),
        _ => return None,
    })
}

/// The recipe's key and ours beside it.
fn keys(lock: &FullName) -> Result<[Vec<u8>; 5], Error> {
    let (name, ours) = (plain_common::key(lock, PREFIX, &[PREFIX])?, Keys::of(lock).lock);
    let part = |part: &str| format!("{ours}:{part}").into_bytes();
    Ok([name.into_bytes(), part("f"), part("i"), part("l"), part("c")])
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
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: &self.capability,
            site: &self.router.site,
            clock: self.router.clock(),
        }
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
        self.router.inspect(query, &HELD, |locks| self.look(locks)).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let told = |e: Error| e.during("force").lock(lock).store(&self.router.site);
        let how = if how == Force::Now { b"n".to_vec() } else { b"r".to_vec() };
        let token = token.map(|t| t.get().to_string()).unwrap_or_default();
        let args = vec![token.into_bytes(), how, millis(self.router.shared.options.max_ttl)];
        let forced = async {
            let keys = keys(lock)?;
            let make = |_: &_| Call { script: &FORCE, keys: keys.to_vec(), args: args.clone() };
            let (value, _) = self.router.play(&Keys::of(lock), make).await?;
            script_calls::forced(&value).and_then(Reply::forced)
        };
        forced.await.map_err(told)
    }

    fn listen(&self, sink: EventSink) {
        self.router.listen(sink);
    }

    async fn close(&self) {
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
            let make = |link: &CheckedConnection| {
                let args = link.agreed.args().into_iter().chain(args.clone()).collect();
                Call { script: &RENEW, keys: all.clone(), args }
            };
            let (value, link) = self.router.play(&Keys::of(&first.key.lock), make).await?;
            self.router.replicated(&link, shortest).await?;
            match ReplyCursor::of(&value).filter(|words| words.0.len() == due.len()) {
                Some(mut words) => Ok(due.iter().map(|_| words.key_left()).collect::<Vec<_>>()),
                None => Err(odd(&value)),
            }
        };
        let home = Keys::of(&first.key.lock);
        match self.router.pressing(&home, shortest / 4, play).await {
            Ok(left) => left
                .into_iter()
                .map(|left| match left {
                    Some(remaining) => Ok(Reply::Renewed { remaining, waiters: 0 }),
                    None => Ok(Reply::Lost(LossReason::Gone)),
                })
                .collect(),
            Err(e) => vec![Err(e); due.len()],
        }
    }
}
