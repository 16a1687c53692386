//! etcd as a store of the queue family.
//!
//! 1. Join: one transaction puts an entry on the client's lease, unless it is there or the request
//!    has a tombstone, and reads the queue if it was not empty. First by create revision holds.
//! 2. A waiter watches the key just ahead, from the revision it read; an entry of the same client
//!    tells of its end by itself.
//! 3. Proof: a transaction with a write in it, which only passes while the key has the create
//!    revision it was made with. It follows a keep-alive of the lease, never goes beside it.
//! 4. Renewal: one keep-alive a lease, then one such transaction for all that is held.
//! 5. Leave: delete, and prove the next in the queue by the same write if it is of this client. A join
//!    without an answer leaves with a tombstone on the same lease, so that it cannot arrive later.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::{Entry, Joined, Keeping, Proven, Snapshot, Spot};
use distlock_core::{
    Ask, Backend, Error, EventSink, Force, Forced, FullName, Kept, Key, Kind, LossReason, Mode,
    Outcome, Proof, Query, QueueDriver, QueueStore, Released, Store, StoreInfo, Token, engine,
};

use crate::client::Client;
use crate::entry::{EntryValue, EtcdEntry, LOCAL_BITS, OwnEntry, revision, token, told};
use crate::errors::Fault;
use crate::own_requests::OwnRequest;
use crate::session::{Session, random};
use crate::txn::Known;
use crate::wire::link::{Answer, Turn};
use crate::wire::proto::{RangeResponse, TxnResponse};
use crate::wire::watches::Joins;
use crate::{inspect, keys, leave, renewal, txn};

/// A lease that ends between keeping and using it is made anew so often.
const LEASES: usize = 3;

/// A client of one etcd cluster.
pub struct Etcd {
    pub(crate) client: Arc<Client>,
}

impl Etcd {
    fn wall(&self) -> u64 {
        self.client.clock().wall_micros()
    }

    /// Puts an entry that was joined on record, and watches it unless it is released soon.
    fn record(&self, ask: &Ask, entry: OwnEntry, alone: bool) -> EtcdEntry {
        let joins = if alone { entry.joins() } else { Joins::No };
        self.client.watches.own(&entry.spot, ask.req, entry.created, joins);
        let entry = Arc::new(entry);
        self.client.entries.insert(&ask.req, &entry);
        EtcdEntry(entry)
    }

    /// The queue as far as it was read for an entry; `ahead` at most are ahead of it. `None` when it
    /// is not enough to tell: the entry known of has left, and others may be ahead of it.
    fn queue_of(
        &self,
        said: &TxnResponse,
        mode: Mode,
        me: i64,
        ahead: i64,
        known: Option<&Known>,
    ) -> Option<Snapshot> {
        let wall = self.wall();
        let mut ranges = txn::ranges(said);
        let (Some(first), Some(near)) = (ranges.next(), ranges.next()) else {
            return Some(Snapshot { seen: txn::seen(said), ..Snapshot::default() });
        };
        let most = match mode {
            Mode::Exclusive => 2,
            Mode::Permit(_) | Mode::Shared => usize::MAX,
        };
        if near.kvs.first().is_none_or(|kv| kv.create_revision != me) {
            return Some(line(first, Vec::new(), 0, txn::seen(said), wall));
        }
        let mut entries: Vec<_> = near.kvs.iter().take(most).map(|kv| told(kv, wall)).collect();
        entries.reverse();
        if let Some(known) = known {
            // Revisions fall only when the cluster was restored from an older copy.
            if me <= known.upto {
                return None;
            }
            let other = known.other.as_ref().map(|spot| keys::created(spot));
            let there = ranges.next().and_then(|r| r.kvs.first());
            let there = there.filter(|kv| Some(kv.create_revision) == other);
            if other.is_some() && there.is_none() && entries.iter().all(|e| e.mode == Mode::Shared)
            {
                return None;
            }
            entries.splice(0..0, there.map(|kv| told(kv, wall)));
        }
        let ahead = match near.more || known.is_some() {
            true => ahead.min(first.count - 1),
            false => i64::try_from(near.kvs.len()).unwrap_or(1) - 1,
        };
        Some(line(first, entries, ahead, txn::seen(said), wall))
    }

