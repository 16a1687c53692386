//! The transactions, each one round trip.

use distlock_core::seam::Ask;
use distlock_core::{FullName, Mode, Patience, ReqId};

use crate::keys;
use crate::wire::proto::{
    ASCEND, BY_CREATE, Compare, DESCEND, DeleteRequest, Do, Done, KeyValue, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, With,
};

/// How many just ahead are told to one who waits, so that it knows its place in all but the longest
/// of lines.
pub(crate) const NEAR: i64 = 64;

/// The create revision of a key is this; zero for "there is no such key".
pub(crate) fn created(key: &str, revision: i64) -> Compare {
    let with = Some(With::CreateRevision(revision));
    Compare { result: 0, target: 1, key: key.into(), with, range_end: Vec::new() }
}

/// There is nobody in line.
fn nobody(lock: &FullName) -> Compare {
    let prefix = keys::line(lock);
    Compare { range_end: keys::after(&prefix), ..created(&prefix, 0) }
}

fn unchanged(key: &str, revision: i64) -> Compare {
    let with = Some(With::ModRevision(revision));
    Compare { result: 0, target: 2, key: key.into(), with, range_end: Vec::new() }
}

fn op(request: Do) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn get(key: &str) -> RequestOp {
    op(Do::Range(RangeRequest { key: key.into(), ..RangeRequest::default() }))
}

fn delete(key: &str) -> RequestOp {
    op(Do::Delete(DeleteRequest { key: key.into(), prev_kv: true }))
}

/// Part of a lock's line, in order of creation.
fn part(lock: &FullName, order: i32) -> RangeRequest {
    let prefix = keys::line(lock);
    RangeRequest {
        range_end: keys::after(&prefix),
        key: prefix.into_bytes(),
        sort_order: order,
        sort_target: BY_CREATE,
        ..RangeRequest::default()
    }
}

/// The line as far as it matters to an entry: the first, and those up to it, nearest first. The
/// other modes need to know the modes of all ahead.
fn ahead(lock: &FullName, mode: Mode, upto: i64) -> Vec<RequestOp> {
    let near = RangeRequest { max_create_revision: upto, ..part(lock, DESCEND) };
    match mode {
        Mode::Exclusive => {
            let first = RangeRequest { limit: 1, ..part(lock, ASCEND) };
            let near = RangeRequest { limit: NEAR, keys_only: true, ..near };
            vec![op(Do::Range(first)), op(Do::Range(near))]
        }
        Mode::Shared | Mode::Permit(_) => vec![op(Do::Range(near))],
    }
}

/// Joins the line, unless the request is there or left it before. Without patience an exclusive one
/// joins only an empty line.
pub(crate) fn join(ask: &Ask, value: Vec<u8>, lease: i64) -> TxnRequest {
    let (key, tombstone) = (keys::entry(&ask.lock, ask.req), keys::tombstone(ask.req));
    let put = PutRequest { key: key.clone().into(), value, lease, ..PutRequest::default() };
    let mut compare = vec![created(&key, 0), created(&tombstone, 0)];
    let mut success = vec![op(Do::Put(put))];
    let mut failure = vec![get(&key), get(&tombstone)];
    if ask.mode == Mode::Exclusive && ask.patience == Patience::Never {
        compare.push(nobody(&ask.lock));
        failure.extend(ahead(&ask.lock, ask.mode, 0));
    }
    success.extend(ahead(&ask.lock, ask.mode, 0));
    TxnRequest { compare, success, failure }
}

/// Reads the line.
pub(crate) fn look(lock: &FullName, mode: Mode, mine: i64) -> TxnRequest {
    TxnRequest { success: ahead(lock, mode, mine), ..TxnRequest::default() }
}

/// Reads one entry.
pub(crate) fn read(key: &str) -> TxnRequest {
    TxnRequest { success: vec![get(key)], ..TxnRequest::default() }
}

/// Shows that an entry exists. The delete in the other branch makes it a write, which goes through
/// the log of the majority and which no stale member answers; yet where the entry exists nothing is
/// written, so nobody who watches it is woken. What it would delete is an entry that is not the
/// one: a late duplicate.
pub(crate) fn prove(key: &str, revision: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![created(key, revision)],
        success: vec![get(key)],
        failure: vec![delete(key)],
    }
}

/// Many proofs in one, each with the length of its line.
pub(crate) fn prove_all<'a>(all: impl Iterator<Item = (&'a FullName, &'a str, i64)>) -> TxnRequest {
    let one = |(lock, key, revision): (&FullName, &str, i64)| {
        let count = RangeRequest { count_only: true, ..part(lock, 0) };
        let mut proof = prove(key, revision);
        proof.success.push(op(Do::Range(RangeRequest { sort_target: 0, ..count })));
        op(Do::Txn(proof))
    };
    TxnRequest { success: all.map(one).collect(), ..TxnRequest::default() }
}

/// Leaves the line.
pub(crate) fn leave(key: &str, revision: i64) -> TxnRequest {
    let compare = vec![created(key, revision)];
    TxnRequest { compare, success: vec![delete(key)], ..TxnRequest::default() }
}

/// Leaves the line and keeps the request out of it for ever. The tombstone is on the lease of the
/// entry: a put that is still on its way names that lease, and fails once it has ended.
pub(crate) fn cancel(lock: &FullName, req: ReqId, lease: i64) -> TxnRequest {
    let key = keys::tombstone(req).into_bytes();
    let put = PutRequest { key, lease, ..PutRequest::default() };
    let success = vec![delete(&keys::entry(lock, req)), op(Do::Put(put))];
    TxnRequest { success, ..TxnRequest::default() }
}

/// Ties an entry to another lease.
pub(crate) fn tie(key: &str, revision: i64, lease: i64) -> TxnRequest {
    let put = PutRequest { key: key.into(), lease, ignore_value: true, ..PutRequest::default() };
    let (compare, success) = (vec![created(key, revision)], vec![op(Do::Put(put))]);
    TxnRequest { compare, success, ..TxnRequest::default() }
}

/// Writes another value over one that was read.
pub(crate) fn mark(kv: &KeyValue, key: &str, value: Vec<u8>) -> TxnRequest {
    let put = PutRequest { key: key.into(), value, ignore_lease: true, ..PutRequest::default() };
    let (compare, success) = (vec![unchanged(key, kv.mod_revision)], vec![op(Do::Put(put))]);
    TxnRequest { compare, success, ..TxnRequest::default() }
}

/// Writes the version of the layout, or reads it.
pub(crate) fn layout(version: &str) -> TxnRequest {
    let (key, value) = (keys::LAYOUT.into(), version.into());
    let put = PutRequest { key, value, ..PutRequest::default() };
    TxnRequest {
        compare: vec![created(keys::LAYOUT, 0)],
        success: vec![op(Do::Put(put))],
        failure: vec![get(keys::LAYOUT)],
    }
}

/// The ranges that were read, in the order in which they were asked for.
pub(crate) fn ranges(said: &TxnResponse) -> impl Iterator<Item = &RangeResponse> {
    said.responses.iter().filter_map(|r| match &r.response {
        Some(Done::Range(range)) => Some(range),
        _ => None,
    })
}

/// What was deleted.
pub(crate) fn deleted(said: &TxnResponse) -> impl Iterator<Item = &KeyValue> {
    said.responses.iter().flat_map(|r| match &r.response {
        Some(Done::Delete(deleted)) => deleted.prev_kvs.as_slice(),
        _ => &[],
    })
}
