//! Keeping places, and proving one.
//!
//! Both begin with a write to the session's own node, which most servers must acknowledge. What is
//! asked after it in the same session is no older than that write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::{Keeping, Proven};
use distlock_core::{Error, Kept, Key, Lease, LossReason};
use zookeeper_client::Error as Zk;

use crate::errors::{is_over, of_multi, trouble};
use crate::own_entry::OwnEntry;
use crate::record::Record;
use crate::session::Session;
use crate::store::Shared;

/// A renewal is given this long at least.
const AT_LEAST: Duration = Duration::from_millis(250);

impl Shared {
    /// Proves a place by a transaction: the entry is there as it was made, and the session writes.
    /// Not by a write to the entry itself, which would wake its watchers.
    pub(crate) async fn prove(&self, key: &Key, place: &OwnEntry) -> Result<Proven, Error> {
        let session = &place.0.session;
        let Ok(client) = session.client() else {
            return Ok(Proven::Lost(LossReason::Disconnected));
        };
        let sent = self.reading();
        let mut both = client.new_multi_writer();
        let built = both
            .add_check_version(&place.0.path, 0)
            .and_then(|()| both.add_set_data(&session.beat, &[], None));
        built.map_err(trouble)?;
        let commit = both.commit();
        let left = session.lease().left(sent);
        let done = self.clock.timeout(left, async { commit.await.map_err(of_multi) }).await;
        match done.unwrap_or(Err((None, Zk::Timeout))) {
            Ok(_) => {
                session.heard(sent, self.reading());
                let lease = session.lease();
                place.hold(&lease);
                Ok(Proven::Mine(lease))
            }
            Err((Some(0), Zk::NoNode)) => {
                session.forget(&key.req);
                Ok(Proven::Lost(LossReason::Gone))
            }
            Err((Some(0), Zk::BadVersion)) => Ok(Proven::Lost(LossReason::Revoked)),
            Err((Some(_), Zk::NoNode)) => {
                // The session's own node is gone: made anew, and asked again by the driver.
                session.show(self).await?;
                Err(trouble(Zk::ConnectionLoss))
            }
            Err((_, e)) if is_over(&e) => {
                session.end();
                Ok(Proven::Lost(LossReason::Disconnected))
            }
            Err((_, e)) => Err(session.failed(e)),
        }
    }

    /// Keeps places: one write for each session, and one look for each that is held. A session that
    /// does not answer takes nothing from the others: what is known by half of the shortest lease is
    /// told, and that is before the caller has lost patience with all of them.
    pub(crate) async fn keep(self: &Arc<Self>, places: &[Keeping<OwnEntry>]) -> Vec<Kept> {
        let mut sessions: BTreeMap<i64, Vec<(usize, &Keeping<OwnEntry>)>> = BTreeMap::new();
        for (at, keeping) in places.iter().enumerate() {
            sessions.entry(keeping.place.0.session.id).or_default().push((at, keeping));
        }
        let mut answers: Vec<Option<Kept>> = places.iter().map(|_| None).collect();
        let now = self.reading();
        let left = sessions.values().map(|mine| mine[0].1.place.0.session.lease().left(now));
        let bound = left.filter(|left| !left.is_zero()).min();
        let bound = bound.map_or(AT_LEAST, |left| (left / 2 - left / 20).max(AT_LEAST));
        let each = sessions.values().map(|mine| async move {
            let session = &mine[0].1.place.0.session;
            self.clock.timeout(bound, self.keep_in(session, mine)).await.unwrap_or_default()
        });
        for (at, kept) in futures_util::future::join_all(each).await.into_iter().flatten() {
            answers[at] = Some(kept);
        }
        let none = || Kept::Unknown(trouble(Zk::ConnectionLoss));
        answers.into_iter().map(|a| a.unwrap_or_else(none)).collect()
    }

    async fn keep_in(
        &self,
        session: &Arc<Session>,
        places: &[(usize, &Keeping<OwnEntry>)],
    ) -> Vec<(usize, Kept)> {
        let all = |kept: &dyn Fn() -> Kept| places.iter().map(|(at, _)| (*at, kept())).collect();
        let Ok(client) = session.client() else {
            return all(&|| Kept::Lost(LossReason::Disconnected));
        };
        if let Err(e) = session.show(self).await {
            return match session.is_over() {
                true => all(&|| Kept::Lost(LossReason::Disconnected)),
                false => all(&|| Kept::Unknown(e.clone())),
            };
        }
        let look = |k: &Keeping<OwnEntry>| k.held.then(|| client.get_data(&k.place.0.path));
        let held: Vec<_> = places.iter().map(|(_, k)| look(k)).collect();
        let mut kept = Vec::with_capacity(places.len());
        for ((at, keeping), look) in places.iter().zip(held) {
            let state = match look {
                None => Ok(()),
                Some(look) => match look.await {
                    Ok((data, stat)) => still(session, &data, stat.ephemeral_owner),
                    Err(Zk::NoNode) => Err(Kept::Lost(LossReason::Gone)),
                    Err(e) => Err(Kept::Unknown(session.failed(e))),
                },
            };
            // Asked now, not before the answers: a late one must not revive anything.
            let state = match state {
                Ok(()) if keeping.held && keeping.place.has_ended(self.clock.now()) => {
                    Err(self.expired(keeping).await)
                }
                state => state,
            };
            let lease = session.lease();
            let renew = || {
                keeping.place.believe(&lease);
                self.kept(lease)
            };
            kept.push((*at, state.err().unwrap_or_else(renew)));
        }
        kept
    }

    /// A hold whose time is over while its session goes on: it must not stand in others' way.
    async fn expired(&self, keeping: &Keeping<OwnEntry>) -> Kept {
        match self.leave_place(&keeping.key, &keeping.place).await {
            Ok(_) => Kept::Lost(LossReason::Expired),
            Err(e) => Kept::Unknown(e),
        }
    }

    /// A session's lease may have begun a while ago: told is what is left of it.
    fn kept(&self, lease: Lease) -> Kept {
        let sent = self.reading();
        let ttl = lease.sent.until(lease.ttl, Duration::ZERO).left(sent);
        Kept::Until { lease: Lease { sent, ttl, ..lease }, waiters: 0 }
    }
}

fn still(session: &Session, data: &[u8], owner: i64) -> Result<(), Kept> {
    if owner != session.id {
        return Err(Kept::Lost(LossReason::Gone));
    }
    match Record::read(data) {
        Some(record) if !record.revoked => Ok(()),
        _ => Err(Kept::Lost(LossReason::Revoked)),
    }
}
