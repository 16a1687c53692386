//! Leaving the line.
//!
//! 1. An entry whose join was answered is deleted, if it is that very one: its seat may be the next
//!    one's by the time a question that was asked twice arrives.
//! 2. If the next in line is of this client too, the same write shows that it is there: a hand-over
//!    between two tasks is one write.
//! 3. A join without an answer is undone with a tombstone on the lease of the entry, and nobody ever
//!    sits there again.

use std::sync::Arc;

use distlock_core::backend::{Key, Released};
use distlock_core::queue::{Lease, Line, Spot};
use distlock_core::{Error, Outcome};

use crate::client::Client;
use crate::entries::Mine;
use crate::entry_value::{Meta, told};
use crate::own_entry::{EtcdEntry, Place};
use crate::session::Session;
use crate::txn;
use crate::wire::calls::Answer;
use crate::wire::errors::Fault;
use crate::wire::proto::{Done, KeyValue, TxnResponse};
use crate::wire::watches::Watches;

/// How an entry was found by the write that took it away.
pub(crate) struct Left {
    found: Found,
    /// An earlier attempt may have taken it away.
    doubt: bool,
}

enum Found {
    /// As it was made.
    Untouched,
    /// Like this.
    Like(KeyValue),
    Nothing,
}

impl Left {
    fn of(Answer { said, doubt }: Answer<TxnResponse>) -> Self {
        Self { found: txn::deleted(said).map_or(Found::Nothing, Found::Like), doubt }
    }
}

pub(crate) async fn leave(
    client: &Arc<Client>,
    key: &Key,
    place: Option<&EtcdEntry>,
) -> Result<Released, Error> {
    let now = client.moment();
    let mine = client.entries.leave(&key.req, |session| !session.is_over(now));
    let place = place.map(|p| &*p.0);
    let doubt = mine.as_ref().is_some_and(|m| m.doubt || !m.joined);
    let spot = place.map(|p| &p.spot).or(mine.as_ref().and_then(Mine::spot));
    if let Some(spot) = spot {
        client.watches.disown(spot);
    }
    let unanswered = Unanswered { watches: &client.watches, spot };
    let left = match (place, &mine) {
        (Some(p), _) if !doubt && !p.doubt => go(client, key, p).await,
        (Some(p), _) => bury(client, key, &p.key, &p.session).await,
        (None, Some(m)) => bury(client, key, &m.seat.key, &m.session).await,
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
    let revoked = |kv: &KeyValue| Meta::read(&kv.value).is_some_and(|m| m.revoked);
    let leaving = mine.as_ref().and_then(|m| m.leaving);
    // Not there: if an earlier attempt had no answer, and the lease was alive then, it was that.
    let ours = leaving.is_some_and(|l| l.sound && (l.doubt || left.doubt));
    // One that was made by a late duplicate after ours was gone is none of ours.
    let same = |kv: &KeyValue| place.is_none_or(|p| p.created == kv.create_revision);
    Ok(match left.found {
        Found::Untouched => Released::Released,
        Found::Like(kv) if same(&kv) && !revoked(&kv) => Released::Released,
        Found::Nothing if ours => Released::Released,
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
        let (me, heir) = ((&*place.key, place.created), (&*next.key, next.created));
        let txn = txn::hand_over(&key.lock, me, heir);
        let answer = client.link.txn(&txn).await?;
        if let Some(line) = first_now(client, &answer.said, &next) {
            next.show(Some(line), lease);
        }
        return Ok(Left::of(answer));
    }
    let leave = txn::leave_untouched(&place.key, place.created);
    let Answer { said, doubt } = client.together.write(&key.lock, leave).await?;
    if said.succeeded {
        return Ok(Left { found: Found::Untouched, doubt });
    }
    // Marked, or gone: perhaps by an attempt of this very write.
    if doubt {
        client.entries.left_in_doubt(&key.req);
    }
    let leave = txn::leave(&place.key, place.created);
    let left = Left::of(client.together.write(&key.lock, leave).await?);
    Ok(Left { doubt: doubt || left.doubt, ..left })
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

/// Leaves for good a line that one may be in, now or later.
pub(crate) async fn bury(
    client: &Arc<Client>,
    key: &Key,
    seat: &str,
    session: &Arc<Session>,
) -> Result<Left, Fault> {
    // Before it is sent: it may arrive at any time from then on, and takes who sits there.
    client.entries.in_doubt(&key.req);
    let answer = client.link.txn(&txn::cancel(seat, key.req, session.id)).await?;
    client.buried(session);
    Ok(Left::of(answer))
}
