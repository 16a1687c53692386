//! The server's answers as the specification's.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{End, Left, Micros, Pulse, Refusal, Reply};
use distlock_core::{Error, Holder, Kind, LockInfo, LossReason, ReqId, Token};
use redis::Value;

use super::record::{self, claim_of, mode_of};
use crate::keys::Keys;

/// An answer that no script of ours gives: whether it took effect cannot be known.
fn odd(op: &'static str, value: &Value) -> Error {
    let mut what = format!("{value:?}");
    what.truncate(what.floor_char_boundary(200));
    Error::new(Kind::Store, format!("an answer that makes no sense: {what}"))
        .unknown()
        .during(op)
        .with_hint("is this a Redis of version 7.0 or later, without a proxy that changes answers?")
}

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        _ => None,
    }
}

/// The numbers at the front of an answer.
fn ints<const N: usize>(items: &[Value]) -> Option<[i64; N]> {
    let mut out = [0; N];
    for (slot, value) in out.iter_mut().zip(items.get(..N)?) {
        *slot = int(value)?;
    }
    Some(out)
}

fn token(n: i64) -> Option<Token> {
    Token::new(u64::try_from(n).ok()?).ok()
}

fn span(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

fn count(n: i64) -> Option<u32> {
    u32::try_from(n).ok()
}

/// A span that may be none: -1.
fn maybe(micros: i64) -> Option<Option<Duration>> {
    if micros == -1 { Some(None) } else { span(micros).map(Some) }
}

fn holder(items: &[Value]) -> Option<Option<Holder>> {
    let [first, .., Value::BulkString(blob)] = items else {
        return items.is_empty().then_some(None);
    };
    let [age, left] = ints(&items[1..])?;
    let claim = claim_of(ReqId::from_bytes([0; 16]), blob)?;
    Some(Some(Holder {
        label: claim.label,
        owner: claim.owner,
        token: token(int(first)?)?,
        age: span(age)?,
        left: Some(span(left)?),
    }))
}

fn acquired_of(items: &[Value]) -> Option<Reply> {
    Some(match int(items.first()?)? {
        1 => {
            let [first, block, left, waiters, floor] = ints(&items[1..])?;
            Reply::Granted {
                token: token(first)?,
                block: NonZeroU32::new(count(block)?)?,
                remaining: span(left)?,
                waiters: count(waiters)?,
                floor: token(floor)?,
            }
        }
        kind @ (2 | 3) => {
            let [ahead, left] = ints(&items[1..])?;
            let why = Left { holder: holder(&items[3..])?, left: maybe(left)? };
            let ahead = count(ahead)?;
            if kind == 2 { Reply::Waiting { ahead, why } } else { Reply::Busy { ahead, why } }
        }
        4 => {
            let [what, n] = ints(&items[1..])?;
            Reply::Refused(match what {
                0 => Refusal::PermitsDiffer(NonZeroU32::new(count(n)?)?),
                1 => Refusal::ModeDiffers(mode_of(i32::try_from(n).ok()?)?),
                _ => return None,
            })
        }
        5 => Reply::Tombstoned(match ints(&items[1..])? {
            [0] => End::Released,
            [1] => End::Cancelled,
            _ => return None,
        }),
        _ => return None,
    })
}

/// The answer to an acquire for `ttl`. A lock that was free is answered by its token alone.
pub(crate) fn acquired(value: &Value, ttl: Duration) -> Result<Reply, Error> {
    let reply = match value {
        Value::Int(n) => token(*n).map(|token| Reply::Granted {
            token,
            block: NonZeroU32::MIN,
            remaining: ttl,
            waiters: 0,
            floor: token,
        }),
        Value::Array(items) => acquired_of(items),
        _ => None,
    };
    reply.ok_or_else(|| odd("acquire", value))
}

/// The answers of a batch: two numbers each.
fn batch(
    op: &'static str,
    value: &Value,
    n: usize,
    one: fn(i64, i64) -> Option<Reply>,
) -> Result<Vec<Reply>, Error> {
    let wrong = || odd(op, value);
    let Value::Array(items) = value else { return Err(wrong()) };
    if items.len() != 2 * n {
        return Err(wrong());
    }
    let pair = |p: &[Value]| one(int(&p[0])?, int(&p[1])?);
    items.chunks_exact(2).map(|p| pair(p).ok_or_else(wrong)).collect()
}

/// The answers to heartbeats of `n` waiters, in their order.
pub(crate) fn pulses(value: &Value, n: usize) -> Result<Vec<Reply>, Error> {
    batch("heartbeat", value, n, |ahead, left| {
        Some(Reply::Pulse(match ahead {
            -1 => Pulse::Turn,
            -2 => Pulse::Unknown,
            ahead => Pulse::Queued { ahead: count(ahead)?, left: maybe(left)? },
        }))
    })
}

/// The answers to renewals of `n` holds, in their order.
pub(crate) fn renewals(value: &Value, n: usize) -> Result<Vec<Reply>, Error> {
    batch("renew", value, n, |left, waiters| {
        Some(match left {
            -1 => Reply::Lost(LossReason::Gone),
            -2 => Reply::Lost(LossReason::Revoked),
            left => Reply::Renewed { remaining: span(left)?, waiters: count(waiters)? },
        })
    })
}

/// The answer to a release.
pub(crate) fn released(value: &Value) -> Result<Reply, Error> {
    match value {
        Value::Int(1) => Ok(Reply::Released),
        Value::Int(2) => Ok(Reply::Lost(LossReason::Gone)),
        Value::Int(3) => Ok(Reply::Lost(LossReason::Revoked)),
        other => Err(odd("release", other)),
    }
}

/// The answer to a cancel.
pub(crate) fn cancelled(value: &Value) -> Result<Reply, Error> {
    match value {
        Value::Int(1) => Ok(Reply::Cancelled),
        other => Err(odd("cancel", other)),
    }
}

/// The answer to a force.
pub(crate) fn forced(value: &Value) -> Result<Reply, Error> {
    match value {
        Value::Int(1) => Ok(Reply::Forced),
        Value::Int(0) => Ok(Reply::NoMatch),
        other => Err(odd("force", other)),
    }
}

/// The time and the locks of an inspect.
fn looked(value: &Value, n: usize) -> Option<(Micros, &[Value])> {
    let Value::Array(items) = value else { return None };
    let (now, rest) = items.split_first()?;
    let now = u64::try_from(int(now)?).ok()?;
    (rest.len() == n).then_some((Micros(now), rest))
}

/// The answer to an inspect: those of the locks that are held or waited for.
pub(crate) fn inspected(value: &Value, locks: &[Keys]) -> Result<Vec<LockInfo>, Error> {
    let wrong = || odd("inspect", value);
    let (now, seen) = looked(value, locks.len()).ok_or_else(wrong)?;
    let mut out = Vec::new();
    for (keys, lock) in locks.iter().zip(seen) {
        let Value::Array(lock) = lock else { return Err(wrong()) };
        let Some(state) = record::read(lock)? else { continue };
        let name = Keys::lock_of(keys.lock.as_bytes()).ok_or_else(wrong)?;
        out.extend(state.view(&name, now));
    }
    Ok(out)
}

/// The answer to an inspect as states, for tests that compare all there is.
#[cfg(test)]
pub(crate) fn states(
    value: &Value,
    locks: &[Keys],
) -> Result<Vec<distlock_core::state::LockState>, Error> {
    let wrong = || odd("inspect", value);
    let (_, seen) = looked(value, locks.len()).ok_or_else(wrong)?;
    let state = |lock: &Value| match lock {
        Value::Array(lock) => record::read(lock).map(Option::unwrap_or_default),
        _ => Err(wrong()),
    };
    seen.iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::Outcome;

    #[test]
    fn an_answer_that_does_not_fit_is_an_error_that_shows_it() {
        let ints = |ns: &[i64]| Value::Array(ns.iter().map(|n| Value::Int(*n)).collect());
        let odds = [
            Value::Nil,
            Value::Okay,
            Value::Int(-7),
            Value::SimpleString("é".repeat(500)),
            ints(&[]),
            ints(&[1, 0, 1, 1, 1, 1]),
            ints(&[2, -1, 0]),
            ints(&[2, 0, 0, 5]),
            ints(&[4, 2, 2]),
            ints(&[5]),
            ints(&[9]),
            Value::Array(vec![Value::Int(2), Value::Int(0), Value::Int(0), Value::Nil]),
        ];
        for odd in &odds {
            let errors = [
                acquired(odd, Duration::ZERO).unwrap_err(),
                pulses(odd, 7).unwrap_err(),
                renewals(odd, 7).unwrap_err(),
                released(odd).unwrap_err(),
                cancelled(odd).unwrap_err(),
                forced(odd).unwrap_err(),
                inspected(odd, &[Keys { lock: "dl:{:a}".to_owned() }]).unwrap_err(),
            ];
            for e in errors {
                assert_eq!((e.kind(), e.outcome()), (Kind::Store, Outcome::Unknown), "{odd:?}");
                assert!(e.hint().is_some() && e.to_string().len() < 400, "{e}");
            }
        }
    }
}
