//! A lock's row, and the state it stands for.
//!
//! The usual hold (one, believed in, without a `min_hold`) has columns of its own, so that one
//! statement can take, renew and free it. Any other holds are in `rest`, and `req` is NULL: then no
//! short statement matches, and the long way is taken.
//!
//! With one exception: while the only hold is the turn of a waiter, and all that is left to do is
//! that it confirms, those columns say what the confirmation makes of it. Then `claim` is not NULL
//! though `req` is, and `expires` is when the fast path stops being valid: the promotion expires,
//! or a waiter's deadline passes. Every change of the queue writes the row, too, so what it says of the queue stays
//! true; a heartbeat alone only moves the ends of waiters, and only on.

use distlock_core::state::{Claim, End, Hold, Phase, Tombstone};
use distlock_core::{Error, Kind, LockState, Micros, Mode, ReqId, Rules};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::sql::{hex, micros, number};
use crate::{queue, schema::Tables};

/// The columns a state is read from.
pub(crate) const COLUMNS: &str = "hi, nwait, delay_until, req, token, block, expires, granted, \
                                  claim, rest, released, cancelled";
/// A tombstone: its id and until when it is remembered.
const ENTRY: usize = 16 + 8;
/// How many bytes of released requests a row remembers.
pub(crate) const RELEASED: usize = 8 * ENTRY;

/// Calls are repeated by their own caller only, so few released requests need remembering.
pub(crate) fn rules() -> Rules {
    Rules { released_cap: RELEASED / ENTRY, ..Rules::default() }
}

/// What has no columns of its own.
#[derive(Serialize, Deserialize, Default)]
struct Rest {
    #[serde(default)]
    holds: Vec<Hold>,
    /// Released requests that are not in the order of their ends.
    #[serde(default)]
    released: Vec<Tombstone>,
}

/// A row as it was read.
pub(crate) struct Record {
    /// Without its queue.
    pub(crate) state: LockState,
    /// How many rows the queue has.
    pub(crate) waiters: u64,
}

fn undecodable(what: &'static str) -> Error {
    Error::new(Kind::Layout, what)
        .with_hint("a newer version may have written it; or delete the row once nobody holds it")
}

impl Record {
    /// A lock that has no row.
    pub(crate) fn none() -> Self {
        Self { state: LockState::default(), waiters: 0 }
    }

    pub(crate) fn read(row: &MySqlRow) -> Result<Self, Error> {
        let odd =
            |e: sqlx::Error| undecodable("the row of this lock could not be decoded").because(e);
        let rest: Option<Vec<u8>> = row.try_get("rest").map_err(odd)?;
        let mut rest = match rest {
            None => Rest::default(),
            Some(text) => serde_json::from_slice(&text).map_err(|e| {
                undecodable("the holds of this lock could not be decoded").because(e)
            })?,
        };
        let req: Option<Vec<u8>> = row.try_get("req").map_err(odd)?;
        if req.is_some() {
            let claim: Vec<u8> = row.try_get("claim").map_err(odd)?;
            let claim = serde_json::from_slice(&claim).map_err(|e| {
                undecodable("the claim of this lock could not be decoded").because(e)
            })?;
            rest.holds.push(Hold {
                claim,
                token: number(row, "token").map_err(odd)?,
                block: row.try_get("block").map_err(odd)?,
                expires: micros(row, "expires").map_err(odd)?,
                granted: micros(row, "granted").map_err(odd)?,
                phase: Phase::Held,
            });
        }
        let released: Vec<u8> = row.try_get("released").map_err(odd)?;
        let cancelled: Option<Vec<u8>> = row.try_get("cancelled").map_err(odd)?;
        let mut tombstones: Vec<Tombstone> = entries(&released, End::Released).collect();
        tombstones.append(&mut rest.released);
        tombstones.extend(entries(&cancelled.unwrap_or_default(), End::Cancelled));
        let state = LockState {
            holds: rest.holds,
            hi: number(row, "hi").map_err(odd)?,
            delay_until: micros(row, "delay_until").map_err(odd)?,
            tombstones: tombstones.into(),
            ..LockState::default()
        };
        let waiters: u32 = row.try_get("nwait").map_err(odd)?;
        Ok(Self { state, waiters: waiters.into() })
    }

    /// Whether a state differs from this by more than what time alone took away.
    pub(crate) fn differs(&self, state: &LockState, waiters: u64, now: Micros) -> bool {
        let live = |state: &LockState| {
            let mut live: Vec<Tombstone> =
                state.tombstones.iter().filter(|s| s.until > now).copied().collect();
            live.sort_by_key(|s| s.end == End::Cancelled);
            live
        };
        self.waiters != waiters
            || self.state.hi != state.hi
            || self.state.delay_until != state.delay_until
            || self.state.holds != state.holds
            || live(&self.state) != live(state)
    }