    /// The queue for a shared entry that knows the last ahead of it that is not.
    fn queue_past(&self, said: &TxnResponse, me: &OwnEntry) -> Snapshot {
        let wall = self.wall();
        let mut ranges = txn::ranges(said);
        let (Some(first), Some(own)) = (ranges.next(), ranges.next()) else {
            return Snapshot { seen: txn::seen(said), ..Snapshot::default() };
        };
        let upto = ranges.next().map_or(&[][..], |r| &r.kvs);
        let mut entries: Vec<_> = upto.iter().rev().map(|kv| told(kv, wall)).collect();
        let own = own.kvs.first().filter(|kv| kv.create_revision == me.created);
        let Some(own) = own else {
            return Snapshot { entries, seen: txn::seen(said), ..Snapshot::default() };
        };
        entries.push(told(own, wall));
        line(first, entries, me.ahead.min(first.count - 1), txn::seen(said), wall)
    }

    /// The queue was read for an entry; whether it is the first.
    fn looked(&self, me: &OwnEntry, line: &Snapshot) -> bool {
        me.saw(line);
        let (mine, seen) = (token(me.created), i64::try_from(line.seen).unwrap_or(i64::MAX - 1));
        let first = line.entries.first().is_some_and(|e| e.token == mine && !e.revoked);
        if first && line.waiting_behind(mine) == 0 {
            self.client.watches.alone(&me.spot, seen, me.joins());
        }
        first
    }

    /// One attempt to join; `None` when the lease had ended before, or another entry was at its key.
    async fn enter(
        &self,
        ask: &Ask,
        session: Arc<Session>,
        turn: Turn<'_>,
    ) -> Result<Option<Joined<EtcdEntry>>, Error> {
        let client = &self.client;
        let Some((entry_key, session)) = client.entries.begin(&ask.key(), &session) else {
            return Ok(Some(Joined::Tombstoned));
        };
        // From here on it may arrive, so a drop of this future must be able to undo it.
        let others = client.entries.in_queue(&ask.lock);
        let value = EntryValue::of(ask, self.wall()).bytes();
        let known = client.entries.known(&ask.lock).filter(|_| ask.mode == Mode::Shared);
        let txn = txn::join(ask, &entry_key, value, session.id, others, known.as_ref());
        // Among others of one queue there is nothing to gain by going together.
        let answer = match others {
            true => client.link.txn_in_turn(&txn).await,
            false => client.batcher.write(&ask.lock, txn).await,
        };
        drop(turn);
        match answer {
            Ok(a) => self.joined(ask, &session, entry_key, a, known.as_ref()).await,
            // Nothing can arrive on a lease that has ended.
            Err(Fault::NoLease { .. }) => {
                client.forget(&ask.req);
                client.end(&session);
                Ok(None)
            }
            Err(fault) => {
                let e = Error::from(fault);
                match e.outcome() {
                    Outcome::Unknown => {
                        client.entries.in_doubt(&ask.req);
                        session.in_doubt();
                    }
                    _ => drop(client.forget(&ask.req)),
                }
                Err(e)
            }
        }
    }

    /// What the answer to a join means; `None` when another entry is at its key.
    async fn joined(
        &self,
        ask: &Ask,
        session: &Arc<Session>,
        entry_key: Arc<str>,
        answer: Answer<TxnResponse>,
        known: Option<&Known>,
    ) -> Result<Option<Joined<EtcdEntry>>, Error> {
        let (client, doubt, said) = (&self.client, answer.doubt, txn::joined(answer.said));
        if doubt {
            client.entries.in_doubt(&ask.req);
        }
        let now = said.header.map_or(0, |h| h.revision);
        let mut found = None;
        if !said.succeeded {
            if txn::ranges(&said).nth(1).is_some_and(|tombstone| !tombstone.kvs.is_empty()) {
                client.forget(&ask.req);
                return Ok(Some(Joined::Tombstoned));
            }
            let Some(kv) = txn::first_read(&said) else {
                return self.refused(ask, session, &entry_key, &said).await.map(Some);
            };
            // One that was to be gone by now, and lingers.
            if EntryValue::read(&kv.value).is_none_or(|m| m.req != ask.req) {
                client.entries.change_key(&ask.req);
                return Ok(None);
            }
            found = Some(kv.create_revision);
        }
        let Some(doubt) = client.entries.joined(&ask.req, doubt) else {
            return Ok(Some(Joined::Tombstoned));
        };
        let (ahead, line) = match (found, txn::ranges(&said).next()) {
            // An earlier attempt of the same request.
            (Some(_), _) => (i64::MAX, None),
            (None, None) => (0, Some(alone(ask, keys::spot(&entry_key, now), now))),
            (None, Some(first)) => {
                let ahead = first.count - 1;
                (ahead, self.queue_of(&said, ask.mode, now, ahead, known))
            }
        };
        let lease = client.lease(session).ok_or_else(|| ended(client))?;
        let (created, session) = (found.unwrap_or(now), session.clone());
        let place = OwnEntry::new(entry_key, created, session, ask, ahead, doubt);
        line.iter().for_each(|line| place.saw(line));
        let place = self.record(ask, place, ahead == 0);
        let queue = match line {
            Some(line) => line,
            None => self.queue(&ask.lock, &place).await?,
        };
        client.entries.looked(&ask.lock, &place.0);
        Ok(Some(Joined::In { place, queue, lease }))
    }

