//! The lock's record, read in Rust: for listings, and for tests that look at all of it.

use std::collections::HashMap;
use std::num::NonZeroU32;

use distlock_core::state::{Claim, Hold, Phase, Waiter};
use distlock_core::{Error, Kind, Label, LockState, Micros, Mode, Owner, ReqId};
use redis::Value;

use crate::packed_cursor::PackedCursor;
use crate::scripts::UNREACHABLE;

/// The layout this build writes and reads.
const VERSION: u8 = 1;

/// A mode from its number.
pub(super) fn mode_of(n: i32) -> Option<Mode> {
    Some(match n {
        0 => Mode::Exclusive,
        -1 => Mode::Shared,
        n => Mode::Permit(NonZeroU32::new(u32::try_from(n).ok()?)?),
    })
}

/// A claim of a request.
pub(super) fn claim_of(req: ReqId, blob: &[u8]) -> Option<Claim> {
    let mut rest = PackedCursor(blob);
    let (min_hold, ttl, lock_delay) = (rest.duration()?, rest.duration()?, rest.duration()?);
    let mode = mode_of(rest.take().map(|b| i32::from_le_bytes(*b))?)?;
    let block = NonZeroU32::new(rest.small()?)?;
    let owner = Owner::named(rest.text()?).ok()?;
    let via = rest.text()?.to_owned();
    let label = Label::new(rest.text()?);
    Some(Claim { req, owner, mode, ttl, min_hold, lock_delay, label, block, via })
}

fn hold_of(rest: &mut PackedCursor<'_>) -> Option<Hold> {
    let (token, block) = (rest.number()?, rest.small()?);
    let (since, deadline) = (rest.time()?, rest.time()?);
    let (req, phase) = (rest.req()?, rest.byte()?);
    let (expires, granted) = (rest.time()?, rest.time()?);
    let phase = match phase {
        0 => Phase::Held,
        1 => Phase::Claimed { since, deadline },
        2 => Phase::Lingering,
        3 => Phase::Revoked,
        _ => return None,
    };
    let claim = claim_of(req, rest.sized()?)?;
    Some(Hold { claim, token, block, expires, granted, phase })
}

/// A lock's state without its queue and its tombstones.
fn state_of(record: &[u8]) -> Option<LockState> {
    let mut rest = PackedCursor(record);
    rest.bytes(1 + 4)?; // the version; how many wait
    let holds = rest.small()?;
    rest.bytes(8)?;
    let ring = rest.byte()?;
    rest.bytes(ring.into())?;
    let (hi, delay_until) = (rest.number()?, rest.time()?);
    rest.bytes(4 + 5 * 8)?;
    let holds = (0..holds).map(|_| hold_of(&mut rest)).collect::<Option<Vec<_>>>()?;
    Some(LockState { holds, hi, delay_until, ..LockState::default() })
}

/// Members or fields of a reply, each with what follows it.
fn pairs(value: &Value) -> Option<impl Iterator<Item = (&[u8], &[u8])>> {
    let Value::Array(items) = value else { return None };
    Some(items.chunks_exact(2).filter_map(|pair| match pair {
        [Value::BulkString(a), Value::BulkString(b)] => Some((a.as_slice(), b.as_slice())),
        _ => None,
    }))
}

fn scores(value: &Value) -> Option<HashMap<&[u8], f64>> {
    let score = |s| std::str::from_utf8(s).ok()?.parse().ok();
    pairs(value)?.map(|(req, s)| Some((req, score(s)?))).collect()
}

fn queue_of(places: &Value, deadlines: &Value, claims: &Value) -> Option<Vec<Waiter>> {
    let (places, deadlines) = (scores(places)?, scores(deadlines)?);
    let waiter = |(req, blob): (&[u8], &[u8])| {
        let (place, deadline) = (*places.get(req)?, *deadlines.get(req)?);
        let req = ReqId::from_bytes(req.try_into().ok()?);
        let (place, unreachable) = (place as u64, place as u64 >= UNREACHABLE);
        let since = Micros(if unreachable { place - UNREACHABLE } else { place });
        let claim = claim_of(req, blob)?;
        Some(Waiter { claim, since, deadline: Micros(deadline as u64), unreachable })
    };
    // The fields that are no requests are counts.
    let mut queue: Vec<Waiter> = pairs(claims)?.filter_map(waiter).collect();
    queue.sort_unstable_by_key(|w| w.since);
    Some(queue)
}

/// A lock's state from what `inspect` answered of it: its record and, if there is one, its queue.
pub(super) fn read(lock: &[Value]) -> Result<Option<LockState>, Error> {
    let Some(Value::BulkString(record)) = lock.first() else { return Ok(None) };
    if record.first() != Some(&VERSION) {
        return Err(Error::new(Kind::Layout, "a lock's record was written by a newer distlock")
            .with_hint("bring every client of this server to the same version"));
    }
    let odd = || {
        Error::new(Kind::Layout, "a lock's record makes no sense")
            .with_hint("something else writes to keys that begin with dl:; give it another prefix")
    };
    let mut state = state_of(record).ok_or_else(odd)?;
    if let [_, places, deadlines, claims] = lock {
        state.queue = queue_of(places, deadlines, claims).ok_or_else(odd)?.into_iter().collect();
    }
    Ok(Some(state))
}
