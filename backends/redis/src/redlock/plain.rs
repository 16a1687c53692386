//! Classic Redlock, as other languages' clients know it: `SET name random NX PX ttl` at each node,
//! compare-and-delete, compare-and-extend.
//!
//! The key is the lock's name (`rl:p:SPACE:NAME` in a namespace), the value a random one of this
//! very request and try, so that foreign clients exclude us and we them. There is no counter, no
//! line and no tombstone; beside the key, under our own prefix, is only who holds it, for people.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use distlock_core::backend::{Ask, Force, Forced, Key, Released};
use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::EventSink;
use distlock_core::quorum::{
    Ballot, Bid, Commit, Committed, Generation, Heal, NodeDue, NodeKept, QuorumNode, Round, Vote,
};
use distlock_core::{Clock, Error, FullName, LockInfo, LossReason, QueueStatus, Token};
use futures_util::future::join_all;
use redis::Value;

use super::moves::BATCH;
use super::names;
use super::replies::{self, odd};
use super::server::Server;
use crate::call::{Call, Script};
use crate::keys;
use crate::listing::Listing;
use crate::recipe::{self, holder, left, number, view};
use crate::scripts::agreed;

macro_rules! script {
    ($name:literal) => {
        LazyLock::new(|| Script::new($name, agreed(include_str!(concat!("plain/", $name, ".lua")))))
    };
}
pub(crate) static PROPOSE: LazyLock<Script> = script!("propose");
pub(crate) static RENEW: LazyLock<Script> = script!("renew");
static RELEASE: LazyLock<Script> = script!("release");
pub(crate) static FORCE: LazyLock<Script> = script!("force");
static INSPECT: LazyLock<Script> = script!("inspect");

/// The further key that says who holds a lock.
const INFO: &str = ":i";

/// A server that keeps its share of a quorum's locks by the textbook recipe.
pub(crate) struct PlainNode {
    pub(crate) server: Server,
    pub(crate) capability: Arc<Capability>,
    pub(crate) listing: Listing,
}

/// The recipe's key, and ours beside it.
fn keys(lock: &FullName) -> Result<[Vec<u8>; 2], Error> {
    let name = recipe::key(lock, names::PREFIX, &[keys::PREFIX, names::PREFIX])?;
    Ok([name.into_bytes(), (names::record(lock) + INFO).into_bytes()])
}

fn bytes(n: impl ToString) -> Vec<u8> {
    n.to_string().into_bytes()
}

fn millis(d: Duration) -> Vec<u8> {
    // Rounded up: a lease that ends a part of a millisecond early could pass on too soon.
    bytes(d.as_micros().div_ceil(1000))
}

fn words(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(words) => Ok(words),
        other => Err(odd(other)),
    }
}

impl PlainNode {
    async fn play(&self, call: Call) -> Result<Value, Error> {
        self.server.play(&*self.server.link()?, &call).await
    }

    async fn take(&self, ask: &Ask, round: Round, token: Token) -> Result<Vote, Error> {
        let link = self.server.link()?;
        let (left, why) = self.server.closed(&link);
        if !left.is_zero() {
            return Ok(Vote::NotYet { left, why });
        }
        let mut args = vec![
            bytes(ask.req),
            bytes(round.0),
            millis(ask.ttl),
            ask.owner.as_str().into(),
            ask.label.as_str().into(),
            bytes(token.get()),
            bytes(ask.min_hold.as_micros()),
        ];
        args.extend(link.agreed.args());
        let call = Call { script: &PROPOSE, keys: keys(&ask.lock)?.into(), args };
        vote(&self.server.play(&link, &call).await?, round)
    }

    async fn renew_some(&self, due: &[NodeDue]) -> Result<Vec<NodeKept>, Error> {
        let link = self.server.link()?;
        let (mut all, mut args) = (Vec::new(), link.agreed.args().to_vec());
        for d in due {
            all.extend(keys(&d.key.lock)?);
            let round = d.generation.map(|g| bytes(g.0)).unwrap_or_default();
            args.extend([bytes(d.key.req), round, millis(d.ttl)]);
        }
        let value = self.server.play(&link, &Call { script: &RENEW, keys: all, args }).await?;
        let answers = words(&value)?;
        if answers.len() != due.len() {
            return Err(odd(&value));
        }
        answers.iter().map(|answer| kept(answer).ok_or_else(|| odd(answer))).collect()
    }

    async fn give(&self, key: &Key, how: Vec<u8>) -> Result<Value, Error> {
        let keys = keys(&key.lock)?.into();
        self.play(Call { script: &RELEASE, keys, args: vec![bytes(key.req), how] }).await
    }

