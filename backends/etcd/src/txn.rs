//! Builds the transactions (join, look, prove, leave, tombstone) and reads their answers.

use distlock_core::queue::Spot;
use distlock_core::{Ask, FullName, Mode, Patience, ReqId};

use crate::keys;
use crate::wire::proto::{
    ASCEND, BY_CREATE, Compare, DESCEND, DeleteRequest, Do, Done, KeyValue, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, With,
};

/// How many entries just ahead a waiter reads, so that it knows its position in all but the longest
/// queues.
pub(crate) const NEAR: i64 = 64;

/// The create revision of a key is this; zero for "there is no such key".
pub(crate) fn created(key: &str, revision: i64) -> Compare {
    let with = Some(With::CreateRevision(revision));
    Compare { target: 1, key: key.into(), with, range_end: Vec::new() }
}

/// The queue is empty.
fn nobody(lock: &FullName) -> Compare {
    let prefix = keys::queue(lock);
    Compare { range_end: keys::after(&prefix), ..created(&prefix, 0) }
}

/// The last write to a key was of this revision.
fn unchanged(key: &str, revision: i64) -> Compare {
    let with = Some(With::ModRevision(revision));
    Compare { target: 2, key: key.into(), with, range_end: Vec::new() }
}

/// All of `success` if all comparisons hold, otherwise nothing.
fn only_if(compare: Vec<Compare>, success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare, success, failure: Vec::new() }
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

/// Part of a lock's queue, in order of creation.
fn part(lock: &FullName, order: i32) -> RangeRequest {
    let prefix = keys::queue(lock);
    RangeRequest {
        range_end: keys::after(&prefix),
        key: prefix.into_bytes(),
        sort_order: order,
        sort_target: BY_CREATE,
        ..RangeRequest::default()
    }
}

/// The first in the queue, and how many there are.
fn first(lock: &FullName) -> RequestOp {
    op(Do::Range(RangeRequest { limit: 1, ..part(lock, ASCEND) }))
}

/// What a client knows of a queue from an earlier look at it: of all entries up to a create revision,
/// which is the last that is not shared. That stays so, since new entries are behind; only the one
/// named may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) upto: i64,
    pub(crate) other: Option<Spot>,
}

/// The queue as far as it matters to an entry: the first, and those up to it, nearest first. An
/// exclusive one needs the one just ahead, one of n permits the n just ahead; a shared one the
/// modes of all ahead that it does not know yet, and whether the one it knows of is still there.
fn ahead(lock: &FullName, mode: Mode, upto: i64, known: Option<&Known>) -> Vec<RequestOp> {
    let near = RangeRequest { max_create_revision: upto, ..part(lock, DESCEND) };
    let near = match mode {
        Mode::Exclusive => RangeRequest { limit: NEAR, keys_only: true, ..near },
        Mode::Permit(n) => RangeRequest { limit: i64::from(n.get()).saturating_add(1), ..near },
        Mode::Shared => {
            let min_create_revision = known.map_or(0, |k| k.upto + 1);
            RangeRequest { min_create_revision, ..near }
        }
    };
    let mut all = vec![first(lock), op(Do::Range(near))];
    all.extend(known.and_then(|k| k.other.as_ref()).map(|spot| get(keys::of_spot(spot))));
    all
}

/// Joins the queue at a key of its own, unless the request is there or left before.
///
/// An exclusive request is first tried on an empty queue, which is all there is to read then. Without
/// patience that is all; with it, the other branch joins the queue as it is. Where the queue is known
/// not to be empty, that is asked at once.
pub(crate) fn join(
    ask: &Ask,
    key: &str,
    value: Vec<u8>,
    lease: i64,
    others: bool,
    known: Option<&Known>,
) -> TxnRequest {
    let tombstone = keys::tombstone(ask.req);
    let put = PutRequest { key: key.into(), value, lease, ..PutRequest::default() };
    let put = op(Do::Put(put));
    let why = [get(key), get(&tombstone)];
    if ask.mode == Mode::Exclusive && ask.patience == Patience::Never {
        let [mine, grave] = why;
        return TxnRequest {
            compare: vec![nobody(&ask.lock), created(&tombstone, 0)],
            success: vec![put],
            failure: vec![mine, grave, first(&ask.lock)],
        };
    }
    let mut success = vec![put.clone()];
    success.extend(ahead(&ask.lock, ask.mode, 0, known));
    let anyway = TxnRequest {
        compare: vec![created(key, 0), created(&tombstone, 0)],
        success,
        failure: why.into(),
    };
    if others || ask.mode != Mode::Exclusive {
        return anyway;
    }
    TxnRequest {
        compare: vec![nobody(&ask.lock), created(&tombstone, 0)],
        success: vec![put],
        failure: vec![op(Do::Txn(anyway))],
    }
}

/// The answer to a join, whichever branch gave it.
pub(crate) fn joined(said: TxnResponse) -> TxnResponse {
    let header = said.header;
    match said.responses.first().and_then(|r| r.response.as_ref()) {
        Some(Done::Txn(inner)) => TxnResponse { header, ..inner.clone() },
        _ => said,
    }
}

/// Reads the queue.
pub(crate) fn look(lock: &FullName, mode: Mode, mine: i64) -> TxnRequest {
    only_if(Vec::new(), ahead(lock, mode, mine, None))
}

/// Reads the queue for a shared entry that knows the last before it that is not: the first, those up
/// to that one, nearest first, and the entry itself. All between the two are shared.
pub(crate) fn look_past(lock: &FullName, other: Option<i64>, key: &str) -> TxnRequest {
    let mut success = vec![first(lock), get(key)];
    success.extend(other.map(|created| {
        let upto = RangeRequest { max_create_revision: created, ..part(lock, DESCEND) };
        op(Do::Range(upto))
    }));
    only_if(Vec::new(), success)
}

