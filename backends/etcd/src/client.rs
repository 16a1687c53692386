//! Client state that all calls share: connection, sessions (leases), own queue entries, batcher and
//! watches.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use distlock_core::{
    Capability, Clock, ClockReading, Error, Event, EventSink, Kind, Lease, LossReason, Mutex,
    ReqId, Wake, engine,
};

use crate::own_requests::{Entries, OwnRequest};
use crate::wire::proto::{LeaseGrantRequest, LeaseKeysRequest, LeaseRevokeRequest};
use crate::wire::watches::{EntryNews, News, Watches};
use crate::{
    entry::EntryValue, errors::Fault, keys, session::Session, txn, wire::keepalive::KeepAlives,
    wire::link::Link, wire::txn_batcher::TxnBatcher,
};

/// The parts that all calls share.
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    keepalives: KeepAlives,
    pub(crate) batcher: Arc<TxnBatcher>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) entries: Entries,
    /// By TTL in seconds: the session whose lease new entries use.
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) capability: Capability,
    pub(crate) sink: OnceLock<EventSink>,
}

impl Client {
    pub(crate) fn new(link: Link, capability: Capability) -> Arc<Self> {
        let link = Arc::new(link);
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me = me.clone();
            let listener = move |news: News| {
                if let Some(client) = me.upgrade() {
                    client.hear(news);
                }
            };
            Self {
                keepalives: KeepAlives::new(link.clone()),
                batcher: TxnBatcher::new(link.clone()),
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

    pub(crate) fn reading(&self) -> ClockReading {
        self.capability.reading(self.clock())
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
        (!session.is_over(self.reading())).then_some(lease)
    }

    /// The lease for entries of a TTL, made or kept just now if a third of it has passed.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>, Error> {
        loop {
            let session = {
                let mut sessions = self.sessions.lock();
                let known =
                    sessions.entry(ttl.as_secs()).or_insert_with(|| Session::new(ttl).into());
                if !known.takes() {
                    *known = Session::new(ttl).into();
                }
                known.clone()
            };
            if self.touch(&session).await?.is_some() {
                return Ok(session);
            }
        }
    }

    /// Keeps a lease if a third of it has passed; `None` when it has ended.
    pub(crate) async fn touch(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<Option<Lease>, Error> {
        if session.is_fresh(self.reading()) && session.takes() {
            return Ok(self.lease(session));
        }
        Box::pin(self.refresh(session)).await
    }

    /// On the library's own thread, once for all calls that need it: the call that began it may be
    /// dropped, or not run for a while. Each waits for as long as a call may take.
    async fn refresh(self: &Arc<Self>, session: &Arc<Session>) -> Result<Option<Lease>, Error> {
        let (client, of) = (self.clone(), session.clone());
        let kept = session.flight.join(|| async move {
            if of.is_fresh(client.reading()) {
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
        let sent = self.reading();
        match self.make_lease(session.id, session.ttl()).await? {
            Some(granted) => session.keep(sent, granted),
            // Made by an earlier call that had no answer, at an unknown time: a keep-alive tells.
            None => {
                let (sent, ttl) = self.keepalives.keep(session.id, || self.reading()).await?;
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
        match self.link.call(&LeaseGrantRequest { ttl: seconds, id }).await {
            Ok(a) => Ok(Some(Duration::from_secs(u64::try_from(a.said.ttl).unwrap_or(0)))),
            Err(Fault::LeaseExists) => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Keeps a lease; `None` when it has ended. One that may have ended by our own clock is never
    /// brought back: holders on it were told of the loss, or are about to be.
    pub(crate) async fn keep_alive(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<Option<Lease>, Error> {
        if session.is_over(self.reading()) {
            self.end(session);
            let _ = self.revoke(session.id).await;
            return Ok(None);
        }
        let (sent, ttl) = self.keepalives.keep(session.id, || self.reading()).await?;
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

    /// A lease has ended, and every entry on it: their requests are told.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        if !session.end() {
            return;
        }
        self.sessions.lock().retain(|_, s| !Arc::ptr_eq(s, session));
        for mine in self.entries.end(session) {
            // By our own clock: at the server it may be there a while longer.
            if let Some(spot) = mine.spot() {
                self.watches.insist(spot);
            }
            self.tell(Wake::Event(Event::Lost(mine.key, LossReason::Disconnected)));
        }
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Error> {
        match self.link.call(&LeaseRevokeRequest { id }).await {
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

    /// An entry is gone, or never came to be: its key may be used again.
    pub(crate) fn forget(self: &Arc<Self>, req: &ReqId) -> Option<OwnRequest> {
        let mine = self.let_go(req)?;
        mine.free_key();
        Some(mine)
    }

    /// An entry is not this client's any more, though it may still be at its key.
    pub(crate) fn let_go(self: &Arc<Self>, req: &ReqId) -> Option<OwnRequest> {
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
    pub(crate) fn note_tombstone(self: &Arc<Self>, session: &Arc<Session>) {
        session.in_doubt();
        if session.add_tombstone() {
            self.sessions.lock().retain(|_, s| !Arc::ptr_eq(s, session));
            if session.is_empty() {
                self.revoke_later(session);
            }
        }
    }

    /// Removes entries of a lease that are not on record here: puts that arrived late.
    async fn sweep(self: &Arc<Self>, session: &Arc<Session>) {
        let all = self.link.call(&LeaseKeysRequest { id: session.id, keys: true }).await;
        let Ok(all) = all else { return session.in_doubt() };
        let known = self.entries.keys_on(session);
        for key in all.said.keys {
            let entry = std::str::from_utf8(&key).ok().filter(|_| keys::parse(&key).is_some());
            let Some(key) = entry.filter(|key| !known.contains(*key)) else { continue };
            if self.sweep_one(key, session).await.is_err() {
                session.in_doubt();
            }
        }
    }

    async fn sweep_one(&self, key: &str, session: &Session) -> Result<(), Fault> {
        let said = self.link.call(&txn::read(key)).await?.said;
        let sitting =
            txn::first_read(&said).and_then(|kv| Some((kv, EntryValue::read(&kv.value)?.req)));
        let Some((kv, req)) = sitting.filter(|(_, req)| !self.entries.knows(req)) else {
            return Ok(());
        };
        tracing::debug!(key, %req, "an entry that arrived late is removed");
        self.link.call(&txn::cancel_this(kv, key, req, session.id)).await.map(drop)
    }

    /// News of an entry of our own, or that there is none for now.
    fn hear(self: &Arc<Self>, news: News) {
        let News::Of(req, news) = news else {
            return self.tell(Wake::Event(Event::Missed));
        };
        let mine = self.entries.get(&req);
        let Some(mine) = mine.filter(|m| m.leaving.is_none()) else { return };
        let event = match news {
            EntryNews::Deleted => {
                self.forget(&mine.key.req);
                Event::Lost(mine.key, LossReason::Gone)
            }
            EntryNews::Put(value) if EntryValue::is_revoked(&value) => {
                Event::Lost(mine.key, LossReason::Revoked)
            }
            EntryNews::Put(_) => return,
            EntryNews::Joined => Event::Contended(mine.key),
            EntryNews::Missed => {
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
        let all: Vec<_> = self.sessions.lock().drain().map(|(_, s)| s).collect();
        for session in all.into_iter().filter(|s| s.is_empty() && s.kept().is_some()) {
            let bounded = self.clock().timeout(CLOSING, self.revoke(session.id)).await;
            if bounded.is_none_or(|r| r.is_err()) {
                return;
            }
        }
    }

    /// The error of an answer that is not as expected.
    pub(crate) fn odd(&self, what: &'static str) -> Error {
        Error::new(Kind::Layout, what)
            .store(&self.link.site)
            .with_hint("see whether another program writes below /distlock/")
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