    async fn look(&self, locks: &[FullName]) -> Result<Vec<LockInfo>, Error> {
        let mut all = Vec::new();
        for lock in locks {
            all.extend(keys(lock)?);
        }
        let value = self.play(Call { script: &INSPECT, keys: all, args: Vec::new() }).await?;
        let seen =
            locks.iter().zip(words(&value)?).map(|(lock, answer)| view(lock, words(answer)?, odd));
        Ok(seen.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }
}

fn vote(value: &Value, round: Round) -> Result<Vote, Error> {
    let words = words(value)?;
    let rest = words.get(1..).unwrap_or_default();
    match number(words.first()) {
        Some(1) => Ok(Vote::Granted {
            accepted: false,
            base: None,
            generation: Generation(round.0),
            left: left(rest.first()).ok_or_else(|| odd(value))?,
            waiters: 0,
        }),
        Some(2) => {
            let left = left(rest.first());
            let holder = holder(rest.get(1..).unwrap_or_default(), left);
            Ok(Vote::Busy {
                status: QueueStatus { holder, left, ..QueueStatus::default() },
                queued: false,
            })
        }
        Some(4) => Ok(Vote::Tombstoned),
        _ => Err(odd(value)),
    }
}

fn kept(answer: &Value) -> Option<NodeKept> {
    let Value::Array(words) = answer else { return None };
    Some(match number(words.first())? {
        0 => NodeKept::Lost(LossReason::Gone),
        1 => NodeKept::Held {
            generation: Generation(number(words.get(1))?),
            left: left(words.get(2))?,
            token: number(words.get(3)).and_then(|t| Token::new(t).ok()),
            waiters: 0,
        },
        2 => NodeKept::Lost(LossReason::Revoked),
        _ => return None,
    })
}

impl QuorumNode for PlainNode {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.server.site
    }

    fn clock(&self) -> &Clock {
        self.server.clock()
    }

    fn link(&self) -> u64 {
        self.server.number()
    }

    async fn propose(&self, bid: &Bid) -> Result<Ballot, Error> {
        let vote = self.take(&bid.ask, bid.round, bid.token).await?;
        Ok(Ballot { vote, at: None })
    }

    async fn heal(&self, heals: &[Heal]) -> Vec<Result<Vote, Error>> {
        join_all(heals.iter().map(|h| self.take(&h.ask, h.round, h.token))).await
    }

    /// Nothing is stored, as there is no counter: the quorum of such nodes never asks for it.
    async fn commit(&self, _commit: &Commit) -> Result<Committed, Error> {
        Ok(Committed::Lost)
    }

    async fn renew(&self, due: &[NodeDue]) -> Vec<NodeKept> {
        let batches = due.chunks(BATCH).map(|some| async {
            match self.renew_some(some).await {
                Ok(kept) => kept,
                Err(e) => some.iter().map(|_| NodeKept::Unknown(e.clone())).collect(),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, key: &Key) -> Result<Released, Error> {
        replies::released(&self.give(key, b"r".to_vec()).await?)
    }

    async fn cancel(&self, key: &Key, upto: Round) -> Result<(), Error> {
        // Nothing was ever asked for under a name that cannot be a key.
        if keys(&key.lock).is_err() {
            return Ok(());
        }
        replies::cancelled(&self.give(key, bytes(upto.0)).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        match query {
            Query::Name(lock) => self.look(std::slice::from_ref(lock)).await,
            Query::Prefix { space, prefix, after, limit } => {
                let scan = async { names::scan(&*self.server.link()?, space, prefix, INFO).await };
                let (clock, page) = (self.clock(), (space, prefix.as_str(), after.as_ref()));
                let names = self.listing.names(clock, page, scan).await?;
                let mut found = Vec::new();
                for names in names.chunks(BATCH) {
                    found.extend(self.look(names).await?);
                    if found.len() >= *limit {
                        break;
                    }
                }
                found.truncate(*limit);
                if let Some(last) = found.get(limit - 1) {
                    self.listing.keep(clock, prefix, &last.lock, &names);
                }
                Ok(found)
            }
        }
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let token = token.map(|t| bytes(t.get())).unwrap_or_default();
        let how = if how == Force::Now { b"n".to_vec() } else { b"r".to_vec() };
        let keys = keys(lock)?.into();
        let args = vec![token, how, millis(self.capability.ttl_max)];
        replies::forced(&self.play(Call { script: &FORCE, keys, args }).await?)
    }

    fn listen(&self, sink: EventSink) {
        self.server.listen(sink);
    }

    async fn close(&self) {
        self.server.close();
    }
}
