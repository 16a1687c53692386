//! Renewal: the lease is kept, and then what is held is shown to be there. Neither alone is proof:
//! a lease can be kept whose keys are already gone, and a key can be there whose lease ends now.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::backend::Kept;
use distlock_core::queue::{Keeping, Lease};
use distlock_core::{Error, LossReason};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::entry_value::Meta;
use crate::own_entry::EtcdEntry;
use crate::session::Session;
use crate::txn;
use crate::wire::proto::{Done, TxnResponse};

/// So many proofs fit into one transaction: etcd takes 128 operations in all.
const AT_ONCE: usize = 60;

/// So many transactions are under way at once.
const UNDER_WAY: usize = 8;
/// A renewal is given this long at least.
const AT_LEAST: Duration = Duration::from_millis(250);

/// Keeps places: a keep-alive for each lease, then transactions for all of it that is held, several
/// at once, those of the lease that ends first before the others. Each answer is believed by itself:
/// what is known by half of the shortest lease is told, and that is before whoever asks has lost
/// patience with all of them.
pub(crate) async fn keep(client: &Arc<Client>, places: &[Keeping<EtcdEntry>]) -> Vec<Kept> {
    let mut sessions: Vec<(&Arc<Session>, Vec<usize>)> = Vec::new();
    let mut at: HashMap<i64, usize> = HashMap::new();
    for (i, keeping) in places.iter().enumerate() {
        let session = &keeping.place.0.session;
        let at = *at.entry(session.id).or_insert_with(|| {
            sessions.push((session, Vec::new()));
            sessions.len() - 1
        });
        sessions[at].1.push(i);
    }
    let now = client.moment();
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
    let answers = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
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
        answers.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(kept);
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
        let mut proofs = prove(client, &of).await.into_iter();
        for i in some {
            tell(
                *i,
                match proofs.next() {
                    Some(Ok(Ok(waiters))) => until(lease, waiters),
                    Some(Ok(Err(why))) => {
                        if why == LossReason::Gone {
                            client.forget(&places[*i].key.req);
                        }
                        Kept::Lost(why)
                    }
                    Some(Err(e)) => Kept::Unknown(e),
                    None => Kept::Unknown(client.odd("fewer answers than questions")),
                },
            );
        }
    });
    join_all(proofs).await;
}

fn until(lease: &Lease, waiters: u32) -> Kept {
    Kept::Until { sent: lease.sent, ttl: lease.ttl, margin: lease.margin, waiters }
}

/// For each whether it is there, and then how many wait behind it.
async fn prove(
    client: &Client,
    held: &[&Keeping<EtcdEntry>],
) -> Vec<Result<Result<u32, LossReason>, Error>> {
    let all = held.iter().map(|k| (&k.key.lock, &*k.place.0.key, k.place.0.created));
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

fn read(proof: &TxnResponse) -> Result<u32, LossReason> {
    if !proof.succeeded {
        return Err(LossReason::Gone);
    }
    let mut ranges = txn::ranges(proof);
    let kv = ranges.next().and_then(|r| r.kvs.first());
    if kv.and_then(|kv| Meta::read(&kv.value)).is_some_and(|m| m.revoked) {
        return Err(LossReason::Revoked);
    }
    let count = ranges.next().map_or(0, |r| r.count - 1);
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}
