//! etcd as a store of the line family.
//!
//! 1. Join: one transaction puts the request on a seat of the client's lease, unless it sits there or
//!    has a tombstone, and reads the line if it was not empty. First by create revision holds.
//! 2. Who waits watches the key just ahead, from the revision it read; an entry of the same client
//!    tells of its end by itself.
//! 3. Proof: a transaction with a write in it, which only passes while the key has the create
//!    revision it was made with. It follows a keep-alive of the lease, never goes beside it.
//! 4. Renewal: one keep-alive a lease, then one such transaction for all that is held.
//! 5. Leave: delete, and prove the next in line by the same write if it is of this client. A join
//!    without an answer leaves with a tombstone on the same lease, so that it cannot arrive later.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Force, Forced, Kept, Key, Released};
use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::EventSink;
use distlock_core::queue::{Entry, Joined, Keeping, Line, Proven, QueueDriver, QueueStore, Spot};
use distlock_core::{
    Clock, Error, FullName, Kind, LossReason, Mode, Outcome, Proof, Store, Token, engine,
};

use crate::client::Client;
use crate::entries::Mine;
use crate::entry_value::{Meta, revision, token, told};
use crate::own_entry::{EtcdEntry, Place};
use crate::session::{Session, random};
use crate::txn::Known;
use crate::wire::calls::{Answer, Turn};
use crate::wire::errors::Fault;
use crate::wire::proto::{KeyValue, RangeResponse, TxnResponse};
use crate::{inspect, keys, release, renewal, txn};

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

    /// An entry that is there: from now on it is watched, unless it is given back soon.
    fn place(&self, ask: &Ask, place: Place, alone: bool) -> EtcdEntry {
        self.client.watches.own(&place.spot, ask.req, place.created, alone);
        let place = Arc::new(place);
        self.client.entries.seat(&ask.req, &place);
        EtcdEntry(place)
    }

    /// The line as far as it was read for an entry; `ahead` at most are ahead of it. `None` when it
    /// is not enough to tell: who was known of has left, and others may be ahead of that one.
    fn line_of(
        &self,
        said: &TxnResponse,
        mode: Mode,
        me: i64,
        ahead: i64,
        known: Option<&Known>,
    ) -> Option<Line> {
        let wall = self.wall();
        let mut ranges = txn::ranges(said);
        let (Some(first), Some(near)) = (ranges.next(), ranges.next()) else {
            return Some(Line { seen: seen(said), ..Line::default() });
        };
        let most = match mode {
            Mode::Exclusive => 2,
            Mode::Permit(_) | Mode::Shared => usize::MAX,
        };
        let all = |kvs: &[KeyValue]| kvs.iter().map(|kv| told(kv, wall)).collect::<Vec<_>>();
        if near.kvs.first().is_none_or(|kv| kv.create_revision != me) {
            let behind = count(first.count - 1);
            return Some(Line { entries: all(&first.kvs), behind, seen: seen(said), skipped: 0 });
        }
        let mut entries = all(&near.kvs[..near.kvs.len().min(most)]);
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
        Some(line(first, entries, ahead, seen(said), wall))
    }

    /// The line for a shared entry that knows the last ahead of it that is not.
    fn line_past(&self, said: &TxnResponse, me: &Place) -> Line {
        let wall = self.wall();
        let mut ranges = txn::ranges(said);
        let (Some(first), Some(own)) = (ranges.next(), ranges.next()) else {
            return Line { seen: seen(said), ..Line::default() };
        };
        let upto = ranges.next().map_or(&[][..], |r| &r.kvs);
        let mut entries: Vec<_> = upto.iter().rev().map(|kv| told(kv, wall)).collect();
        let own = own.kvs.first().filter(|kv| kv.create_revision == me.created);
        let Some(own) = own else {
            return Line { entries, seen: seen(said), ..Line::default() };
        };
        entries.push(told(own, wall));
        line(first, entries, me.ahead.min(first.count - 1), seen(said), wall)
    }

    /// The line was read for an entry; whether it is the first.
    fn looked(&self, me: &Place, line: &Line) -> bool {
        me.saw(line);
        let (mine, seen) = (token(me.created), i64::try_from(line.seen).unwrap_or(i64::MAX - 1));
        let first = line.entries.first().is_some_and(|e| e.token == mine && !e.revoked);
        if first && line.waiting_behind(mine) == 0 {
            self.client.watches.alone(&me.spot, seen);
        }
        first
    }

    /// One attempt to join; `None` when the lease had ended before, or the seat was taken.
    async fn enter(
        &self,
        ask: &Ask,
        session: Arc<Session>,
        turn: Turn<'_>,
    ) -> Result<Option<Joined<EtcdEntry>>, Error> {
        let client = &self.client;
        let Some((seat, session)) = client.entries.begin(&ask.key(), &session) else {
            return Ok(Some(Joined::Tombstoned));
        };
        // From here on it may arrive, and whoever drops this must be able to undo it.
        let others = client.entries.in_line(&ask.lock);
        let value = Meta::of(ask, self.wall()).bytes();
        let known = client.entries.known(&ask.lock).filter(|_| ask.mode == Mode::Shared);
        let txn = txn::join(ask, &seat, value, session.id, others, known.as_ref());
        // Among others of one line there is nothing to gain by going together.
        let answer = match others {
            true => client.link.txn_in_turn(&txn).await,
            false => client.together.write(&ask.lock, txn).await,
        };
        drop(turn);
        match answer {
            Ok(a) => self.joined(ask, &session, seat, a, known.as_ref()).await,
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

    /// What the answer to a join means; `None` when somebody else sits there.
    async fn joined(
        &self,
        ask: &Ask,
        session: &Arc<Session>,
        seat: Arc<str>,
        answer: Answer<TxnResponse>,
        known: Option<&Known>,
    ) -> Result<Option<Joined<EtcdEntry>>, Error> {
        let (client, doubt, said) = (&self.client, answer.doubt, txn::joined(answer.said));
        if doubt {
            client.entries.in_doubt(&ask.req);
        }
        let now = said.header.map_or(0, |h| h.revision);
        let found = match said.succeeded {
            true => None,
            false => {
                let mut ranges = txn::ranges(&said);
                let (mine, tombstone) = (ranges.next(), ranges.next());
                if tombstone.is_some_and(|r| !r.kvs.is_empty()) {
                    client.forget(&ask.req);
                    return Ok(Some(Joined::Tombstoned));
                }
                let Some(kv) = mine.and_then(|r| r.kvs.first()) else {
                    return self.refused(ask, session, &seat, &said).await.map(Some);
                };
                // One that was to be gone by now, and lingers.
                if Meta::read(&kv.value).is_none_or(|m| m.req != ask.req) {
                    client.entries.reseat(&ask.req);
                    return Ok(None);
                }
                Some(kv.clone())
            }
        };
        let Some(doubt) = client.entries.joined(&ask.req, doubt) else {
            return Ok(Some(Joined::Tombstoned));
        };
        let Some(kv) = found else {
            let count = txn::ranges(&said).next().map(|r| r.count);
            let ahead = count.map_or(0, |n| n - 1);
            let line = match count {
                Some(_) => self.line_of(&said, ask.mode, now, ahead, known),
                None => Some(alone(ask, keys::spot(&seat, now), now)),
            };
            let lease = client.lease(session).ok_or_else(|| ended(client))?;
            let place = Place::new(seat, now, session.clone(), ask.mode, ahead, doubt);
            line.iter().for_each(|line| place.saw(line));
            let place = self.place(ask, place, ahead == 0);
            let line = match line {
                Some(line) => line,
                None => self.line(&ask.lock, &place).await?,
            };
            client.entries.looked(&ask.lock, &place.0);
            return Ok(Some(Joined::In { place, line, lease }));
        };
        // An earlier attempt of the same request.
        let lease = client.lease(session).ok_or_else(|| ended(client))?;
        let (created, session) = (kv.create_revision, session.clone());
        let place = Place::new(seat, created, session, ask.mode, i64::MAX, doubt);
        let place = self.place(ask, place, false);
        let line = self.line(&ask.lock, &place).await?;
        Ok(Some(Joined::In { place, line, lease }))
    }

    /// The line as one sees it who is not in it, and never will be.
    async fn refused(
        &self,
        ask: &Ask,
        session: &Arc<Session>,
        seat: &str,
        said: &TxnResponse,
    ) -> Result<Joined<EtcdEntry>, Error> {
        let client = &self.client;
        if client.entries.get(&ask.req).is_some_and(|m| m.doubt) {
            // An earlier attempt may still find the line empty.
            release::bury(client, &ask.key(), seat, session).await?;
        }
        client.forget(&ask.req);
        let seen = said.header.map_or(0, |h| u64::try_from(h.revision).unwrap_or(0));
        let Some(first) = txn::ranges(said).nth(2) else {
            return Ok(Joined::Refused(Line::default()));
        };
        let entries: Vec<_> = first.kvs.iter().map(|kv| told(kv, self.wall())).collect();
        let behind = first.count - i64::try_from(entries.len()).unwrap_or(0);
        let behind = u32::try_from(behind.max(0)).unwrap_or(u32::MAX);
        Ok(Joined::Refused(Line { entries, behind, seen, skipped: 0 }))
    }
}

fn seen(said: &TxnResponse) -> u64 {
    said.header.map_or(0, |h| u64::try_from(h.revision).unwrap_or(0))
}

fn count(n: i64) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

/// A line of the first and of those near an entry, which is the last of them; so many are ahead.
fn line(first: &RangeResponse, near: Vec<Entry>, ahead: i64, seen: u64, wall: u64) -> Line {
    let mut entries: Vec<Entry> = first.kvs.iter().map(|kv| told(kv, wall)).collect();
    // The first was read with its value, those near perhaps without.
    let holder = entries.first().map(|e| e.token);
    entries.extend(near.into_iter().filter(|e| Some(e.token) != holder));
    let shown = i64::try_from(entries.len()).unwrap_or(1) - 1;
    let ahead = ahead.max(shown);
    let (skipped, behind) = (count(ahead - shown), count(first.count - 1 - ahead));
    Line { entries, skipped, behind, seen }
}

/// The line that one has joined who found it empty.
fn alone(ask: &Ask, spot: Spot, created: i64) -> Line {
    let me = Entry {
        spot,
        token: token(created),
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
    Line { entries: vec![me], seen, ..Line::default() }
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

    fn capability(&self) -> &Capability {
        &self.client.capability
    }

    fn site(&self) -> &str {
        &self.client.link.site
    }

    fn clock(&self) -> &Clock {
        self.client.clock()
    }

    fn ends_in_time(&self) -> bool {
        true
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
            let (session, _) = self.client.session(ask.ttl).await.map_err(unsent)?;
            let turn = self.client.link.turn().await?;
            // In a box made only now: a crowd that waits for its turn must not carry the call's state.
            if let Some(joined) = Box::pin(self.enter(ask, session, turn)).await? {
                return Ok(joined);
            }
        }
        Err(ended(&self.client).not_applied())
    }

    async fn line(&self, lock: &FullName, me: &EtcdEntry) -> Result<Line, Error> {
        let (client, me) = (&self.client, &*me.0);
        // Who left just ahead of it has seen to it already.
        if let Some(line) = me.shown_line() {
            self.looked(me, &line);
            return Ok(line);
        }
        let next = match me.is_next(|ahead| client.watches.was_rung(ahead)) {
            true => client.touch(&me.session).await?,
            false => None,
        };
        // Who is shared and has looked before knows whom it waits for.
        let other = me.other();
        let txn = match (&next, &other) {
            (_, Some(other)) => {
                txn::look_past(lock, other.as_ref().map(|spot| keys::created(spot)), &me.key)
            }
            (Some(_), None) => txn::look_as_next(lock, &me.key, me.created),
            (None, None) => txn::look(lock, me.mode, me.created),
        };
        let said = client.link.txn(&txn).await?.said;
        let line = match other {
            Some(_) => self.line_past(&said, me),
            None => self.line_of(&said, me.mode, me.created, me.ahead, None).unwrap_or_default(),
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
        let shown = place.0.shown().filter(|lease| !lease.left(client.moment()).is_zero());
        if let Some(lease) = shown {
            return Ok(Proven::Mine(lease));
        }
        let Some(lease) = client.touch(&place.0.session).await? else {
            return Ok(Proven::Lost(LossReason::Disconnected));
        };
        let said = client.link.txn(&txn::prove(&place.0.key, place.0.created)).await?.said;
        if !said.succeeded {
            client.forget(&key.req);
            return Ok(Proven::Lost(LossReason::Gone));
        }
        let kv = txn::ranges(&said).next().and_then(|r| r.kvs.first());
        if kv.and_then(|kv| Meta::read(&kv.value)).is_some_and(|m| m.revoked) {
            return Ok(Proven::Lost(LossReason::Revoked));
        }
        Ok(Proven::Mine(lease))
    }

    async fn keep(&self, places: &[Keeping<EtcdEntry>]) -> Vec<Kept> {
        renewal::keep(&self.client, places).await
    }

    async fn linger(&self, key: &Key, place: &EtcdEntry, left: Duration) -> Result<bool, Error> {
        let (client, id) = (&self.client, random());
        let whole = Duration::from_secs(left.as_secs() + 1).max(client.capability.ttl_min);
        client.make_lease(id, whole).await?;
        let (seat, created) = (place.0.key.clone(), place.0.created);
        client.link.txn(&txn::tie(&seat, created, id)).await?;
        let mine = client.let_go(&key.req);
        // The lease ends it even without us, some seconds late; as long as we live, in time.
        let (client, end) = (client.clone(), self.clock().now().plus(left));
        engine::spawn(async move {
            client.clock().sleep_until(end).await;
            if client.link.txn(&txn::leave(&seat, created)).await.is_ok() {
                mine.inspect(Mine::vacate);
                let _ = client.revoke(id).await;
            }
        });
        Ok(true)
    }

    async fn leave(&self, key: &Key, place: Option<&EtcdEntry>) -> Result<Released, Error> {
        release::leave(&self.client, key, place).await
    }

    async fn lines(&self, query: &Query) -> Result<Vec<(FullName, Line)>, Error> {
        inspect::lines(&self.client, query).await
    }

    async fn oust(&self, _lock: &FullName, entry: &Entry, how: Force) -> Result<Forced, Error> {
        let (link, created) = (&self.client.link, revision(entry.token));
        let key = keys::of_spot(&entry.spot);
        if how == Force::Now {
            let said = link.txn(&txn::leave(key, created)).await?;
            return Ok(if said.said.succeeded || said.doubt {
                Forced::Done
            } else {
                Forced::NoMatch
            });
        }
        loop {
            let said = link.txn(&txn::read(key)).await?.said;
            let kv = txn::ranges(&said).next().and_then(|r| r.kvs.first());
            let Some(kv) = kv.filter(|kv| kv.create_revision == created) else {
                return Ok(Forced::NoMatch);
            };
            let Some(mut meta) = Meta::read(&kv.value) else {
                return Err(Error::new(Kind::Unsupported, "another kind of client holds it")
                    .store(&link.site)
                    .with_hint("it cannot be told to stop; --now takes the lock away at once"));
            };
            if meta.revoked {
                return Ok(Forced::Done);
            }
            meta.revoked = true;
            if link.txn(&txn::mark(kv, key, meta.bytes())).await?.said.succeeded {
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
