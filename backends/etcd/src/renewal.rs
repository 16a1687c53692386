//! Renewal: the lease is kept, and then what is held is shown to be there. Neither alone is proof:
//! a lease can be kept whose keys are already gone, and a key can be there whose lease ends now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::Keeping;
use distlock_core::{Error, Kept, Lease, LossReason, Mutex, ReqId};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::entry::EntryValue;
use crate::entry::EtcdEntry;
use crate::session::Session;
use crate::txn;
use crate::wire::proto::{Done, TxnResponse};
use crate::wire::watches::Joins;

/// Max proofs in one transaction: etcd accepts 128 operations in all.
const AT_ONCE: usize = 60;

/// Max transactions under way.
const UNDER_WAY: usize = 8;
/// A renewal is given this long at least.
const AT_LEAST: Duration = Duration::from_millis(250);

/// Keeps places: a keep-alive for each lease, then transactions for all of it that is held, several
/// at once, those of the lease that ends first before the others. Each answer is believed by itself:
/// what is known by half of the shortest lease is told, and that is before the caller has lost
/// patience with all of them.
pub(crate) async fn keep(client: &Arc<Client>, places: &[Keeping<EtcdEntry>]) -> Vec<Kept> {
    let mut sessions: BTreeMap<i64, (&Arc<Session>, Vec<usize>)> = BTreeMap::new();
    for (i, keeping) in places.iter().enumerate() {
        let session = &keeping.place.0.session;
        sessions.entry(session.id).or_insert((session, Vec::new())).1.push(i);
    }
    let mut sessions: Vec<_> = sessions.into_values().collect();
    let now = client.reading();
    let left = |session: &Session| client.lease(session).map_or(Duration::ZERO, |l| l.left(now));
    sessions.sort_by_key(|(session, _)| left(session));
    let bound = sessions.iter().map(|(s, _)| left(s)).find(|left| !left.is_zero());
    let bound = bound.map_or(AT_LEAST, |left| (left / 2 - left / 20).max(AT_LEAST));
    let answers: Answers = Mutex::new(places.iter().map(|_| None).collect());
    let (turns, answers) = (&Semaphore::new(UNDER_WAY), &answers);
    let each = sessions.iter().map(|(session, mine)| async move {
        keep_lease(client, session, places, mine, turns, answers).await;
    });
    let _ = client.clock().timeout(bound, join_all(each)).await;
    let answers = std::mem::take(&mut *answers.lock());
    let late = || Kept::Unknown(client.link.late());
    answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
}

/// What is known so far of each place.
type Answers = Mutex<Vec<Option<Kept>>>;

async fn keep_lease(
    client: &Arc<Client>,
    session: &Arc<Session>,
    places: &[Keeping<EtcdEntry>],
    mine: &[usize],
    turns: &Semaphore,
    answers: &Answers,
) {
    let tell = |i: usize, kept: Kept| {
        answers.lock()[i] = Some(kept);
    };
    let lease = match client.keep_alive(session).await {
        Ok(Some(lease)) => lease,
        Ok(None) => {
            return mine.iter().for_each(|i| tell(*i, Kept::Lost(LossReason::Disconnected)));
        }
        Err(e) => return mine.iter().for_each(|i| tell(*i, Kept::Unknown(e.clone()))),
    };
    // After the answer to the keep-alive, never beside it.
    let (held, waiting): (Vec<usize>, Vec<usize>) = mine.iter().partition(|i| places[**i].held);
    waiting.iter().for_each(|i| tell(*i, until(&lease, 0)));
    let (tell, lease) = (&tell, &lease);
    let proofs = held.chunks(AT_ONCE).map(|some| async move {
        let _turn = turns.acquire().await;
        let of: Vec<_> = some.iter().map(|i| &places[*i]).collect();
        for (i, proof) in some.iter().zip(prove(client, &of).await) {
            let kept = match proof {
                Ok(Ok(waiters)) => until(lease, waiters),
                Ok(Err(why)) => Kept::Lost(why),
                Err(e) => Kept::Unknown(e),
            };
            tell(*i, kept);
        }
    });
    join_all(proofs).await;
}

fn until(lease: &Lease, waiters: u32) -> Kept {
    Kept::Until { lease: *lease, waiters }
}

/// For each whether it is there, and then how many wait behind it.
async fn prove(
    client: &Arc<Client>,
    held: &[&Keeping<EtcdEntry>],
) -> Vec<Result<Result<u32, LossReason>, Error>> {
    let all = held.iter().map(|k| (&k.key.lock, &*k.place.0.key, k.place.0.created));
    let said = match client.link.call(&txn::prove_all(all)).await {
        Ok(answer) => answer.said,
        Err(fault) => {
            let e = Error::from(fault);
            return held.iter().map(|_| Err(e.clone())).collect();
        }
    };
    let seen = said.header.map_or(0, |h| h.revision);
    let mut responses = said.responses.into_iter();
    let answers = held.iter().map(|k| match responses.next().and_then(|r| r.response) {
        Some(Done::Txn(proof)) => {
            let behind = waiters_behind(client, &k.key.req, &proof);
            // Whoever was heard to join has left again: the next one is to be heard, too.
            if behind == Ok(0) && k.place.0.handed_on {
                client.watches.alone(&k.place.0.spot, seen, Joins::Now);
            }
            Ok(behind)
        }
        _ => Err(client.odd("a proof without an answer")),
    });
    answers.collect()
}

/// What the proof of an entry says: how many wait behind it, if that was asked, or why it is lost.
pub(crate) fn waiters_behind(
    client: &Arc<Client>,
    req: &ReqId,
    proof: &TxnResponse,
) -> Result<u32, LossReason> {
    if !proof.succeeded {
        client.forget(req);
        return Err(LossReason::Gone);
    }
    if txn::first_read(proof).is_some_and(|kv| EntryValue::is_revoked(&kv.value)) {
        return Err(LossReason::Revoked);
    }
    let count = txn::ranges(proof).nth(1).map_or(0, |r| r.count - 1);
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}