    /// The queue as a request sees it that was not let in.
    async fn refused(
        &self,
        ask: &Ask,
        session: &Arc<Session>,
        entry_key: &str,
        said: &TxnResponse,
    ) -> Result<Joined<EtcdEntry>, Error> {
        let client = &self.client;
        if client.entries.get(&ask.req).is_some_and(|m| m.doubt) {
            // An earlier attempt may still find the queue empty.
            leave::leave_tombstone(client, &ask.key(), entry_key, session).await?;
        }
        client.forget(&ask.req);
        let first = txn::ranges(said).nth(2);
        let line = first.map(|first| line(first, Vec::new(), 0, txn::seen(said), self.wall()));
        Ok(Joined::Refused(line.unwrap_or_default()))
    }
}

fn count(n: i64) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

/// A queue of the first and of those near an entry, which is the last of them; so many are ahead.
pub(crate) fn line(
    first: &RangeResponse,
    near: Vec<Entry>,
    ahead: i64,
    seen: u64,
    wall: u64,
) -> Snapshot {
    let mut entries: Vec<Entry> = first.kvs.iter().map(|kv| told(kv, wall)).collect();
    // The first was read with its value, those near perhaps without.
    let holder = entries.first().map(|e| e.token);
    entries.extend(near.into_iter().filter(|e| Some(e.token) != holder));
    let shown = i64::try_from(entries.len().saturating_sub(1)).unwrap_or(0);
    let ahead = ahead.max(shown);
    let (skipped, behind) = (count(ahead - shown), count(first.count - 1 - ahead));
    Snapshot { entries, skipped, behind, seen }
}

/// The queue of an entry that found it empty.
fn alone(ask: &Ask, spot: Spot, created: i64) -> Snapshot {
    let me = Entry {
        spot,
        token: token(created),
        tokens: ask.block,
        req: Some(ask.req),
        owner: Some(ask.owner.clone()),
        label: ask.label.clone(),
        mode: ask.mode,
        age: Duration::ZERO,
        left: Some(ask.ttl),
        lingering: false,
        revoked: false,
    };
    let seen = u64::try_from(created).unwrap_or(0);
    Snapshot { entries: vec![me], seen, ..Snapshot::default() }
}

fn ended(client: &Client) -> Error {
    Error::new(Kind::Store, "the lease ended while the request joined")
        .transient()
        .unknown()
        .store(&client.link.site)
        .with_hint("ask again; a longer TTL outlasts a slower cluster")
}

impl Store for Etcd {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(QueueDriver::new(self))
    }
}

impl QueueStore for Etcd {
    type Place = EtcdEntry;

