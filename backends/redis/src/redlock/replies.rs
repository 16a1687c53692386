//! Decodes the replies of one node's scripts; the quorum is counted in the core.

use std::time::Duration;

use distlock_core::quorum::{Committed, Generation, NodeReply, Vote};
use distlock_core::{Error, Forced, Holder, LossReason, Micros, QueueStatus, Released, Token};
use redis::Value;

use super::record;
pub(crate) use crate::errors::odd;
use crate::reply_cursor::ReplyCursor;

/// A vote, and what time it was at the node. `why` says what a quarantine is for.
pub(crate) fn vote(value: &Value, why: &str) -> Result<(Vote, Micros), Error> {
    read_vote(value, why).ok_or_else(|| odd(value))
}

fn read_vote(value: &Value, why: &str) -> Option<(Vote, Micros)> {
    let mut words = ReplyCursor::of(value)?;
    let (which, now) = (words.number()?, Micros(words.number()?));
    let vote = match which {
        1 => Vote::Granted {
            accepted: words.number()? == 1,
            base: Some(words.number()?),
            generation: Generation(words.number()?),
            left: words.span()?,
            waiters: words.count()?,
        },
        2 => {
            let queued = words.number()? == 1;
            let ahead = u32::try_from(words.signed()?).ok();
            let left = u64::try_from(words.signed()?).ok().map(Duration::from_micros);
            let holder = if words.0.is_empty() { None } else { Some(holder(&mut words, left)?) };
            Vote::Busy { status: QueueStatus { holder, ahead, left, note: None }, queued }
        }
        3 => Vote::NotYet { left: words.span()?, why: why.to_owned() },
        4 => Vote::Tombstoned,
        _ => return None,
    };
    Some((vote, now))
}

fn holder(words: &mut ReplyCursor<'_>, left: Option<Duration>) -> Option<Holder> {
    let (token, age) = (words.token()?, words.span()?);
    let (owner, _, label) = record::who(words.bytes()?)?;
    Some(Holder { label, owner, token, age, left })
}

/// The votes of a batch, one for each.
pub(crate) fn votes(value: &Value, count: usize, why: &str) -> Result<Vec<Vote>, Error> {
    each(value, count)?.iter().map(|v| vote(v, why).map(|(vote, _)| vote)).collect()
}

pub(super) fn each(value: &Value, count: usize) -> Result<&[Value], Error> {
    match value {
        Value::Array(answers) if answers.len() == count => Ok(answers),
        other => Err(odd(other)),
    }
}

/// The renewals of a batch, one for each.
pub(crate) fn renewals(value: &Value, count: usize) -> Result<Vec<NodeReply>, Error> {
    each(value, count)?.iter().map(|v| renewal(v).ok_or_else(|| odd(v))).collect()
}

fn renewal(value: &Value) -> Option<NodeReply> {
    let mut words = ReplyCursor::of(value)?;
    Some(match words.number()? {
        0 => NodeReply::Lost(LossReason::Gone),
        1 => NodeReply::Kept {
            generation: Generation(words.number()?),
            left: words.span()?,
            token: Token::new(words.number()?).ok(),
            waiters: words.count()?,
        },
        2 => NodeReply::Lost(LossReason::Revoked),
        _ => return None,
    })
}

fn yes(value: &Value) -> Result<bool, Error> {
    match value {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => Err(odd(other)),
    }
}

pub(crate) fn committed(value: &Value) -> Result<Committed, Error> {
    Ok(if yes(value)? { Committed::Yes } else { Committed::Lost })
}

pub(crate) fn released(value: &Value) -> Result<Released, Error> {
    Ok(if yes(value)? { Released::Released } else { Released::WasLost })
}

pub(crate) fn cancelled(value: &Value) -> Result<(), Error> {
    yes(value).map(drop)
}

pub(crate) fn forced(value: &Value) -> Result<Forced, Error> {
    Ok(if yes(value)? { Forced::Done } else { Forced::NoMatch })
}
