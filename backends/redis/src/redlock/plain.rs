//! Classic Redlock, as other languages' clients know it: `SET name random NX PX ttl` at each node,
//! compare-and-delete, compare-and-extend.
//!
//! The key is the lock's name (`rl:p:SPACE:NAME` in a namespace), the value a random one of this
//! very request and try, so that foreign clients exclude us and we them. There is no counter, no
//! queue and no tombstone; beside the key, under our own prefix, is only its holder, for people.

use std::sync::LazyLock;
use std::time::Duration;

use distlock_core::quorum::{Generation, NodeDue, NodeKept, Round, Vote};
use distlock_core::{Ask, Error, Force, FullName, Key, LossReason, QueueStatus, Token};
use redis::Value;

use super::keys;
use super::replies::{each, odd};
use crate::connection::{Call, Script};
use crate::inspect::Listed;
use crate::keys as redis_keys;
use crate::plain_common::{self, holder};
use crate::quarantine::Agreed;
use crate::reply_cursor::ReplyCursor;
use crate::scripts::{FREES, GROWS, agreed};

macro_rules! script {
    ($name:literal, $flags:expr) => {
        LazyLock::new(|| {
            let body = include_str!(concat!("plain/", $name, ".lua"));
            Script::new($name, agreed(&[$flags, body].concat()))
        })
    };
}
pub(crate) static PROPOSE: LazyLock<Script> = script!("propose", GROWS);
pub(crate) static RENEW: LazyLock<Script> = script!("renew", FREES);
static RELEASE: LazyLock<Script> = script!("release", FREES);
pub(crate) static FORCE: LazyLock<Script> = script!("force", FREES);

/// The further key that says who holds a lock.
const INFO: &str = ":i";
/// What is listed: the keys that say who holds a lock.
pub(super) const HELD: Listed = Listed { prefix: keys::PREFIX, part: INFO, kind: "hash" };

/// The recipe's key, and ours beside it.
fn keys(lock: &FullName) -> Result<[Vec<u8>; 2], Error> {
    let name = plain_common::key(lock, keys::PREFIX, &[redis_keys::PREFIX, keys::PREFIX])?;
    Ok([name.into_bytes(), (keys::record(lock) + INFO).into_bytes()])
}

fn bytes(n: impl ToString) -> Vec<u8> {
    n.to_string().into_bytes()
}

fn millis(d: Duration) -> Vec<u8> {
    // Rounded up: a lease that ends a part of a millisecond early could pass on too soon.
    bytes(d.as_micros().div_ceil(1000))
}

fn one(script: &'static Script, lock: &FullName, args: Vec<Vec<u8>>) -> Result<Call, Error> {
    Ok(Call { script, keys: keys(lock)?.into(), args })
}

pub(super) fn propose(
    ask: &Ask,
    round: Round,
    token: Token,
    agreed: &Agreed,
) -> Result<Call, Error> {
    let mut args = vec![
        bytes(ask.req),
        bytes(round.0),
        millis(ask.ttl),
        ask.owner.as_str().into(),
        ask.label.as_str().into(),
        bytes(token.get()),
        bytes(ask.min_hold.as_micros()),
    ];
    args.extend(agreed.args());
    one(&PROPOSE, &ask.lock, args)
}

pub(super) fn renew(due: &[NodeDue], agreed: &Agreed) -> Result<Call, Error> {
    let (mut all, mut args) = (Vec::new(), agreed.args().to_vec());
    for d in due {
        all.extend(keys(&d.key.lock)?);
        let round = d.generation.map(|g| bytes(g.0)).unwrap_or_default();
        args.extend([bytes(d.key.req), round, millis(d.ttl)]);
    }
    Ok(Call { script: &RENEW, keys: all, args })
}

pub(super) fn release(key: &Key) -> Result<Call, Error> {
    one(&RELEASE, &key.lock, vec![bytes(key.req), b"r".to_vec()])
}

pub(super) fn cancel(key: &Key, upto: Round) -> Result<Call, Error> {
    one(&RELEASE, &key.lock, vec![bytes(key.req), bytes(upto.0)])
}

pub(super) fn force(
    lock: &FullName,
    token: Option<Token>,
    how: Force,
    max_ttl: Duration,
) -> Result<Call, Error> {
    let token = token.map(|t| bytes(t.get())).unwrap_or_default();
    let how = if how == Force::Now { b"n".to_vec() } else { b"r".to_vec() };
    one(&FORCE, lock, vec![token, how, millis(max_ttl)])
}

pub(super) fn vote(value: &Value, round: Round) -> Result<Vote, Error> {
    read_vote(value, round).ok_or_else(|| odd(value))
}

fn read_vote(value: &Value, round: Round) -> Option<Vote> {
    let mut words = ReplyCursor::of(value)?;
    Some(match words.number()? {
        1 => Vote::Granted {
            accepted: false,
            base: None,
            generation: Generation(round.0),
            left: words.key_left()?,
            waiters: 0,
        },
        2 => {
            let left = words.key_left();
            let holder = holder(words, left);
            let status = QueueStatus { holder, left, ..QueueStatus::default() };
            Vote::Busy { status, queued: false }
        }
        4 => Vote::Tombstoned,
        _ => return None,
    })
}

/// The renewals of a batch, one for each.
pub(super) fn renewals(value: &Value, count: usize) -> Result<Vec<NodeKept>, Error> {
    each(value, count)?.iter().map(|v| kept(v).ok_or_else(|| odd(v))).collect()
}

fn kept(answer: &Value) -> Option<NodeKept> {
    let mut words = ReplyCursor::of(answer)?;
    Some(match words.number()? {
        0 => NodeKept::Lost(LossReason::Gone),
        1 => NodeKept::Held {
            generation: Generation(words.number()?),
            left: words.key_left()?,
            token: words.parsed().and_then(|t| Token::new(t).ok()),
            waiters: 0,
        },
        2 => NodeKept::Lost(LossReason::Revoked),
        _ => return None,
    })
}

/// Looks at locks.
pub(super) fn inspect(locks: &[FullName]) -> Result<Call, Error> {
    let mut all = Vec::new();
    for lock in locks {
        all.extend(keys(lock)?);
    }
    Ok(Call { script: &plain_common::INSPECT, keys: all, args: Vec::new() })
}
