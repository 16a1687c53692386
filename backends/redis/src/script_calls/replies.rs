//! Decodes script replies into the core's reply types.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{Claim, End, Left, Pulse, Refusal};
use distlock_core::{Error, Holder, LockInfo, LossReason, Micros, Reply, ReqId};
use redis::Value;

use super::record::{self, claim_of, mode_of};
use crate::errors;
use crate::keys::Keys;
use crate::reply_cursor::ReplyCursor;

fn odd(op: &'static str, value: &Value) -> Error {
    errors::odd(value).during(op)
}

/// The holder, if the reply names one.
fn holder(words: &mut ReplyCursor<'_>) -> Option<Option<Holder>> {
    if words.0.is_empty() {
        return Some(None);
    }
    let (token, age, left) = (words.token()?, words.span()?, Some(words.span()?));
    let Claim { owner, label, .. } = claim_of(ReqId::from_bytes([0; 16]), words.bytes()?)?;
    Some(Some(Holder { label, owner, token, age, left }))
}

fn acquired_of(words: &mut ReplyCursor<'_>) -> Option<Reply> {
    Some(match words.number()? {
        1 => Reply::Granted {
            token: words.token()?,
            block: NonZeroU32::new(words.count()?)?,
            remaining: words.span()?,
            waiters: words.count()?,
            floor: words.token()?,
        },
        kind @ (2 | 3) => {
            let (ahead, left) = (words.count()?, words.maybe_span()?);
            let why = Left { holder: holder(words)?, left };
            if kind == 2 { Reply::Waiting { ahead, why } } else { Reply::Busy { ahead, why } }
        }
        4 => Reply::Refused(match words.number()? {
            0 => Refusal::PermitsDiffer(NonZeroU32::new(words.count()?)?),
            1 => Refusal::ModeDiffers(mode_of(words.signed()?.try_into().ok()?)?),
            _ => return None,
        }),
        5 => Reply::Tombstoned(match words.number()? {
            0 => End::Released,
            1 => End::Cancelled,
            _ => return None,
        }),
        _ => return None,
    })
}

/// The answer to an acquire for `ttl`. A lock that was free is answered by its token alone.
pub(crate) fn acquired(value: &Value, ttl: Duration) -> Result<Reply, Error> {
    let reply = match value {
        Value::Int(_) => {
            ReplyCursor(std::slice::from_ref(value)).token().map(|token| Reply::Granted {
                token,
                block: NonZeroU32::MIN,
                remaining: ttl,
                waiters: 0,
                floor: token,
            })
        }
        _ => ReplyCursor::of(value).and_then(|mut words| acquired_of(&mut words)),
    };
    reply.ok_or_else(|| odd("acquire", value))
}

/// The answers of a batch: two numbers each.
fn batch(
    op: &'static str,
    value: &Value,
    n: usize,
    one: fn(ReplyCursor<'_>) -> Option<Reply>,
) -> Result<Vec<Reply>, Error> {
    let words = ReplyCursor::of(value).filter(|words| words.0.len() == 2 * n);
    let replies =
        words.and_then(|words| words.0.chunks_exact(2).map(|p| one(ReplyCursor(p))).collect());
    replies.ok_or_else(|| odd(op, value))
}

/// The answers to heartbeats of `n` waiters, in their order.
pub(crate) fn pulses(value: &Value, n: usize) -> Result<Vec<Reply>, Error> {
    batch("heartbeat", value, n, |mut words| {
        Some(Reply::Pulse(match words.signed()? {
            -1 => Pulse::Turn,
            -2 => Pulse::Unknown,
            ahead => Pulse::Queued { ahead: ahead.try_into().ok()?, left: words.maybe_span()? },
        }))
    })
}

/// The answers to renewals of `n` holds, in their order.
pub(crate) fn renewals(value: &Value, n: usize) -> Result<Vec<Reply>, Error> {
    batch("renew", value, n, |mut words| {
        Some(match words.signed()? {
            -1 => Reply::Lost(LossReason::Gone),
            -2 => Reply::Lost(LossReason::Revoked),
            left => Reply::Renewed {
                remaining: Duration::from_micros(left.try_into().ok()?),
                waiters: words.count()?,
            },
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
    let mut words = ReplyCursor::of(value)?;
    let now = Micros(words.number()?);
    (words.0.len() == n).then_some((now, words.0))
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
    use distlock_core::{Kind, Outcome};

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
