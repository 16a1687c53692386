//! What the scripts answer.

use std::time::Duration;

use distlock_core::backend::{Forced, Released};
use distlock_core::quorum::{Committed, Generation, NodeReply, Vote};
use distlock_core::state::Micros;
use distlock_core::{Error, Holder, Kind, LossReason, QueueStatus, Token};
use redis::Value;

use super::record;

/// An answer that no script gives.
pub(crate) fn odd(value: &Value) -> Error {
    Error::new(Kind::Store, format!("an answer that makes no sense: {value:?}"))
        .unknown()
        .with_hint("see whether something between us and the server changes what it says")
}

/// The words of an answer, one after the other.
struct Words<'a>(&'a [Value]);

impl<'a> Words<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(words) => Some(Self(words)),
            _ => None,
        }
    }

    fn signed(&mut self) -> Option<i64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        match first {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u64> {
        self.signed()?.try_into().ok()
    }

    fn span(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    fn count(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        match first {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A vote, and what time it was at the node. `why` says what a quarantine is for.
pub(crate) fn vote(value: &Value, why: &str) -> Result<(Vote, Micros), Error> {
    read_vote(value, why).ok_or_else(|| odd(value))
}

fn read_vote(value: &Value, why: &str) -> Option<(Vote, Micros)> {
    let mut words = Words::of(value)?;
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

fn holder(words: &mut Words<'_>, left: Option<Duration>) -> Option<Holder> {
    let (token, age) = (Token::new(words.number()?).ok()?, words.span()?);
    let (owner, _, label) = record::who(words.bytes()?)?;
    Some(Holder { label, owner, token, age, left })
}

/// The votes of a batch, one for each.
pub(crate) fn votes(value: &Value, count: usize, why: &str) -> Result<Vec<Vote>, Error> {
    each(value, count)?.iter().map(|v| vote(v, why).map(|(vote, _)| vote)).collect()
}

fn each(value: &Value, count: usize) -> Result<&[Value], Error> {
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
    let mut words = Words::of(value)?;
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
