//! One server as a node of a quorum.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_core::quorum::{
    Ballot, Bid, Commit, Committed, Heal, NodeDue, NodeKept, NodeReply, Round, Vote,
};
use distlock_core::{
    Ask, Capability, Error, EventSink, Force, Forced, FullName, Key, LockInfo, Query, QuorumNode,
    Released, ReqId, StoreInfo, Token,
};
use futures_util::future::join_all;
use redis::Value;

use super::open::reads;
use super::{keys, plain, record, replies, script_calls};
use crate::address::{Address, Credentials};
use crate::checked_connection::CheckedConnection;
use crate::connection::Call;
use crate::inspect::{self, Listed, Listing};
use crate::options::{Algorithm, RedisOptions};
use crate::plain_common::inspected;
use crate::primary::PrimaryAddress;
use crate::quarantine;
use crate::reconnect::{Reconnecting, Shared};

/// What is listed: the records of locks.
const RECORDS: Listed = Listed { prefix: keys::PREFIX, part: "", kind: "string" };

/// A server that keeps its share of a quorum's locks, by scripts or by the textbook recipe. A call
/// either goes out at once or fails at once: the quorum does not wait for a node that is not there.
pub(crate) struct RedlockNode {
    pub(super) site: String,
    pub(super) server: Arc<Reconnecting>,
    capability: Arc<Capability>,
    listing: Listing,
}

impl RedlockNode {
    /// A server that is not connected to yet.
    pub(super) fn new(
        address: Address,
        credentials: Credentials,
        options: RedisOptions,
        capability: Arc<Capability>,
    ) -> Self {
        let site = address.to_string();
        // A channel for each server, as two of them might be replicas of each other.
        let via = format!("{}s:{}", keys::PREFIX, ReqId::random());
        let marker = Box::new(|| Some(quarantine::marker(keys::PREFIX)));
        let shared = Shared::new(credentials, options, reads);
        let address = PrimaryAddress::Fixed(address);
        let server = Reconnecting::new(shared, address, via, marker, false);
        Self { site, server, capability, listing: Listing::default() }
    }

    /// How long it grants nothing, and why.
    fn closed(&self, link: &CheckedConnection) -> (Duration, String) {
        let closed = link.quarantined(self.info().clock);
        closed.map_or_else(Default::default, |(left, why)| (left, format!("{}: {why}", self.site)))
    }

    /// Runs one script.
    async fn play(&self, link: &CheckedConnection, call: &Call) -> Result<Value, Error> {
        let answer = link.wire.run(call, false).await;
        answer.map_err(|fault| {
            self.server.judge(link, &fault);
            fault.told().store(&self.site)
        })
    }

    async fn one(&self, call: Call) -> Result<Value, Error> {
        self.play(&*self.server.at_once()?, &call).await
    }

    fn is_plain(&self) -> bool {
        self.server.shared.options.algorithm == Algorithm::Plain
    }

    /// Proposes by the textbook recipe.
    async fn propose_plain(&self, ask: &Ask, round: Round, token: Token) -> Result<Vote, Error> {
        let link = self.server.at_once()?;
        let (left, why) = self.closed(&link);
        if !left.is_zero() {
            return Ok(Vote::NotYet { left, why });
        }
        let call = plain::propose(ask, round, token, &link.agreed)?;
        plain::vote(&self.play(&link, &call).await?, round)
    }

    fn shut(&self) {
        self.server.shared.closed.store(true, Ordering::Release);
        self.server.close();
    }

    async fn heal_some(&self, heals: &[Heal]) -> Result<Vec<Vote>, Error> {
        let link = self.server.at_once()?;
        let (closed, why) = self.closed(&link);
        let value =
            self.play(&link, &script_calls::heal(heals, &link.via, closed, &link.agreed)).await?;
        replies::votes(&value, heals.len(), &why)
    }

