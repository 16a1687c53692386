//! A lock's record at a node, read back: what `inspect` answers becomes the state it stands for.

use std::time::Duration;

use distlock_core::quorum::{Generation, NodeHold, NodePhase, NodeState, NodeWaiter, Round, Who};
use distlock_core::state::Micros;
use distlock_core::{Error, Label, Owner, ReqId, Token};
use redis::Value;

use super::replies::odd;

/// What time it is at the node, and the states of the locks that were looked at. Tombstones are
/// left out: they are seen by what they forbid.
pub(crate) fn states(value: &Value) -> Result<(Micros, Vec<NodeState>), Error> {
    read(value).ok_or_else(|| odd(value))
}

fn read(value: &Value) -> Option<(Micros, Vec<NodeState>)> {
    let Value::Array(words) = value else { return None };
    let (Value::Int(now), seen) = words.split_first()? else { return None };
    let states = seen.iter().map(state).collect::<Option<Vec<_>>>()?;
    Some((Micros((*now).try_into().ok()?), states))
}

fn state(value: &Value) -> Option<NodeState> {
    let Value::Array(parts) = value else { return None };
    let [Value::BulkString(record), Value::Array(line)] = &parts[..] else { return None };
    let mut state = NodeState::default();
    let mut placed = None;
    if !record.is_empty() {
        let mut bytes = Bytes(record);
        if bytes.byte()? != 1 {
            return None;
        }
        (state.hi, state.generation) = (bytes.number()?, bytes.number()?);
        bytes.take(4 + 8 + 8 + 8 + 1 + 4)?;
        if bytes.byte()? == 1 {
            let (hold, place) = hold(&mut bytes, state.generation)?;
            (state.hold, placed) = (Some(hold), place);
        }
    }
    state.line = line.iter().map(waiter).collect::<Option<Vec<_>>>()?;
    state.line.extend(placed);
    Some(state)
}

fn hold(bytes: &mut Bytes<'_>, generation: u64) -> Option<(NodeHold, Option<NodeWaiter>)> {
    let req = ReqId::from_bytes(bytes.take(16)?.try_into().ok()?);
    let round = Round(bytes.number()?);
    let token = Token::new(bytes.number()?).ok();
    let accepted = bytes.byte()? == 1;
    let base = bytes.number()?;
    let (granted, expires) = (Micros(bytes.number()?), Micros(bytes.number()?));
    let min_hold = Duration::from_micros(bytes.number()?);
    let phase = match bytes.byte()? {
        0 => NodePhase::Held,
        1 => NodePhase::Lingering,
        2 => NodePhase::Revoked,
        _ => return None,
    };
    let healed = bytes.byte()? == 1;
    let placed = bytes.byte()? == 1;
    let (ticket, deadline) = (bytes.number()?, Micros(bytes.number()?));
    let backed = bytes.byte()? == 1;
    let len = bytes.take(2)?;
    let (owner, via, label) = who(bytes.take(u16::from_le_bytes(len.try_into().ok()?).into())?)?;
    let who = Who { req, owner, label, via };
    let place =
        placed.then(|| NodeWaiter { who: who.clone(), ticket, since: granted, deadline, backed });
    let generation = Generation(generation);
    let hold = NodeHold {
        who,
        round,
        generation,
        token,
        accepted,
        base,
        granted,
        expires,
        min_hold,
        phase,
        healed,
    };
    Some((hold, place))
}

fn waiter(value: &Value) -> Option<NodeWaiter> {
    let Value::Array(words) = value else { return None };
    let words: Option<Vec<&[u8]>> = words
        .iter()
        .map(|word| match word {
            Value::BulkString(bytes) => Some(&bytes[..]),
            _ => None,
        })
        .collect();
    let [req, ticket, deadline, backed, about] = words?[..] else { return None };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<f64>().ok();
    let req = ReqId::from_bytes(req.try_into().ok()?);
    let mut about = Bytes(about);
    let since = Micros(about.number()?);
    let (owner, via, label) = who(about.0)?;
    Some(NodeWaiter {
        who: Who { req, owner, label, via },
        ticket: number(ticket)? as u64,
        since,
        deadline: Micros(number(deadline)? as u64),
        backed: backed == b"1",
    })
}

/// Owner, channel and label.
pub(crate) fn who(blob: &[u8]) -> Option<(Owner, String, Label)> {
    let mut bytes = Bytes(blob);
    let mut part = || {
        let len = u16::from_le_bytes(bytes.take(2)?.try_into().ok()?);
        std::str::from_utf8(bytes.take(len.into())?).ok()
    };
    let (owner, via, label) = (part()?, part()?, part()?);
    Some((Owner::named(owner).ok()?, via.to_owned(), Label::new(label)))
}

/// Packed bytes, read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    /// Whole numbers below 2^53 are kept as doubles, the only numbers of the scripts.
    fn number(&mut self) -> Option<u64> {
        let double = f64::from_le_bytes(self.take(8)?.try_into().ok()?);
        (0.0..9_007_199_254_740_992.0).contains(&double).then_some(double as u64)
    }
}
