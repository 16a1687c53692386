//! One client: its way to the cluster, its leases, and what it has in all lines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use distlock_core::backend::Event;
use distlock_core::capability::Capability;
use distlock_core::lease::{EventSink, Wake};
use distlock_core::queue::Lease;
use distlock_core::{Clock, ClockReading, Error, Kind, LossReason, ReqId, engine};

use crate::entries::{Entries, Mine};
use crate::entry_value::Meta;
use crate::keys;
use crate::session::Session;
use crate::txn;
use crate::wire::calls::{Link, Tries};
use crate::wire::errors::Fault;
use crate::wire::keepalive::Beats;
use crate::wire::proto::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeysRequest, LeaseKeysResponse, LeaseRevokeRequest,
    LeaseRevokeResponse,
};
use crate::wire::txn_batcher::TxnBatcher;
use crate::wire::watches::{News, Watches};

/// The parts that all calls share.
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    beats: Beats,
    pub(crate) together: Arc<TxnBatcher>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) entries: Entries,
    /// By TTL in seconds: what new entries are put on.
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) capability: Capability,
    pub(crate) sink: OnceLock<EventSink>,
}

impl Client {
    pub(crate) fn new(link: Link, capability: Capability) -> Arc<Self> {
        let link = Arc::new(link);
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me = me.clone();
            let listener = move |req: &ReqId, news: News| {
                if let Some(client) = me.upgrade() {
                    client.hear(req, news);
                }
            };
            Self {
                beats: Beats::new(link.clone()),
                together: TxnBatcher::new(link.clone()),
                watches: Watches::new(link.clone(), Box::new(listener)),
                entries: Entries::default(),
                sessions: Mutex::default(),
                capability,
                sink: OnceLock::new(),
                link,
            }
        })
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.link.clock
    }

    pub(crate) fn moment(&self) -> ClockReading {
        self.capability.moment(self.clock())
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, wake: Wake) {
        if let Some(sink) = self.sink.get() {
            sink(wake);
        }
    }

    /// How long a session is certain to last; `None` when it is over.
    pub(crate) fn lease(&self, session: &Session) -> Option<Lease> {
        let (sent, ttl) = session.kept()?;
        let lease = Lease { sent, ttl, margin: self.capability.margin(ttl) };
        (!session.is_over(self.moment())).then_some(lease)
    }

    /// The lease for entries of a TTL, made or kept just now if a third of it has passed.
    pub(crate) async fn session(
        self: &Arc<Self>,
        ttl: Duration,
    ) -> Result<(Arc<Session>, Lease), Error> {
        loop {
            let session = {
                let mut sessions = self.sessions();
                let known =
                    sessions.entry(ttl.as_secs()).or_insert_with(|| Session::new(ttl).into());
                if !known.takes() {
                    *known = Session::new(ttl).into();
                }
                known.clone()
            };
            if let Some(lease) = self.touch(&session).await? {
                return Ok((session, lease));
            }
        }
    }

    /// Keeps a lease if a third of it has passed; `None` when it has ended.
    pub(crate) async fn touch(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<Option<Lease>, Error> {
        if session.is_fresh(self.moment()) && session.takes() {
            return Ok(self.lease(session));
        }
        Box::pin(self.refresh(session)).await
    }

    /// On the library's own thread, once for all who need it: whoever began it may be dropped, or
    /// not run for a while. Each waits for as long as a call may take.
    async fn refresh(self: &Arc<Self>, session: &Arc<Session>) -> Result<Option<Lease>, Error> {
        let (client, of) = (self.clone(), session.clone());
        let kept = session.flight.join(|| async move {
            if of.is_fresh(client.moment()) {
                return Ok(client.lease(&of));
            }
            match of.kept() {
                Some(_) => client.keep_alive(&of).await,
                None => client.grant(&of).await.map(|()| client.lease(&of)),
            }
        });
        let kept = self.clock().timeout(self.link.timeout, kept).await.flatten();
        kept.unwrap_or_else(|| Err(self.link.late()))
    }

    async fn grant(&self, session: &Session) -> Result<(), Error> {
        let sent = self.moment();
        match self.make_lease(session.id, session.ttl()).await? {
            Some(granted) => session.keep(sent, granted),
            // Made by an earlier call that had no answer, who knows when: a keep-alive tells.
            None => {
                let (sent, ttl) = self.beats.beat(session.id, || self.moment()).await?;
                session.keep(sent, Duration::from_secs(u64::try_from(ttl).unwrap_or(0)));
            }
        }
        Ok(())
    }

    /// Makes a lease, of at least this many whole seconds; `None` when it exists.
    pub(crate) async fn make_lease(
        &self,
        id: i64,
        ttl: Duration,
    ) -> Result<Option<Duration>, Error> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let question = LeaseGrantRequest { ttl: seconds, id };
        let path = "/etcdserverpb.Lease/LeaseGrant";
        match self.link.call::<_, LeaseGrantResponse>(path, &question, Tries::Many).await {
            Ok(a) => Ok(Some(Duration::from_secs(u64::try_from(a.said.ttl).unwrap_or(0)))),
            Err(Fault::LeaseExists) => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Keeps a lease; `None` when it has ended. One that may have ended by our own clock is never
    /// brought back: whoever had something on it has been told so, or is about to be.
    pub(crate) async fn keep_alive(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<Option<Lease>, Error> {
        if session.is_over(self.moment()) {
            self.end(session);
            let _ = self.revoke(session.id).await;
            return Ok(None);
        }
        let (sent, ttl) = self.beats.beat(session.id, || self.moment()).await?;
        let Ok(ttl @ 1..) = u64::try_from(ttl) else {
            self.end(session);
            return Ok(None);
        };
        session.keep(sent, Duration::from_secs(ttl));
        if session.take_doubt() {
            let (client, session) = (self.clone(), session.clone());
            engine::spawn(async move { client.sweep(&session).await });
        }
        Ok(self.lease(session))
    }

    /// A lease has ended, and everything on it: whoever has something there is told.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        if !session.end() {
            return;
        }
        self.sessions().retain(|_, s| !Arc::ptr_eq(s, session));
        for mine in self.entries.end(session) {
            // By our own clock: at the server it may be there a while longer.
            if let Some(spot) = mine.spot() {
                self.watches.insist(spot);
            }
            self.tell(Wake::Event(Event::Lost(mine.key, LossReason::Disconnected)));
        }
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Error> {
        let question = LeaseRevokeRequest { id };
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        match self.link.call::<_, LeaseRevokeResponse>(path, &question, Tries::Many).await {
            Ok(_) | Err(Fault::NoLease { .. }) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    fn revoke_later(self: &Arc<Self>, session: &Session) {
        let (client, id) = (self.clone(), session.id);
        engine::spawn(async move {
            if let Err(e) = client.revoke(id).await {
                tracing::debug!(store = %client.link.site, error = %e, "a lease is left to expire");
            }
        });
    }

    /// An entry is gone, or never came to be: its seat is for the next.
    pub(crate) fn forget(self: &Arc<Self>, req: &ReqId) -> Option<Mine> {
        let mine = self.let_go(req)?;
        mine.vacate();
        Some(mine)
    }

    /// An entry is not this client's any more, though it may be at its seat yet.
    pub(crate) fn let_go(self: &Arc<Self>, req: &ReqId) -> Option<Mine> {
        let mine = self.entries.gone(req)?;
        if let Some(spot) = mine.spot() {
            self.watches.left(spot);
        }
        if mine.session.exit() {
            self.revoke_later(&mine.session);
        }
        Some(mine)
    }

    /// A tombstone was put on a lease. One with many is retired: what is new goes on another, and it
    /// is revoked when its last entry has left, never before.
    pub(crate) fn buried(self: &Arc<Self>, session: &Arc<Session>) {
        session.in_doubt();
        if session.bury() {
            self.sessions().retain(|_, s| !Arc::ptr_eq(s, session));
            if session.is_empty() {
                self.revoke_later(session);
            }
        }
    }

    /// Removes entries of a lease that nobody here knows: puts that arrived late.
    async fn sweep(self: &Arc<Self>, session: &Arc<Session>) {
        let question = LeaseKeysRequest { id: session.id, keys: true };
        let path = "/etcdserverpb.Lease/LeaseTimeToLive";
        let all = self.link.call::<_, LeaseKeysResponse>(path, &question, Tries::Many).await;
        let Ok(all) = all else { return session.in_doubt() };
        let known = self.entries.seats(session);
        for key in all.said.keys {
            let entry = std::str::from_utf8(&key).ok().filter(|_| keys::parse(&key).is_some());
            let Some(key) = entry.filter(|key| !known.contains(*key)) else { continue };
            if self.sweep_one(key, session).await.is_err() {
                session.in_doubt();
            }
        }
    }

    async fn sweep_one(&self, key: &str, session: &Session) -> Result<(), Fault> {
        let said = self.link.txn(&txn::read(key)).await?.said;
        let kv = txn::ranges(&said).next().and_then(|r| r.kvs.first());
        let sitting = kv.and_then(|kv| Some((kv, Meta::read(&kv.value)?.req)));
        let Some((kv, req)) = sitting.filter(|(_, req)| !self.entries.knows(req)) else {
            return Ok(());
        };
        tracing::debug!(key, %req, "an entry that arrived late is removed");
        self.link.txn(&txn::cancel_this(kv, key, req, session.id)).await.map(drop)
    }

    /// News of an entry of our own.
    fn hear(self: &Arc<Self>, req: &ReqId, news: News) {
        let mine = self.entries.get(req);
        let Some(mine) = mine.filter(|m| m.leaving.is_none()) else { return };
        let event = match news {
            News::Deleted => {
                self.forget(&mine.key.req);
                Event::Lost(mine.key, LossReason::Gone)
            }
            News::Put(value) if Meta::read(&value).is_some_and(|m| m.revoked) => {
                Event::Lost(mine.key, LossReason::Revoked)
            }
            News::Put(_) => return,
            News::Joined => Event::Contended(mine.key),
            News::Missed => {
                self.tell(Wake::Everybody);
                Event::InDoubt(mine.key)
            }
        };
        self.tell(Wake::Event(event));
    }

    /// Ends the streams, and the leases that nothing is on. What is still there ends with its lease:
    /// to revoke that at once would cut a `min_hold` short.
    pub(crate) async fn close(&self) {
        self.watches.close();
        let all: Vec<_> = self.sessions().drain().map(|(_, s)| s).collect();
        for session in all.into_iter().filter(|s| s.is_empty() && s.kept().is_some()) {
            let bounded = self.clock().timeout(CLOSING, self.revoke(session.id)).await;
            if bounded.is_none_or(|r| r.is_err()) {
                return;
            }
        }
    }

    /// An answer that makes no sense.
    pub(crate) fn odd(&self, what: &'static str) -> Error {
        Error::new(Kind::Layout, what)
            .store(&self.link.site)
            .with_hint("is something else writing below /distlock/?")
    }
}

/// A client that is closed waits this long for its leases to be given back.
const CLOSING: Duration = Duration::from_secs(1);

impl Drop for Client {
    /// Takes effect in the background: the streams end.
    fn drop(&mut self) {
        self.watches.close();
    }
}