    async fn renew_some(&self, due: &[NodeDue]) -> Result<Vec<NodeKept>, Error> {
        let link = self.server.at_once()?;
        if self.is_plain() {
            let value = self.play(&link, &plain::renew(due, &link.agreed)?).await?;
            return plain::renewals(&value, due.len());
        }
        let value = self.play(&link, &script_calls::renew(due, &link.agreed)).await?;
        Ok(replies::renewals(&value, due.len())?.into_iter().map(kept).collect())
    }

    async fn look(&self, locks: Vec<FullName>) -> Result<Vec<LockInfo>, Error> {
        if self.is_plain() {
            return inspected(&locks, &self.one(plain::inspect(&locks)?).await?);
        }
        let value = self.one(script_calls::inspect(&locks)).await?;
        let (now, states) = record::states(&value)?;
        Ok(locks.iter().zip(states).filter_map(|(lock, state)| state.view(lock, now)).collect())
    }
}

impl QuorumNode for RedlockNode {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: &self.capability,
            site: &self.site,
            clock: &self.server.shared.clock,
        }
    }

    fn link(&self) -> u64 {
        self.server.number()
    }

    async fn propose(&self, bid: &Bid) -> Result<Ballot, Error> {
        if self.is_plain() {
            let vote = self.propose_plain(&bid.ask, bid.round, bid.token).await?;
            return Ok(Ballot { vote, at: None });
        }
        let link = self.server.at_once()?;
        let (closed, why) = self.closed(&link);
        let value =
            self.play(&link, &script_calls::propose(bid, &link.via, closed, &link.agreed)).await?;
        let (vote, at) = replies::vote(&value, &why)?;
        Ok(Ballot { vote, at: Some(at) })
    }

    async fn heal(&self, heals: &[Heal]) -> Vec<Result<Vote, Error>> {
        if self.is_plain() {
            let heals = heals.iter().map(|h| self.propose_plain(&h.ask, h.round, h.token));
            return join_all(heals).await;
        }
        let batches = heals.chunks(script_calls::BATCH).map(|some| async {
            match self.heal_some(some).await {
                Ok(votes) => votes.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(e) => some.iter().map(|_| Err(e.clone())).collect(),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed, Error> {
        // The recipe has no counter to write to, and the quorum of such nodes never asks for it.
        if self.is_plain() {
            return Ok(Committed::Lost);
        }
        replies::committed(&self.one(script_calls::commit(commit)).await?)
    }

    async fn renew(&self, due: &[NodeDue]) -> Vec<NodeKept> {
        let batches = due.chunks(script_calls::BATCH).map(|some| async {
            match self.renew_some(some).await {
                Ok(kept) => kept,
                Err(e) => some.iter().map(|_| NodeKept::Unknown(e.clone())).collect(),
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, key: &Key) -> Result<Released, Error> {
        let call = match self.is_plain() {
            true => plain::release(key)?,
            false => script_calls::release(key),
        };
        replies::released(&self.one(call).await?)
    }

    async fn cancel(&self, key: &Key, upto: Round) -> Result<(), Error> {
        let call = match self.is_plain() {
            true => match plain::cancel(key, upto) {
                Ok(call) => call,
                // Nothing was ever asked for under a name that cannot be a key.
                Err(_) => return Ok(()),
            },
            false => script_calls::cancel(key, upto),
        };
        replies::cancelled(&self.one(call).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let listed = if self.is_plain() { &plain::HELD } else { &RECORDS };
        let scan = async |space, prefix| {
            inspect::scan(&*self.server.at_once()?, listed, space, prefix).await
        };
        self.listing.page(self.info().clock, query, scan, |locks| self.look(locks)).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let call = match self.is_plain() {
            true => plain::force(lock, token, how, self.capability.ttl_max)?,
            false => script_calls::force(lock, token, how),
        };
        replies::forced(&self.one(call).await?)
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.server.shared.sink.set(sink);
    }

    async fn close(&self) {
        self.shut();
    }
}

impl Drop for RedlockNode {
    /// Takes effect at once: the connection ends, and none is made again.
    fn drop(&mut self) {
        self.shut();
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
