//! Leaving the line.
//!
//! 1. An entry whose join was answered is deleted by its key, which is its request's alone.
//! 2. If the next in line is of this client too, the same write shows that it is there: a hand-over
//!    between two tasks is one write.
//! 3. A join without an answer is undone with a tombstone on the lease of the entry.

use std::sync::Arc;

use distlock_core::line::{Lease, Line, Spot};
use distlock_core::seam::{Key, Released};
use distlock_core::{Error, Outcome};

use crate::client::Client;
use crate::meta::{Meta, told};
use crate::place::{EtcdPlace, Place};
use crate::session::Session;
use crate::txn;
use crate::wire::link::Answer;
use crate::wire::proto::{Do, Done, KeyValue, TxnResponse};
use crate::wire::trouble::Fault;
use crate::wire::watches::Watches;

/// What was there until now.
struct Left {
    kv: Option<KeyValue>,
    /// An earlier attempt may have taken it away.
    doubt: bool,
}

impl Left {
    fn of<T>(answer: Answer<T>, deleted: impl FnOnce(T) -> Option<KeyValue>) -> Self {
        Self { doubt: answer.doubt, kv: deleted(answer.said) }
    }
}

pub(crate) async fn leave(
    client: &Arc<Client>,
    key: &Key,
    place: Option<&EtcdPlace>,
) -> Result<Released, Error> {
    let now = client.moment();
    let mine = client.entries.leave(&key.req, |session| !session.is_over(now));
    let place = place.map(|p| &*p.0);
    let Some(spot) = mine.as_ref().map(|m| &m.spot).or(place.map(|p| &p.spot)) else {
        // It never left for the cluster, and never will.
        return Ok(Released::WasLost);
    };
    client.watches.disown(spot);
    let unanswered = Unanswered { watches: &client.watches, spot: Some(spot) };
    let doubt = mine.as_ref().is_some_and(|m| m.doubt || !m.joined);
    let left = match (place, &mine) {
        (Some(p), _) if !doubt && !p.doubt => go(client, key, p).await,
        (Some(p), _) => bury(client, key, &p.session).await,
        (None, Some(m)) => bury(client, key, &m.session).await,
        (None, None) => return Ok(Released::WasLost),
    };
    let left = match left {
        Ok(left) => left,
        // Its lease has ended, and it with it.
        Err(Fault::NoLease) => {
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
    if client.forget(&key.req).is_none() {
        client.watches.left(spot);
    }
    let revoked = |kv: &KeyValue| Meta::read(&kv.value).is_some_and(|m| m.revoked);
    let leaving = mine.as_ref().and_then(|m| m.leaving);
    // Not there: if an earlier attempt had no answer, and the lease was alive then, it was that.
    let ours = leaving.is_some_and(|l| l.sound && (l.doubt || left.doubt));
    // One that was made by a late duplicate after ours was gone is none of ours.
    let same = |kv: &KeyValue| place.is_none_or(|p| p.created == kv.create_revision);
    Ok(match left.kv {
        Some(kv) if same(&kv) && !revoked(&kv) => Released::Released,
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

async fn go(client: &Arc<Client>, key: &Key, place: &Place) -> Result<Left, Fault> {
    if let Some((next, lease)) = heir(client, key, place) {
        let txn = txn::hand_over(&key.lock, &place.spot, &next.spot, next.created);
        let answer = client.link.txn(&txn).await?;
        if let Some(line) = first_now(client, &answer.said, &next) {
            next.show(Some(line), lease);
        }
        return Ok(Left::of(answer, |said| txn::deleted(&said).next().cloned()));
    }
    let delete = Do::Delete(txn::release(&place.spot));
    let answer = client.together.write(&key.lock, delete).await?;
    Ok(Left::of(answer, |said| match said.done {
        Done::Delete(deleted) => deleted.prev_kvs.into_iter().next(),
        _ => None,
    }))
}

/// The next in line, if it is of this client and its lease need not be kept just now.
fn heir(client: &Client, key: &Key, place: &Place) -> Option<(Arc<Place>, Lease)> {
    let next = client.entries.behind(&key.lock, place.created)?;
    let fresh = next.follows(&place.spot) && next.session.is_fresh(client.moment());
    let lease = fresh.then(|| client.lease(&next.session)).flatten()?;
    Some((next, lease))
}

/// The line as the heir finds it, if it is there and the first.
fn first_now(client: &Client, said: &TxnResponse, next: &Place) -> Option<Line> {
    let proof = said.responses.iter().find_map(|r| match &r.response {
        Some(Done::Txn(proof)) if proof.succeeded => Some(proof),
        _ => None,
    })?;
    let first = txn::ranges(proof).next()?;
    let entry = told(first.kvs.first()?, client.clock().wall_micros());
    if first.kvs[0].create_revision != next.created || entry.revoked {
        return None;
    }
    let seen = said.header.map_or(0, |h| u64::try_from(h.revision).unwrap_or(0));
    let behind = u32::try_from(first.count - 1).unwrap_or(0);
    Some(Line { entries: vec![entry], behind, seen, skipped: 0 })
}

async fn bury(client: &Arc<Client>, key: &Key, session: &Arc<Session>) -> Result<Left, Fault> {
    let answer = client.link.txn(&txn::cancel(&key.lock, key.req, session.id)).await?;
    client.buried(session);
    Ok(Left::of(answer, |said| txn::deleted(&said).next().cloned()))
}
