//! A queue for people: its holders, its waiters, and the place of a request.

use std::time::Duration;

use super::snapshot::{Entry, Snapshot, holders};
use super::tokens::range;
use crate::{FullName, HoldInfo, Holder, LockInfo, Owner, QueueStatus, ReqId, Token, WaiterInfo};

/// A queue as an operator sees it; `None` when there is nobody. Of a token so many low bits are for
/// hand-over inside a process.
#[must_use]
pub fn info(lock: &FullName, line: &Snapshot, bits: u32) -> Option<LockInfo> {
    if line.entries.is_empty() {
        return None;
    }
    let (holds, waiters) = line.entries.split_at(holders(line));
    let hold = |e: &Entry| HoldInfo {
        req: request(e),
        holder: holder(e),
        tokens: range(e.token, e.tokens, bits).len(),
        mode: e.mode,
        lingering: e.lingering,
        revoked: e.revoked,
    };
    let waiter = |e: &Entry| WaiterInfo {
        req: request(e),
        owner: owner(e),
        label: e.label.clone(),
        mode: e.mode,
        waited: e.age,
    };
    Some(LockInfo {
        lock: lock.clone(),
        holds: holds.iter().map(hold).collect(),
        waiters: waiters.iter().map(waiter).collect(),
    })
}

/// Where a request stands: who holds the lock, and how many wait ahead of it. Without a place of
/// its own it would come after everybody.
#[must_use]
pub fn status(line: &Snapshot, me: Option<Token>) -> QueueStatus {
    let told = me.and_then(|me| line.place(me));
    let hidden = if told.is_none() { line.behind } else { 0 };
    let ahead = told.unwrap_or(line.entries.len()).saturating_sub(holders(line));
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    let holder = line.entries.first().filter(|e| Some(e.token) != me).map(holder);
    let left = holder.as_ref().and_then(|h: &Holder| h.left);
    let ahead = ahead.saturating_add(line.skipped).saturating_add(hidden);
    QueueStatus { holder, ahead: Some(ahead), left, note: None }
}

fn holder(e: &Entry) -> Holder {
    Holder { label: e.label.clone(), owner: owner(e), token: e.token, age: e.age, left: e.left }
}

/// Another kind of client names no owner: each entry is one of its own.
fn owner(e: &Entry) -> Owner {
    let spot: String = e.spot.chars().rev().filter(|c| !c.is_control()).take(16).collect();
    let unknown = || Owner::named(format!("({})", spot.chars().rev().collect::<String>()));
    e.owner.clone().or_else(|| unknown().ok()).unwrap_or_else(Owner::new)
}

/// Nor a request: its token is as good.
fn request(e: &Entry) -> ReqId {
    e.req.unwrap_or_else(|| ReqId::from_bytes(u128::from(e.token.get()).to_be_bytes()))
}

/// The longest pause between two looks at a queue in which nothing seems to happen.
pub(super) fn look_again(ttl: Duration, curious: bool) -> Duration {
    let most = Duration::from_secs(if curious { 10 } else { 90 });
    (ttl.min(most) / 3).max(Duration::from_secs(1))
}
