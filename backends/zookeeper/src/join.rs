//! Joining a queue.
//!
//! 1. Create the entry, ephemeral and sequential, and right behind it, without waiting for the
//!    answer, ask how many children the lock's own node has: a session's questions are answered in
//!    order, so that counts ours. One child: that is us, and first. More: read the queue. Where
//!    others of this client are in the queue already, only the entry is created.
//! 2. No such lock: make its container, and again.
//! 3. No answer: once connected again in the same session, look for the request's uuid in the queue.
//!    What was sent through another server is refused from then on, so what is not there never
//!    comes; through the same server it may, and is swept.
//! 4. Only an entry of this very session counts: one of an older session is a dead client's, also
//!    when that was us.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::{Joined, Snapshot, Turn, turn};
use distlock_core::{Ask, Error, Kind, Token};
use zookeeper_client::{Client, CreateMode, Error as Zk};

use crate::errors::{gone, is_lost, is_over};
use crate::node_names;
use crate::own_entry::OwnEntry;
use crate::record::Record;
use crate::session::Session;
use crate::store::Shared;

/// The low bits of a token are for hand-over inside a process.
pub(crate) const LOCAL_BITS: u32 = 10;
/// How many sessions are tried when each has ended just then, and how many containers made that are
/// gone again.
const TRIES: usize = 8;

/// After a question without an answer the next one waits this long.
pub(crate) const AGAIN: Duration = Duration::from_millis(50);

/// The token of an entry: the transaction that made it.
pub(crate) fn token(czxid: i64) -> Result<Token, Error> {
    let bits = u64::try_from(czxid).ok().and_then(|z| z.checked_mul(1 << LOCAL_BITS));
    bits.and_then(|bits| Token::new(bits).ok()).ok_or_else(|| {
        Error::new(Kind::Layout, "the ensemble's transaction ids are used up")
            .with_hint("after two million elections of a leader, move to a new ensemble")
    })
}

impl Shared {
    pub(crate) async fn join(self: &Arc<Self>, ask: &Ask) -> Result<Joined<OwnEntry>, Error> {
        let mut ended = None;
        for _ in 0..TRIES {
            if self.is_finished(&ask.req) {
                return Ok(Joined::Tombstoned);
            }
            let session = self.pool.session(self, ask.ttl).await?;
            let joined = match session.client() {
                Ok(client) => self.join_in(&session, &client, ask).await,
                Err(e) => Err(e),
            };
            match joined {
                Ok(joined) => return Ok(joined),
                Err(e) if is_over(&e) => ended = Some(session.failed(e)),
                Err(e) => {
                    // Refused is not in the queue; without an answer it may be.
                    if !is_lost(&e) && session.place(&ask.req).is_none() {
                        session.forget(&ask.req);
                        self.forget(&ask.req);
                    }
                    return Err(session.failed(e));
                }
            }
        }
        Err(ended.unwrap_or_else(busy))
    }

