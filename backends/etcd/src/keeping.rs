//! Renewal: the lease is kept, and then what is held is shown to be there. Neither alone is proof:
//! a lease can be kept whose keys are already gone, and a key can be there whose lease ends now.

use std::collections::HashMap;
use std::sync::Arc;

use distlock_core::line::{Keeping, Lease};
use distlock_core::seam::Kept;
use distlock_core::{Error, Why};
use futures_util::future::join_all;

use crate::client::Client;
use crate::meta::Meta;
use crate::place::EtcdPlace;
use crate::txn;
use crate::wire::proto::{Done, TxnResponse};

/// So many proofs fit into one transaction: etcd takes 128 operations in all.
const AT_ONCE: usize = 60;

/// Keeps places: a keep-alive for each lease, then one transaction for all that is held.
pub(crate) async fn keep(client: &Arc<Client>, places: &[Keeping<EtcdPlace>]) -> Vec<Kept> {
    let mut sessions: Vec<_> = places.iter().map(|k| &k.place.0.session).collect();
    sessions.sort_by_key(|s| s.id);
    sessions.dedup_by_key(|s| s.id);
    let beats = sessions.iter().map(|s| async { (s.id, client.keep_alive(s).await) });
    let leases: HashMap<i64, _> = join_all(beats).await.into_iter().collect();
    let lease = |k: &Keeping<EtcdPlace>| leases.get(&k.place.0.session.id);
    let alive = |k: &Keeping<EtcdPlace>| matches!(lease(k), Some(Ok(Some(_))));
    // After the answers to the keep-alives, never beside them.
    let held: Vec<_> = places.iter().filter(|k| k.held && alive(k)).collect();
    let mut proofs = Vec::with_capacity(held.len());
    for some in held.chunks(AT_ONCE) {
        proofs.extend(prove(client, some).await);
    }
    let mut proofs = proofs.into_iter();
    let kept = |k: &Keeping<EtcdPlace>| match lease(k) {
        None => Kept::Lost(Why::Disconnected),
        Some(Err(e)) => Kept::Unknown(e.clone()),
        Some(Ok(None)) => Kept::Lost(Why::Disconnected),
        Some(Ok(Some(lease))) if !k.held => until(lease, 0),
        Some(Ok(Some(lease))) => match proofs.next() {
            Some(Ok(Ok(waiters))) => until(lease, waiters),
            Some(Ok(Err(why))) => {
                if why == Why::Gone {
                    client.forget(&k.key.req);
                }
                Kept::Lost(why)
            }
            Some(Err(e)) => Kept::Unknown(e),
            None => Kept::Unknown(client.odd("fewer answers than questions")),
        },
    };
    places.iter().map(kept).collect()
}

fn until(lease: &Lease, waiters: u32) -> Kept {
    Kept::Until { sent: lease.sent, ttl: lease.ttl, margin: lease.margin, waiters }
}

/// For each whether it is there, and then how many wait behind it.
async fn prove(
    client: &Client,
    held: &[&Keeping<EtcdPlace>],
) -> Vec<Result<Result<u32, Why>, Error>> {
    let all = held.iter().map(|k| (&k.key.lock, &*k.place.0.spot, k.place.0.created));
    let said = match client.link.txn(&txn::prove_all(all)).await {
        Ok(answer) => answer.said,
        Err(fault) => {
            let e = Error::from(fault);
            return held.iter().map(|_| Err(e.clone())).collect();
        }
    };
    let answers = said.responses.into_iter().map(|r| match r.response {
        Some(Done::Txn(proof)) => Ok(read(&proof)),
        _ => Err(client.odd("a proof without an answer")),
    });
    answers.collect()
}

fn read(proof: &TxnResponse) -> Result<u32, Why> {
    if !proof.succeeded {
        return Err(Why::Gone);
    }
    let mut ranges = txn::ranges(proof);
    let kv = ranges.next().and_then(|r| r.kvs.first());
    if kv.and_then(|kv| Meta::read(&kv.value)).is_some_and(|m| m.revoked) {
        return Err(Why::Revoked);
    }
    let count = ranges.next().map_or(0, |r| r.count - 1);
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}
