//! Release and cancel: an entry leaves its queue.
//!
//! 1. An entry whose join was answered is deleted, if it is that very one: its key may be in use
//!    again by the time a repeated request arrives.
//! 2. If the next in the queue is of this client too, the same write shows that it is there: a
//!    hand-over between two tasks is one write.
//! 3. A join without an answer is undone with a tombstone on the lease of the entry, and its key is
//!    never used again.

use std::sync::Arc;

use distlock_core::queue::{Entry, Snapshot, Spot};
use distlock_core::{Error, Key, Lease, Outcome, Released};

use crate::client::Client;
use crate::entry::{EntryValue, EtcdEntry, OwnEntry, token};
use crate::errors::Fault;
use crate::own_requests::OwnRequest;
use crate::session::Session;
use crate::store::line;
use crate::txn;
use crate::wire::link::Answer;
use crate::wire::proto::{Done, KeyValue, TxnResponse};
use crate::wire::watches::Watches;

/// How an entry was found by the write that took it away.
pub(crate) struct Departure {
    /// The create revision of the entry that was deleted, and whether it was marked as revoked.
    found: Option<(i64, bool)>,
    /// An earlier attempt may have taken it away.
    doubt: bool,
}

impl Departure {
    fn of(Answer { said, doubt }: Answer<TxnResponse>) -> Self {
        let found = |kv: KeyValue| (kv.create_revision, EntryValue::is_revoked(&kv.value));
        Self { found: txn::deleted(said).map(found), doubt }
    }
}

pub(crate) async fn leave(
    client: &Arc<Client>,
    key: &Key,
    place: Option<&EtcdEntry>,
) -> Result<Released, Error> {
    let now = client.reading();
    let mine = client.entries.leave(&key.req, |session| !session.is_over(now));
    let place = place.map(|p| &*p.0);
    let doubt = mine.as_ref().is_some_and(|m| m.doubt || !m.joined);
    let spot = place.map(|p| &p.spot).or(mine.as_ref().and_then(OwnRequest::spot));
    if let Some(spot) = spot {
        client.watches.expect_leave(spot);
    }
    let unanswered = Unanswered { watches: &client.watches, spot };
    let left = match (place, &mine) {
        (Some(p), _) if !doubt && !p.doubt => go(client, key, p).await,
        (Some(p), _) => leave_tombstone(client, key, &p.key, &p.session).await,
        (None, Some(m)) => leave_tombstone(client, key, &m.entry_key.key, &m.session).await,
        // It never left for the cluster, and never will.
        (None, None) => return Ok(Released::WasLost),
    };
    let left = match left {
        Ok(left) => left,
        // Its lease has ended, and it with it.
        Err(Fault::NoLease { .. }) => {
            client.forget(&key.req);
            return Ok(Released::WasLost);
        }
        Err(fault) => {
            let e = Error::from(fault);
            if e.outcome() == Outcome::Unknown {
                client.entries.left_in_doubt(&key.req);
            }
            return Err(e);
        }
    };
    unanswered.answered();
    if client.forget(&key.req).is_none()
        && let Some(spot) = spot
    {
        client.watches.left(spot);
    }
    let leaving = mine.as_ref().and_then(|m| m.leaving);
    // Not there: if an earlier attempt had no answer, and the lease was alive then, it was that.
    let ours = leaving.is_some_and(|l| l.sound && (l.doubt || left.doubt));
    // One that was made by a late duplicate after ours was gone is none of ours.
    let same = |created| place.is_none_or(|p| p.created == created);
    Ok(match left.found {
        Some((created, false)) if same(created) => Released::Released,
        None if ours => Released::Released,
        _ => Released::WasLost,
    })
}

/// A leave under way. Those behind wait for its answer alone; unless it comes, they have the server
/// tell them.
struct Unanswered<'a> {
    watches: &'a Arc<Watches>,
    spot: Option<&'a Spot>,
}

impl Unanswered<'_> {
    fn answered(mut self) {
        self.spot = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(spot) = self.spot {
            self.watches.insist(spot);
        }
    }
}

async fn go(client: &Arc<Client>, key: &Key, place: &OwnEntry) -> Result<Departure, Fault> {
    if let Some((next, lease)) = next_of_client(client, key, place) {
        let (me, other) = ((&*place.key, place.created), (&*next.key, next.created));
        let txn = txn::hand_over(&key.lock, me, other);
        let answer = client.link.call(&txn).await?;
        if let Some(line) = first_now(client, &answer.said, &next) {
            next.show(Some(line), lease);
        }
        return Ok(Departure::of(answer));
    }
    let leave = txn::leave_untouched(&place.key, place.created);
    let Answer { said, doubt } = client.batcher.write(&key.lock, leave).await?;
    if said.succeeded {
        return Ok(Departure { found: Some((place.created, false)), doubt });
    }
    // Marked, or gone: perhaps by an attempt of this very write.
    if doubt {
        client.entries.left_in_doubt(&key.req);
    }
    let leave = txn::leave(&place.key, place.created);
    let left = Departure::of(client.batcher.write(&key.lock, leave).await?);
    Ok(Departure { doubt: doubt || left.doubt, ..left })
}

/// The next in the queue, if it is of this client and its lease need not be kept just now.
fn next_of_client(client: &Client, key: &Key, place: &OwnEntry) -> Option<(Arc<OwnEntry>, Lease)> {
    let next = client.entries.behind(&key.lock, place.created)?;
    let fresh = next.follows(&place.spot) && next.session.is_fresh(client.reading());
    let lease = fresh.then(|| client.lease(&next.session)).flatten()?;
    Some((next, lease))
}

/// The queue as that entry finds it, if it is there and the first.
fn first_now(client: &Client, said: &TxnResponse, next: &OwnEntry) -> Option<Snapshot> {
    let proof = said.responses.iter().find_map(|r| match &r.response {
        Some(Done::Txn(proof)) if proof.succeeded => Some(proof),
        _ => None,
    })?;
    let first = txn::ranges(proof).next()?;
    let line = line(first, Vec::new(), 0, txn::seen(said), client.clock().wall_micros());
    let mine = |e: &Entry| e.token == token(next.created) && !e.revoked;
    line.entries.first().is_some_and(mine).then_some(line)
}

/// Leaves with a tombstone: for a request whose entry may be in the queue, now or later.
pub(crate) async fn leave_tombstone(
    client: &Arc<Client>,
    key: &Key,
    entry_key: &str,
    session: &Arc<Session>,
) -> Result<Departure, Fault> {
    // Before it is sent: it may arrive at any time from then on, and deletes the entry at that key.
    client.entries.in_doubt(&key.req);
    let answer = client.link.call(&txn::cancel(entry_key, key.req, session.id)).await?;
    client.note_tombstone(session);
    Ok(Departure::of(answer))
}