    const LOCAL_BITS: u32 = LOCAL_BITS;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: &self.client.capability,
            site: &self.client.link.site,
            clock: self.client.clock(),
        }
    }

    fn ends_in_time(&self) -> bool {
        true
    }

    fn tells_of_waiters(&self) -> bool {
        self.client.watches.hear_joins()
    }

    fn token(&self, place: &EtcdEntry) -> Token {
        token(place.0.created)
    }

    fn proof(&self, place: &EtcdEntry) -> Option<Proof> {
        Some(Proof { key: place.0.key.to_string(), version: place.0.created })
    }

    async fn join(&self, ask: &Ask) -> Result<Joined<EtcdEntry>, Error> {
        for _ in 0..LEASES {
            // Without a lease nothing was sent of the request itself, unless it was sent before.
            let sent = self.client.entries.knows(&ask.req);
            let unsent = |e: Error| if sent { e } else { e.not_applied() };
            let session = self.client.session(ask.ttl).await.map_err(unsent)?;
            let turn = self.client.link.turn().await?;
            // In a box made only now: a crowd that waits for its turn must not carry the call's state.
            if let Some(joined) = Box::pin(self.enter(ask, session, turn)).await? {
                return Ok(joined);
            }
        }
        Err(ended(&self.client).not_applied())
    }

    async fn queue(&self, lock: &FullName, me: &EtcdEntry) -> Result<Snapshot, Error> {
        let (client, me) = (&self.client, &*me.0);
        // The entry just ahead has proven it while leaving.
        if let Some(line) = me.shown_queue() {
            self.looked(me, &line);
            return Ok(line);
        }
        let next = match me.is_next(|ahead| client.watches.was_rung(ahead)) {
            true => client.touch(&me.session).await?,
            false => None,
        };
        // A shared entry that has looked before knows which entry it waits for.
        let other = me.other();
        let txn = match (&next, &other) {
            (_, Some(other)) => {
                txn::look_past(lock, other.as_ref().map(|spot| keys::created(spot)), &me.key)
            }
            (Some(_), None) => txn::look_as_next(lock, &me.key, me.created),
            (None, None) => txn::look(lock, me.mode, me.created),
        };
        let said = client.link.call(&txn).await?.said;
        let line = match other {
            Some(_) => self.queue_past(&said, me),
            None => self.queue_of(&said, me.mode, me.created, me.ahead, None).unwrap_or_default(),
        };
        let first = self.looked(me, &line);
        if let Some(lease) = next.filter(|_| first && said.succeeded) {
            me.show(None, lease);
        }
        Ok(line)
    }

    async fn gone(&self, _lock: &FullName, watch: &[Spot], seen: u64) {
        self.client.watches.gone(watch, i64::try_from(seen).unwrap_or(i64::MAX - 1)).await;
    }

    async fn prove(&self, key: &Key, place: &EtcdEntry) -> Result<Proven, Error> {
        let client = &self.client;
        // By the very write that told it so.
        let shown = place.0.shown().filter(|lease| !lease.left(client.reading()).is_zero());
        if let Some(lease) = shown {
            return Ok(Proven::Mine(lease));
        }
        let Some(lease) = client.touch(&place.0.session).await? else {
            return Ok(Proven::Lost(LossReason::Disconnected));
        };
        let said = client.link.call(&txn::prove(&place.0.key, place.0.created)).await?.said;
        Ok(match renewal::waiters_behind(client, &key.req, &said) {
            Ok(_) => Proven::Mine(lease),
            Err(why) => Proven::Lost(why),
        })
    }

    async fn keep(&self, places: &[Keeping<EtcdEntry>]) -> Vec<Kept> {
        renewal::keep(&self.client, places).await
    }

    async fn linger(&self, key: &Key, place: &EtcdEntry, left: Duration) -> Result<bool, Error> {
        let (client, id) = (&self.client, random());
        let whole = Duration::from_secs(left.as_secs() + 1).max(client.capability.ttl_min);
        client.make_lease(id, whole).await?;
        let (entry_key, created) = (place.0.key.clone(), place.0.created);
        client.link.call(&txn::tie(&entry_key, created, id)).await?;
        let mine = client.let_go(&key.req);
        // The lease ends it even without us, some seconds late; as long as we live, in time.
        let (client, end) = (client.clone(), self.info().clock.now().plus(left));
        engine::spawn(async move {
            client.clock().sleep_until(end).await;
            if client.link.call(&txn::leave(&entry_key, created)).await.is_ok() {
                mine.inspect(OwnRequest::free_key);
                let _ = client.revoke(id).await;
            }
        });
        Ok(true)
    }

    async fn leave(&self, key: &Key, place: Option<&EtcdEntry>) -> Result<Released, Error> {
        leave::leave(&self.client, key, place).await
    }

    async fn queues(&self, query: &Query) -> Result<Vec<(FullName, Snapshot)>, Error> {
        inspect::queues(&self.client, query).await
    }

    async fn oust(&self, _lock: &FullName, entry: &Entry, how: Force) -> Result<Forced, Error> {
        let (link, created) = (&self.client.link, revision(entry.token));
        let key = keys::of_spot(&entry.spot);
        if how == Force::Now {
            let said = link.call(&txn::leave(key, created)).await?;
            let done = said.said.succeeded || said.doubt;
            return Ok(if done { Forced::Done } else { Forced::NoMatch });
        }
        loop {
            let said = link.call(&txn::read(key)).await?.said;
            let Some(kv) = txn::first_read(&said).filter(|kv| kv.create_revision == created) else {
                return Ok(Forced::NoMatch);
            };
            let Some(mut meta) = EntryValue::read(&kv.value) else {
                return Err(Error::new(Kind::Unsupported, "another kind of client holds it")
                    .store(&link.site)
                    .with_hint("it cannot be told to stop; --now takes the lock away at once"));
            };
            if meta.revoked {
                return Ok(Forced::Done);
            }
            meta.revoked = true;
            if link.call(&txn::mark(kv, key, meta.bytes())).await?.said.succeeded {
                return Ok(Forced::Done);
            }
        }
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.client.sink.set(sink);
    }

    async fn close(&self) {
        self.client.close().await;
    }
}