/// One entry, as the member that is asked knows it.
pub(crate) fn there(key: &str) -> RequestOp {
    op(Do::Range(RangeRequest { key: key.into(), serializable: true, ..RangeRequest::default() }))
}

/// How many stand in a queue, as the member that is asked knows it.
pub(crate) fn crowd(line: &str) -> RequestOp {
    op(Do::Range(RangeRequest {
        key: line.into(),
        range_end: keys::after(line),
        count_only: true,
        serializable: true,
        ..RangeRequest::default()
    }))
}

/// Reads one entry.
pub(crate) fn read(key: &str) -> TxnRequest {
    only_if(Vec::new(), vec![get(key)])
}

/// Shows that an entry exists. The delete in the other branch makes it a write, which goes through
/// the log of the majority and which no stale member answers; yet nothing is ever written, so no
/// watcher of the entry is woken, and the next entry at that key loses nothing.
pub(crate) fn prove(key: &str, revision: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![created(key, revision)],
        success: vec![get(key)],
        failure: vec![delete(keys::NOTHING)],
    }
}

/// Reads the queue for the entry that is next in it, and shows in the same write that it is there:
/// if it turns out to be the first, nothing is left to prove.
pub(crate) fn look_as_next(lock: &FullName, key: &str, revision: i64) -> TxnRequest {
    TxnRequest { success: ahead(lock, Mode::Exclusive, revision, None), ..prove(key, revision) }
}

/// Leaves the queue, and shows in the same write that the one behind, which is of this client too, is
/// there and the first now. Both are told by key and create revision.
pub(crate) fn hand_over(lock: &FullName, me: (&str, i64), next: (&str, i64)) -> TxnRequest {
    let proof = only_if(vec![created(next.0, next.1)], vec![first(lock)]);
    let proof = op(Do::Txn(proof));
    let mut leave = leave(me.0, me.1);
    leave.success.push(proof.clone());
    leave.failure.push(proof);
    leave
}

/// Many proofs in one, each with the length of its queue.
pub(crate) fn prove_all<'a>(all: impl Iterator<Item = (&'a FullName, &'a str, i64)>) -> TxnRequest {
    let one = |(lock, key, revision): (&FullName, &str, i64)| {
        let count = RangeRequest { count_only: true, sort_target: 0, ..part(lock, 0) };
        let mut proof = prove(key, revision);
        proof.success.push(op(Do::Range(count)));
        op(Do::Txn(proof))
    };
    only_if(Vec::new(), all.map(one).collect())
}

/// Takes away an entry that nobody has written to since it was made: all that is to be known of it is
/// that. Otherwise nothing happens, and [`leave`] tells more.
pub(crate) fn leave_untouched(key: &str, revision: i64) -> TxnRequest {
    let delete = DeleteRequest { key: key.into(), prev_kv: false };
    only_if(vec![unchanged(key, revision)], vec![op(Do::Delete(delete))])
}

/// Takes away an entry, if it has this create revision: the key may hold another entry by now.
pub(crate) fn leave(key: &str, revision: i64) -> TxnRequest {
    only_if(vec![created(key, revision)], vec![delete(key)])
}

/// Leaves the queue and keeps the request out of it for ever. The tombstone is on the lease of the
/// entry: a put that is still on its way names that lease, and fails once it has ended. No other
/// request ever uses its key again, so an entry there is of this request.
pub(crate) fn cancel(key: &str, req: ReqId, lease: i64) -> TxnRequest {
    let tombstone = keys::tombstone(req).into_bytes();
    let put = PutRequest { key: tombstone, lease, ..PutRequest::default() };
    only_if(Vec::new(), vec![delete(key), op(Do::Put(put))])
}

/// The same for an entry that was read, unless another entry is at its key by now.
pub(crate) fn cancel_this(kv: &KeyValue, key: &str, req: ReqId, lease: i64) -> TxnRequest {
    TxnRequest { compare: vec![created(key, kv.create_revision)], ..cancel(key, req, lease) }
}

/// Ties an entry to another lease.
pub(crate) fn tie(key: &str, revision: i64, lease: i64) -> TxnRequest {
    let put = PutRequest { key: key.into(), lease, ignore_value: true, ..PutRequest::default() };
    only_if(vec![created(key, revision)], vec![op(Do::Put(put))])
}

/// Writes another value over one that was read.
pub(crate) fn mark(kv: &KeyValue, key: &str, value: Vec<u8>) -> TxnRequest {
    let put = PutRequest { key: key.into(), value, ignore_lease: true, ..PutRequest::default() };
    only_if(vec![unchanged(key, kv.mod_revision)], vec![op(Do::Put(put))])
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

/// The one entry that was read, or the first of several.
pub(crate) fn first_read(said: &TxnResponse) -> Option<&KeyValue> {
    ranges(said).next()?.kvs.first()
}

/// The revision of the store that an answer is of.
pub(crate) fn seen(said: &TxnResponse) -> u64 {
    said.header.map_or(0, |h| u64::try_from(h.revision).unwrap_or(0))
}

/// What was deleted, of one key at most.
pub(crate) fn deleted(said: TxnResponse) -> Option<KeyValue> {
    said.responses.into_iter().find_map(|r| match r.response {
        Some(Done::Delete(deleted)) => deleted.prev_kvs.into_iter().next(),
        _ => None,
    })
}
