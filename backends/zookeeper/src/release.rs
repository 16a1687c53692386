//! Leaving a queue, and proving the next entry.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Error, Key, Released};
use zookeeper_client::{Client, Error as Zk};

use crate::errors::{gone, is_over, of_multi};
use crate::node_names;
use crate::own_entry::OwnEntry;
use crate::session::Session;
use crate::store::Shared;

/// A release is told soon that there is no answer: it is repeated anyway.
const ANSWER: Duration = Duration::from_secs(4);

impl Shared {
    pub(crate) async fn leave(
        self: &Arc<Self>,
        key: &Key,
        place: Option<&OwnEntry>,
    ) -> Result<Released, Error> {
        // First: a join that is under way must find that it is not wanted any more.
        self.finish(&key.req);
        let released = match place {
            Some(place) => self.leave_place(key, place).await?,
            None => match self.recall(&key.req) {
                Some(session) => match session.place(&key.req) {
                    Some(place) => self.leave_place(key, &place).await?,
                    None => self.leave_unseen(key, &session).await?,
                },
                // Left before, or never here.
                None => Released::WasLost,
            },
        };
        self.forget(&key.req);
        Ok(released)
    }

    pub(crate) async fn leave_place(&self, key: &Key, place: &OwnEntry) -> Result<Released, Error> {
        let session = &place.0.session;
        let left = |released| {
            session.forget(&key.req);
            Ok(released)
        };
        let Ok(client) = session.client() else { return left(Released::WasLost) };
        // A delete whose answer was lost may have done it: what is gone then was not lost.
        let again = place.leaving();
        let delete = self.clock.timeout(ANSWER, self.delete(&client, key, place)).await;
        match delete.unwrap_or(Err(Zk::Timeout)) {
            Ok(()) => left(Released::Released),
            Err(Zk::NoNode) if again && !session.lease().left(self.reading()).is_zero() => {
                left(Released::Released)
            }
            Err(Zk::BadVersion) => match gone(client.delete(&place.0.path, None).await) {
                Ok(()) => left(Released::WasLost),
                Err(e) => Err(session.failed(e)),
            },
            Err(Zk::NoNode) => left(Released::WasLost),
            Err(e) if is_over(&e) => {
                session.end();
                left(Released::WasLost)
            }
            Err(e) => Err(session.failed(e)),
        }
    }

    /// Deletes an entry, only as it was made: a mark on it is an operator's, and the lock was lost
    /// with it. If the next in the queue is of the same session, the transaction that deletes this one
    /// proves that one's place too, which then need not ask by itself.
    async fn delete(&self, client: &Client, key: &Key, place: &OwnEntry) -> Result<(), Zk> {
        let session = &place.0.session;
        let Some(next) = session.next(key, place) else {
            return client.delete(&place.0.path, Some(0)).await;
        };
        let sent = self.reading();
        let mut both = client.new_multi_writer();
        both.add_delete(&place.0.path, Some(0))?;
        both.add_check_version(&next.0.path, 0)?;
        // Before it is sent: the next one hears that this one is gone before we hear our answer.
        let call = next.call();
        match both.commit().await.map_err(of_multi) {
            Ok(_) => {
                session.heard(sent, self.reading());
                call.done();
                Ok(())
            }
            // Its entry is not as it was made, and it will hear of that. This one leaves alone.
            Err((Some(1), _)) => {
                drop(call);
                client.delete(&place.0.path, Some(0)).await
            }
            Err((_, e)) => Err(e),
        }
    }

    /// Its join was never answered. Asked in the session it was sent in, after it: what is not
    /// there then never comes, but for what the sweep is for.
    async fn leave_unseen(&self, key: &Key, session: &Session) -> Result<Released, Error> {
        let parent = self.parent(&key.lock);
        let mut there = false;
        while let Ok(client) = session.client() {
            let found = self.find(session, &client, &parent, &node_names::guid(&key.req)).await;
            let left = match found {
                Ok(None) => break,
                Ok(Some((name, _))) => {
                    there = true;
                    gone(client.delete(&format!("{parent}/{name}"), None).await)
                }
                Err(e) => Err(e),
            };
            match left {
                Ok(()) => {}
                Err(e) if is_over(&e) => session.end(),
                Err(e) => return Err(session.failed(e)),
            }
        }
        session.doubt(self.clock.now());
        session.forget(&key.req);
        Ok(if there { Released::Released } else { Released::WasLost })
    }
}