    /// The assignments that turn this row into a state with this many waiters; those of them that were
    /// not read are found there.
    pub(crate) fn assignments(
        &self,
        state: &LockState,
        waiters: u64,
        unread: (&Tables, &str),
    ) -> Result<String, Error> {
        let cannot =
            |e| Error::new(Kind::Store, "the state of this lock could not be encoded").because(e);
        let of = |end: End| state.tombstones.iter().filter(move |s| s.end == end);
        let mut rest = Rest::default();
        let in_order = of(End::Released).is_sorted_by_key(|s| s.until);
        if !in_order {
            rest.released = of(End::Released).copied().collect();
        }
        let mut usual = "req=NULL, claim=NULL".to_owned();
        match state.holds.as_slice() {
            [h] if h.phase == Phase::Held && h.claim.min_hold.is_zero() && in_order => {
                let (req, claim) = (hex(h.claim.req.as_bytes()), hex(written(&h.claim)?));
                usual = columns(h, &req, &claim, &h.expires.0.to_string());
            }
            holds => {
                if let Some((h, until)) = turn(state).filter(|_| in_order) {
                    let (mut claim, mut until) = (hex(written(&h.claim)?), until.0.to_string());
                    // A waiter that was not read may be of its owner, too, or be over sooner.
                    if waiters != state.queue.len() as u64 {
                        claim =
                            format!("IF({},NULL,{claim})", queue::has_others_of(unread, &h.claim));
                        until = format!("LEAST({until},{})", queue::soonest(unread));
                    }
                    usual = columns(h, "NULL", &claim, &until);
                }
                rest.holds = holds.to_vec();
            }
        }
        let rest = if rest.holds.is_empty() && rest.released.is_empty() {
            "NULL".to_owned()
        } else {
            hex(serde_json::to_vec(&rest).map_err(cannot)?)
        };
        let released = if in_order { blob(of(End::Released)) } else { Vec::new() };
        let mut set = format!(
            "ver=ver+1, hi={}, nwait={waiters}, delay_until={}, {usual}, rest={rest}, released={}",
            state.hi,
            state.delay_until.0,
            hex(released)
        );
        let cancelled = blob(of(End::Cancelled));
        // Thousands of them may be remembered: not to be sent each time.
        if cancelled != blob(self.state.tombstones.iter().filter(|s| s.end == End::Cancelled)) {
            set += ", cancelled=";
            set += &if cancelled.is_empty() { "NULL".to_owned() } else { hex(cancelled) };
        }
        Ok(set)
    }
}

/// A claim as it is written down.
pub(crate) fn written(claim: &Claim) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(claim)
        .map_err(|e| Error::new(Kind::Store, "a claim could not be encoded").because(e))
}

/// The columns of the usual hold.
fn columns(h: &Hold, req: &str, claim: &str, expires: &str) -> String {
    let Hold { token, block, granted, .. } = h;
    format!(
        "req={req}, claim={claim}, token={token}, block={block}, expires={expires}, granted={}",
        granted.0
    )
}

/// The only hold, if it is the turn of a waiter whose confirmation does nothing but make it a usual
/// one, and until when that is so; as far as the queue was read.
///
/// A waiter that has its turn has not been cancelled, or it would not have it. While it is
/// exclusive nobody fits beside it, whatever the queue; only others of its owner would be let in
/// with it.
fn turn(state: &LockState) -> Option<(&Hold, Micros)> {
    let [h] = state.holds.as_slice() else { return None };
    let claim = &h.claim;
    let claimed = matches!(h.phase, Phase::Claimed { .. });
    let usual = claim.mode == Mode::Exclusive && claim.min_hold.is_zero() && claim.block.get() == 1;
    let alone = state.queue.iter().all(|w| w.claim.owner != claim.owner);
    let soonest = state.queue.iter().map(|w| w.deadline).fold(h.expires, Micros::min);
    // A hold that entered with another of its owner has that one's tokens, perhaps several.
    let one = h.block == claim.block.get();
    (claimed && usual && one && alone).then_some((h, soonest))
}

fn entries(blob: &[u8], end: End) -> impl Iterator<Item = Tombstone> + '_ {
    blob.chunks_exact(ENTRY).map(move |entry| {
        let (mut req, mut until) = ([0; 16], [0; 8]);
        req.copy_from_slice(&entry[..16]);
        until.copy_from_slice(&entry[16..]);
        let until = Micros(u64::from_be_bytes(until));
        Tombstone { req: ReqId::from_bytes(req), end, until }
    })
}

fn blob<'a>(all: impl Iterator<Item = &'a Tombstone>) -> Vec<u8> {
    all.flat_map(|s| s.req.as_bytes().iter().copied().chain(s.until.0.to_be_bytes())).collect()
}
