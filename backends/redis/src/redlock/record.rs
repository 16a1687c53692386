//! A lock's record at a node, read back: what `inspect` answers becomes the state it stands for.

use distlock_core::quorum::{Generation, NodeHold, NodePhase, NodeState, NodeWaiter, Round, Who};
use distlock_core::{Error, Label, Micros, Owner, ReqId, Token};
use redis::Value;

use super::replies::odd;
use crate::packed_cursor::PackedCursor;
use crate::reply_cursor::ReplyCursor;

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
        let mut bytes = PackedCursor(record);
        if bytes.byte()? != 1 {
            return None;
        }
        (state.hi, state.generation) = (bytes.number()?, bytes.number()?);
        bytes.bytes(4 + 8 + 8 + 8 + 1 + 4)?;
        if bytes.byte()? == 1 {
            let (hold, place) = hold(&mut bytes, state.generation)?;
            (state.hold, placed) = (Some(hold), place);
        }
    }
    state.line = line.iter().map(waiter).collect::<Option<Vec<_>>>()?;
    state.line.extend(placed);
    Some(state)
}

fn hold(bytes: &mut PackedCursor<'_>, generation: u64) -> Option<(NodeHold, Option<NodeWaiter>)> {
    let (req, round) = (bytes.req()?, Round(bytes.number()?));
    let token = Token::new(bytes.number()?).ok();
    let (accepted, base) = (bytes.byte()? == 1, bytes.number()?);
    let (granted, expires) = (bytes.time()?, bytes.time()?);
    let min_hold = bytes.duration()?;
    let phase = match bytes.byte()? {
        0 => NodePhase::Held,
        1 => NodePhase::Lingering,
        2 => NodePhase::Revoked,
        _ => return None,
    };
    let (healed, placed) = (bytes.byte()? == 1, bytes.byte()? == 1);
    let (ticket, deadline) = (bytes.number()?, bytes.time()?);
    let backed = bytes.byte()? == 1;
    let (owner, via, label) = who(bytes.sized()?)?;
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
    let mut words = ReplyCursor::of(value)?;
    let req = ReqId::from_bytes(words.bytes()?.try_into().ok()?);
    let (ticket, deadline) = (words.score()?, Micros(words.score()?));
    let (backed, mut about) = (words.bytes()? == b"1", PackedCursor(words.bytes()?));
    let since = about.time()?;
    let (owner, via, label) = who(about.0)?;
    let who = Who { req, owner, label, via };
    Some(NodeWaiter { who, ticket, since, deadline, backed })
}

/// Owner, channel and label.
pub(crate) fn who(blob: &[u8]) -> Option<(Owner, String, Label)> {
    let mut bytes = PackedCursor(blob);
    let mut part = || std::str::from_utf8(bytes.sized()?).ok();
    let (owner, via, label) = (part()?, part()?, part()?);
    Some((Owner::named(owner).ok()?, via.to_owned(), Label::new(label)))
}
