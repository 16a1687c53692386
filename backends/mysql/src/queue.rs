//! The queue of a lock, as much of it as a move needs.
//!
//! A move looks at the first reachable waiters, at the waiter it is about and at the last; a queue
//! of ten thousand need not be read to serve its head. What is not read counts: it stands behind
//! the first, and its number is known.

use std::collections::{BTreeMap, HashSet};

use distlock_core::state::{Claim, Pulse, Waiter};
use distlock_core::{Error, Kind, LockState, Micros, Mode, Op, Reply, ReqId};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::record::written;
use crate::schema::Tables;
use crate::sql::{NOW, hex, list, micros};

/// A queue up to this long is read as it is: looking for what a move needs of it costs the server
/// more.
pub(crate) const SHORT: usize = 24;
/// How many of the first are read of a longer one.
const FIRST: usize = 8;
/// Max positions that are counted: a waiter further back is told that at least this many are ahead. To
/// count them all for each would be quadratic.
pub(crate) const COUNTED: usize = 1024;
/// Max expired waiters that one operation reads and deletes.
const OVER: usize = 500;

const COLUMNS: &str = "req, since, deadline, deaf, claim";

/// The statement that reads a short line, or shows that it is not.
pub(crate) fn short(tables: &Tables, at: &str, most: usize) -> String {
    format!("SELECT {COLUMNS} FROM {} WHERE {at} LIMIT {}", tables.wait, most + 1)
}

/// The statements that read what some moves on a lock need of a long queue: waiters, then the places
/// ahead of the waiters that the moves are about.
pub(crate) fn select(tables: &Tables, at: &str, ops: &[Op], all: bool) -> [String; 2] {
    let wait = &tables.wait;
    let reqs = list(ops.iter().filter_map(about));
    let places = if reqs.is_empty() {
        "SELECT since FROM (SELECT 0 AS since) none WHERE FALSE".to_owned()
    } else {
        format!(
            "SELECT since FROM {wait} WHERE {at} AND since < \
             (SELECT MAX(since) FROM {wait} WHERE {at} AND req IN ({reqs})) \
             ORDER BY since LIMIT {COUNTED}"
        )
    };
    if all {
        return [format!("SELECT {COLUMNS} FROM {wait} WHERE {at}"), places];
    }
    let mut parts = vec![
        format!("ORDER BY since LIMIT {FIRST}"),
        format!("AND deaf=0 ORDER BY since LIMIT {FIRST}"),
        "ORDER BY since DESC LIMIT 1".to_owned(),
        format!("AND deadline<={NOW} LIMIT {OVER}"),
    ];
    if !reqs.is_empty() {
        parts.push(format!("AND req IN ({reqs})"));
    }
    for op in ops {
        let Op::Acquire { claim, .. } = op else { continue };
        // Others of the same owner may enter with it.
        parts.push(format!("AND owner={}", hex(claim.owner.as_str())));
        if let Mode::Permit(n) = claim.mode {
            // All of a queue agree on the number, so that any that differs is as good as the first.
            parts.push(format!("AND permits>0 AND permits<{n} LIMIT 1"));
            parts.push(format!("AND permits>{n} LIMIT 1"));
        }
    }
    let part = |p: &String| format!("(SELECT {COLUMNS} FROM {wait} WHERE {at} {p})");
    [parts.iter().map(part).collect::<Vec<_>>().join(" UNION ALL "), places]
}

/// Whether somebody else of a claim's owner stands in the queue.
pub(crate) fn has_others_of((tables, at): (&Tables, &str), claim: &Claim) -> String {
    let (owner, req) = (hex(claim.owner.as_str()), hex(claim.req.as_bytes()));
    format!("EXISTS(SELECT 1 FROM {} WHERE {at} AND owner={owner} AND req<>{req})", tables.wait)
}

/// When the first in the queue is over; a queue that nobody is in is over already.
pub(crate) fn soonest((tables, at): (&Tables, &str)) -> String {
    format!("(SELECT COALESCE(MIN(deadline),0) FROM {} WHERE {at})", tables.wait)
}

/// The request that an operation is about.
fn about(op: &Op) -> Option<&ReqId> {
    match op {
        Op::Acquire { claim, .. } => Some(&claim.req),
        Op::Heartbeat { req, .. }
        | Op::Release { req }
        | Op::Cancel { req }
        | Op::Withdraw { req, .. } => Some(req),
        Op::Renew { .. } | Op::Force { .. } | Op::Settle => None,
    }
}

/// What was read of a queue.
pub(crate) struct Line {
    /// In their order.
    pub(crate) read: BTreeMap<Micros, Waiter>,
    /// How many were not.
    hidden: u64,
    /// The positions of those before the ones that are asked about, in order; read or not.
    places: Vec<Micros>,
    /// The first reachable waiters, if there may be more of them than were read.
    hearing: Option<HashSet<ReqId>>,
}

