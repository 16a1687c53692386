//! One server as a node of a quorum.

use std::sync::Arc;

use distlock_core::backend::{Force, Forced, Key, Released};
use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::EventSink;
use distlock_core::quorum::{
    Ballot, Bid, Commit, Committed, Heal, NodeDue, NodeKept, NodeReply, QuorumNode, Round, Vote,
};
use distlock_core::{Clock, Error, FullName, LockInfo, Token};
use futures_util::future::join_all;
use redis::Value;

use super::server::Server;
use super::{moves, names, record, replies};
use crate::call::Call;
use crate::link::Link;
use crate::listing::Listing;

/// A server that keeps its share of a quorum's locks by scripts.
pub(crate) struct RedlockNode {
    pub(crate) server: Server,
    pub(crate) capability: Arc<Capability>,
    pub(crate) listing: Listing,
}

impl RedlockNode {
    async fn one(&self, make: impl FnOnce(&Link) -> Call) -> Result<Value, Error> {
        let link = self.server.link()?;
        self.server.play(&link, &make(&link)).await
    }

    async fn heal_some(&self, heals: &[Heal]) -> Result<Vec<Vote>, Error> {
        let link = self.server.link()?;
        let (closed, why) = self.server.closed(&link);
        let value =
            self.server.play(&link, &moves::heal(heals, &link.via, closed, &link.agreed)).await?;
        replies::votes(&value, heals.len(), &why)
    }

    async fn look(&self, locks: &[FullName]) -> Result<Vec<LockInfo>, Error> {
        let mut found = Vec::new();
        for locks in locks.chunks(moves::BATCH) {
            let value = self.one(|_| moves::inspect(locks)).await?;
            let (now, states) = record::states(&value)?;
            let seen = locks.iter().zip(states).filter_map(|(lock, state)| state.view(lock, now));
            found.extend(seen);
        }
        Ok(found)
    }
}

impl QuorumNode for RedlockNode {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.server.site
    }

    fn clock(&self) -> &Clock {
        self.server.clock()
    }

    fn link(&self) -> u64 {
        self.server.number()
    }

    async fn propose(&self, bid: &Bid) -> Result<Ballot, Error> {
        let link = self.server.link()?;
        let (closed, why) = self.server.closed(&link);
        let value =
            self.server.play(&link, &moves::propose(bid, &link.via, closed, &link.agreed)).await?;
        let (vote, at) = replies::vote(&value, &why)?;
        Ok(Ballot { vote, at: Some(at) })
    }

    async fn heal(&self, heals: &[Heal]) -> Vec<Result<Vote, Error>> {
        let batches = heals.chunks(moves::BATCH).map(|some| async {
            match self.heal_some(some).await {
                Ok(votes) => votes.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(e) => some.iter().map(|_| Err(e.clone())).collect(),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed, Error> {
        replies::committed(&self.one(|_| moves::commit(commit)).await?)
    }

    async fn renew(&self, due: &[NodeDue]) -> Vec<NodeKept> {
        let batches = due.chunks(moves::BATCH).map(|some| async {
            let value = self.one(|link| moves::renew(some, &link.agreed)).await;
            match value.and_then(|value| replies::renewals(&value, some.len())) {
                Ok(replies) => replies.into_iter().map(kept).collect::<Vec<_>>(),
                Err(e) => some.iter().map(|_| NodeKept::Unknown(e.clone())).collect(),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, key: &Key) -> Result<Released, Error> {
        replies::released(&self.one(|_| moves::release(key)).await?)
    }

    async fn cancel(&self, key: &Key, upto: Round) -> Result<(), Error> {
        replies::cancelled(&self.one(|_| moves::cancel(key, upto)).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        match query {
            Query::Name(lock) => self.look(std::slice::from_ref(lock)).await,
            Query::Prefix { space, prefix, after, limit } => {
                let scan = async { names::scan(&*self.server.link()?, space, prefix, "").await };
                let (clock, page) = (self.clock(), (space, prefix.as_str(), after.as_ref()));
                let names = self.listing.names(clock, page, scan).await?;
                let mut found = Vec::new();
                // A record stays for a day after its last use: most of them may be free.
                for names in names.chunks(moves::BATCH) {
                    found.extend(self.look(names).await?);
                    if found.len() >= *limit {
                        break;
                    }
                }
                found.truncate(*limit);
                if let Some(last) = found.get(limit - 1) {
                    self.listing.keep(clock, prefix, &last.lock, &names);
                }
                Ok(found)
            }
        }
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        replies::forced(&self.one(|_| moves::force(lock, token, how)).await?)
    }

    fn listen(&self, sink: EventSink) {
        self.server.listen(sink);
    }

    async fn close(&self) {
        self.server.close();
    }
}

fn kept(reply: NodeReply) -> NodeKept {
    match reply {
        NodeReply::Kept { generation, left, token, waiters } => {
            NodeKept::Held { generation, left, token, waiters }
        }
        NodeReply::Lost(why) => NodeKept::Lost(why),
        other => NodeKept::Unknown(replies::odd(&Value::SimpleString(format!("{other:?}")))),
    }
}