    async fn join_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        client: &Client,
        ask: &Ask,
    ) -> Result<Joined<OwnEntry>, Zk> {
        let parent = self.parent(&ask.lock);
        let prefix = node_names::prefix(&ask.req, ask.mode);
        // Sent before, and it may be in the queue.
        let mut again = self.recall(&ask.req).is_some();
        // On record before it is sent: an undo must find where it went.
        self.remember(&ask.req, session);
        let crowded = session.expect(ask.key());
        if let Some(place) = session.place(&ask.req) {
            return self.joined(session, client, place, None, ask).await;
        }
        for _ in 0..TRIES {
            let sent = self.reading();
            let made = match std::mem::take(&mut again) {
                true => Err(Zk::ConnectionLoss),
                // Behind others of this client it is not first.
                false => self.create(session, client, &parent, &prefix, ask, crowded).await,
            };
            let (name, czxid, others) = match made {
                Ok(made) => {
                    session.heard(sent, self.reading());
                    made
                }
                Err(Zk::NoNode) => match self.make_container(client, &parent).await {
                    Ok(()) => continue,
                    Err(e) if is_lost(&e) => {
                        self.clock.sleep(AGAIN).await;
                        continue;
                    }
                    Err(e) => return Err(e),
                },
                Err(e) if is_lost(&e) => {
                    session.doubt(self.clock.now());
                    match self.find(session, client, &parent, &node_names::guid(&ask.req)).await? {
                        Some((name, czxid)) => (name, czxid, true),
                        None => continue,
                    }
                }
                Err(e) => return Err(e),
            };
            let token = token(czxid).map_err(|e| Zk::UnexpectedError(e.to_string()))?;
            let place = OwnEntry::new(session, &parent, &name, token, ask, sent.boot);
            session.note_entry(&ask.req, &place);
            if self.is_finished(&ask.req) {
                // Left while it joined.
                if gone(client.delete(&place.0.path, None).await).is_err() {
                    session.doubt(self.clock.now());
                }
                session.forget(&ask.req);
                return Ok(Joined::Tombstoned);
            }
            let alone = (!others).then(|| self.alone(&place));
            return self.joined(session, client, place, alone, ask).await;
        }
        Err(Zk::NoNode)
    }

    /// Makes an entry: its name, its transaction, and whether others may be in the queue.
    async fn create(
        &self,
        session: &Session,
        client: &Client,
        parent: &str,
        prefix: &str,
        ask: &Ask,
        crowded: bool,
    ) -> Result<(String, i64, bool), Zk> {
        let path = format!("{parent}/{prefix}");
        let data = Record::of(ask, session.ttl).write();
        let options = CreateMode::EphemeralSequential.with_acls(self.options.acls());
        // Both are sent before the first is answered. Nothing is written to the lock's own node: what
        // is in it may be somebody else's.
        let made = client.create(&path, &data, &options);
        let count = (!crowded).then(|| client.check_stat(parent));
        let (stat, sequence) = made.await?;
        let count = match count {
            Some(count) => count.await.ok().flatten().map(|stat| stat.num_children),
            None => None,
        };
        Ok((format!("{prefix}{sequence}"), stat.czxid, count != Some(1)))
    }

    /// In line.
    async fn joined(
        &self,
        session: &Session,
        client: &Client,
        place: OwnEntry,
        alone: Option<Snapshot>,
        ask: &Ask,
    ) -> Result<Joined<OwnEntry>, Zk> {
        let line = match alone {
            Some(line) => line,
            None => self.until_answered(|| self.known_queue(client, &ask.lock, &place)).await?,
        };
        let lease = session.lease();
        if turn(&line, place.0.token) == Turn::Mine {
            place.hold(&lease);
        }
        Ok(Joined::In { place, queue: line, lease })
    }

    /// Reads again and again until there is an answer.
    async fn until_answered<T, F: Future<Output = Result<T, Zk>>>(
        &self,
        read: impl Fn() -> F,
    ) -> Result<T, Zk> {
        loop {
            match read().await {
                Err(e) if is_lost(&e) => self.clock.sleep(AGAIN).await,
                answer => return answer,
            }
        }
    }

    /// Looks for an entry of a request, made by this very session. Those that another session of
    /// ours made are removed: they belong to no request.
    pub(crate) async fn find(
        &self,
        session: &Session,
        client: &Client,
        parent: &str,
        guid: &str,
    ) -> Result<Option<(String, i64)>, Zk> {
        self.until_answered(|| async move {
            let sync = client.sync(parent);
            let list = client.list_children(parent);
            let children = match (sync.await, list.await) {
                (Ok(()), Ok(children)) => children,
                (_, Err(Zk::NoNode)) | (Err(Zk::NoNode), _) => return Ok(None),
                (Err(e), _) | (_, Err(e)) => return Err(e),
            };
            let mut found = None;
            for name in children.into_iter().filter(|name| name.starts_with(guid)) {
                let path = format!("{parent}/{name}");
                match client.check_stat(&path).await? {
                    Some(stat) if stat.ephemeral_owner == session.id && found.is_none() => {
                        found = Some((name, stat.czxid));
                    }
                    Some(_) => gone(client.delete(&path, None).await)?,
                    None => {}
                }
            }
            Ok(found)
        })
        .await
    }

    /// Makes a container below the root.
    pub(crate) async fn make_container(&self, client: &Client, path: &str) -> Result<(), Zk> {
        let options = CreateMode::Container.with_acls(self.options.acls());
        for _ in 0..TRIES {
            match client.create(path, &[], &options).await {
                Ok(_) | Err(Zk::NodeExists) => return Ok(()),
                Err(Zk::NoNode) => {
                    let root = CreateMode::Persistent.with_acls(self.options.acls());
                    client.mkdir(&self.options.root, &root).await?;
                }
                Err(e) => return Err(e),
            }
        }
        Err(Zk::NoNode)
    }
}

fn busy() -> Error {
    Error::new(Kind::Unreachable, "sessions end as soon as they are opened")
        .with_hint("see the servers' log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_of_an_entry_are_below_those_of_the_next() {
        for czxid in [1, 77, 0x0001_ffff_ffff, (1 << 53) - 2] {
            let (first, next) = (token(czxid).unwrap().get(), token(czxid + 1).unwrap().get());
            assert!(first + (1 << LOCAL_BITS) - 1 < next, "{first} {next}");
            assert!(first.trailing_zeros() >= LOCAL_BITS);
        }
        assert!(token(1 << 53).is_err() && token(-1).is_err());
    }
}