impl Line {
    pub(crate) fn of<'a>(
        waiters: impl IntoIterator<Item = &'a MySqlRow>,
        places: &[MySqlRow],
        count: u64,
        all: bool,
    ) -> Result<Self, Error> {
        let odd = |e: sqlx::Error| undecodable().because(e);
        let mut read = BTreeMap::new();
        for row in waiters {
            let claim: Vec<u8> = row.try_get("claim").map_err(odd)?;
            let since = micros(row, "since").map_err(odd)?;
            let unreachable: i8 = row.try_get("deaf").map_err(odd)?;
            read.insert(
                since,
                Waiter {
                    claim: serde_json::from_slice(&claim).map_err(|e| undecodable().because(e))?,
                    since,
                    deadline: micros(row, "deadline").map_err(odd)?,
                    unreachable: unreachable != 0,
                },
            );
        }
        let mut places: Vec<Micros> =
            places.iter().map(|r| micros(r, "since").map_err(odd)).collect::<Result<_, _>>()?;
        places.sort_unstable();
        // Fewer than the first few is all there are, whatever the count says.
        let complete = all || read.len() < FIRST;
        let hidden = if complete { 0 } else { count.saturating_sub(read.len() as u64) };
        let hearing = read.values().filter(|w| !w.unreachable).map(|w| w.claim.req).take(FIRST);
        let hearing: HashSet<ReqId> = hearing.collect();
        let hearing = (hidden > 0 && hearing.len() == FIRST).then_some(hearing);
        Ok(Self { read, hidden, places, hearing })
    }

    /// How many stand in the queue when this state's line is what was read.
    pub(crate) fn count(&self, state: &LockState) -> u64 {
        self.hidden + state.queue.len() as u64
    }

    /// Whether the moves used up all reachable waiters that were read, so that one that was not may
    /// have been due.
    pub(crate) fn is_used_up(&self, state: &LockState) -> bool {
        let Some(hearing) = &self.hearing else { return false };
        !state.queue.iter().any(|w| hearing.contains(&w.claim.req))
    }

    /// The answer with the places and numbers of the whole queue.
    pub(crate) fn whole(&self, mut reply: Reply, op: &Op, state: &LockState) -> Reply {
        if self.hidden == 0 {
            return reply;
        }
        let add =
            |n: &mut u32, more: u64| *n = n.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        match &mut reply {
            Reply::Waiting { ahead, .. } | Reply::Pulse(Pulse::Queued { ahead, .. }) => {
                if let Some(req) = about(op) {
                    add(ahead, self.hidden_before(req, state));
                }
            }
            Reply::Busy { ahead: n, .. }
            | Reply::Granted { waiters: n, .. }
            | Reply::Renewed { waiters: n, .. } => add(n, self.hidden),
            _ => {}
        }
        reply
    }

    fn hidden_before(&self, req: &ReqId, state: &LockState) -> u64 {
        let Some(me) = state.queue.iter().find(|w| w.claim.req == *req) else { return 0 };
        // A new waiter is behind all others.
        if !self.read.contains_key(&me.since) {
            return self.hidden;
        }
        let before = self.places.partition_point(|p| *p < me.since);
        let read = self.read.range(..me.since).count();
        before.saturating_sub(read) as u64
    }

    /// The statements that turn what was read into a state's line.
    pub(crate) fn changes(
        &self,
        tables: &Tables,
        lock: &distlock_core::FullName,
        state: &LockState,
    ) -> Result<Vec<String>, Error> {
        let (wait, at) = (&tables.wait, crate::sql::at(lock));
        let mut changes = Vec::new();
        let left: HashSet<&ReqId> = state.queue.iter().map(|w| &w.claim.req).collect();
        let gone: Vec<&ReqId> =
            self.read.values().map(|w| &w.claim.req).filter(|r| !left.contains(r)).collect();
        if !gone.is_empty() {
            changes.push(format!("DELETE FROM {wait} WHERE {at} AND req IN ({})", list(gone)));
        }
        for w in &state.queue {
            let before = self.read.get(&w.since).filter(|b| b.claim.req == w.claim.req);
            match before {
                Some(b) if b == w => continue,
                Some(b) if b.claim == w.claim => {
                    let (req, deadline) = (hex(w.claim.req.as_bytes()), w.deadline.0);
                    let unreachable = u8::from(w.unreachable);
                    changes.push(format!(
                        "UPDATE {wait} SET deadline={deadline}, deaf={unreachable} WHERE {at} AND req={req}"
                    ));
                    continue;
                }
                _ => {}
            }
            let claim = written(&w.claim)?;
            let permits = match w.claim.mode {
                Mode::Permit(n) => n.get(),
                Mode::Exclusive | Mode::Shared => 0,
            };
            changes.push(format!(
                "REPLACE INTO {wait} (space,name,req,since,deadline,deaf,permits,owner,claim) \
                 VALUES ({},{},{},{},{},{},{permits},{},{})",
                hex(lock.space.as_str()),
                hex(lock.name.as_str()),
                hex(w.claim.req.as_bytes()),
                w.since.0,
                w.deadline.0,
                u8::from(w.unreachable),
                hex(w.claim.owner.as_str()),
                hex(claim)
            ));
        }
        Ok(changes)
    }
}

fn undecodable() -> Error {
    Error::new(Kind::Layout, "a waiter's row could not be decoded")
        .with_hint("a newer version may have written it; or delete its row")
}
