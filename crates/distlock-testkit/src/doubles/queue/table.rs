//! The store's side of a line in memory: sessions, lines and watches, behind one mutex.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use distlock_core::backend::{Ask, Event, Key};
use distlock_core::lease::Wake;
use distlock_core::queue::{Entry, Snapshot, Spot, holders};
use distlock_core::{BootInstant, FullName, Label, LossReason, Mode, Owner, ReqId, Token};

/// The low bits of a token are for hand-over inside a process, as etcd's are.
pub(super) const LOCAL_BITS: u32 = 16;
/// How long a request that left is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A session, by its number.
pub(super) type SessionId = u64;

#[derive(Default)]
pub(super) struct Table {
    pub(super) locks: BTreeMap<FullName, Vec<Stored>>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    by_req: BTreeMap<ReqId, u64>,
    spent: BTreeMap<ReqId, BootInstant>,
    forgetting: VecDeque<(BootInstant, ReqId)>,
    /// Counts all changes.
    pub(super) revision: u64,
    /// What clients are to be told once the table is let go of.
    pub(super) news: Vec<(Spot, Wake)>,
    /// How many watches have fired.
    pub(super) wakes: u64,
    /// How many questions were served.
    pub(super) calls: u64,
}

/// What a client's entries are tied to.
pub(super) struct Session {
    pub(super) via: Spot,
    pub(super) ttl: Duration,
    pub(super) expires: BootInstant,
    pub(super) entries: BTreeSet<(FullName, u64)>,
}

/// One entry as the store has it.
pub(super) struct Stored {
    pub(super) revision: u64,
    pub(super) req: ReqId,
    owner: Owner,
    label: Label,
    mode: Mode,
    tokens: NonZeroU32,
    pub(super) session: SessionId,
    joined: BootInstant,
    pub(super) revoked: bool,
    watches: Vec<Weak<Notify>>,
}

impl Table {
    /// Ends the sessions whose time is over, with all their entries.
    pub(super) fn expire(&mut self, now: BootInstant) {
        let over = |s: &Session| s.expires <= now;
        while let Some((&id, _)) = self.sessions.iter().find(|(_, s)| over(s)) {
            self.end_session(id);
        }
        while self.forgetting.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, req)) = self.forgetting.pop_front() {
                self.spent.remove(&req);
            }
        }
    }

    pub(super) fn end_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for (lock, revision) in session.entries {
            if let Some(gone) = self.remove(&lock, revision) {
                let event = Event::Lost(Key { lock, req: gone.req }, LossReason::Disconnected);
                self.news.push((session.via.clone(), Wake::Event(event)));
            }
        }
    }

    pub(super) fn open_session(
        &mut self,
        via: &Spot,
        ttl: Duration,
        now: BootInstant,
    ) -> SessionId {
        self.revision += 1;
        let (via, expires) = (via.clone(), now.plus(ttl));
        let session = Session { via, ttl, expires, entries: BTreeSet::new() };
        self.sessions.insert(self.revision, session);
        self.revision
    }

    /// Prolongs a session; false when it has ended.
    pub(super) fn touch(&mut self, id: SessionId, now: BootInstant) -> bool {
        let session = self.sessions.get_mut(&id);
        session.map(|s| s.expires = now.plus(s.ttl)).is_some()
    }

    pub(super) fn is_spent(&self, req: &ReqId) -> bool {
        self.spent.contains_key(req)
    }

    pub(super) fn spend(&mut self, req: ReqId, now: BootInstant) {
        let until = now.plus(REMEMBERED);
        if self.spent.insert(req, until).is_none() {
            self.forgetting.push_back((until, req));
        }
    }

    /// Puts a request into line, or finds it there.
    pub(super) fn join(&mut self, ask: &Ask, session: SessionId, now: BootInstant) -> u64 {
        if let Some(revision) = self.by_req.get(&ask.req) {
            return *revision;
        }
        self.revision += 1;
        let revision = self.revision;
        self.by_req.insert(ask.req, revision);
        if let Some(s) = self.sessions.get_mut(&session) {
            s.entries.insert((ask.lock.clone(), revision));
        }
        self.locks.entry(ask.lock.clone()).or_default().push(Stored {
            revision,
            req: ask.req,
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            mode: ask.mode,
            tokens: ask.block,
            session,
            joined: now,
            revoked: false,
            watches: Vec::new(),
        });
        self.contended(&ask.lock, now);
        revision
    }

    /// The first who comes to wait is news to whoever holds.
    fn contended(&mut self, lock: &FullName, now: BootInstant) {
        let Some(entries) = self.locks.get(lock).filter(|e| e.len() == 2) else { return };
        let (holder, line) = (&entries[0], self.whole(lock, now));
        if holders(&line) == 1
            && let Some(session) = self.sessions.get(&holder.session)
        {
            let key = Key { lock: lock.clone(), req: holder.req };
            self.news.push((session.via.clone(), Wake::Event(Event::Contended(key))));
        }
    }

    pub(super) fn revision_of(&self, req: &ReqId) -> Option<u64> {
        self.by_req.get(req).copied()
    }

    pub(super) fn entry(&mut self, lock: &FullName, revision: u64) -> Option<&mut Stored> {
        let entries = self.locks.get_mut(lock)?;
        let at = entries.binary_search_by_key(&revision, |e| e.revision).ok()?;
        entries.get_mut(at)
    }

    /// Removes an entry, and wakes whoever watches it.
    pub(super) fn remove(&mut self, lock: &FullName, revision: u64) -> Option<Stored> {
        let entries = self.locks.get_mut(lock)?;
        let at = entries.binary_search_by_key(&revision, |e| e.revision).ok()?;
        let gone = entries.remove(at);
        if entries.is_empty() {
            self.locks.remove(lock);
        }
        self.revision += 1;
        self.by_req.remove(&gone.req);
        if let Some(session) = self.sessions.get_mut(&gone.session) {
            session.entries.remove(&(lock.clone(), revision));
        }
        for watch in gone.watches.iter().filter_map(Weak::upgrade) {
            self.wakes += 1;
            watch.notify_one();
        }
        Some(gone)
    }

    /// Watches entries. With it comes when the first of them could end by itself; `None` when one
    /// is gone already.
    pub(super) fn watch(
        &mut self,
        lock: &FullName,
        spots: &[Spot],
        bell: &Arc<Notify>,
    ) -> Option<BootInstant> {
        let mut end = BootInstant::FAR;
        for spot in spots {
            let session = {
                let entry = self.entry(lock, spot.parse().ok()?)?;
                entry.watches.retain(|w| w.strong_count() > 0);
                entry.watches.push(Arc::downgrade(bell));
                entry.session
            };
            end = end.min(self.sessions.get(&session)?.expires);
        }
        Some(end)
    }

    /// Fires every watch, as when connections are made anew.
    pub(super) fn lose_watches(&mut self) {
        for entry in self.locks.values_mut().flatten() {
            entry.watches.drain(..).filter_map(|w| w.upgrade()).for_each(|w| w.notify_one());
        }
    }

    fn told(&self, e: &Stored, now: BootInstant) -> Entry {
        Entry {
            spot: e.revision.to_string().into(),
            token: token(e.revision),
            tokens: e.tokens,
            req: Some(e.req),
            owner: Some(e.owner.clone()),
            label: e.label.clone(),
            mode: e.mode,
            age: now.since(e.joined),
            left: self.sessions.get(&e.session).map(|s| s.expires.since(now)),
            lingering: false,
            revoked: e.revoked,
        }
    }

    /// A whole line.
    pub(super) fn whole(&self, lock: &FullName, now: BootInstant) -> Snapshot {
        let entries = self.locks.get(lock).map(Vec::as_slice).unwrap_or_default();
        let entries = entries.iter().map(|e| self.told(e, now)).collect();
        Snapshot { entries, seen: self.revision, ..Snapshot::default() }
    }

    /// A line as far as it matters to one of its entries.
    pub(super) fn line(&self, lock: &FullName, me: u64, now: BootInstant) -> Snapshot {
        let entries = self.locks.get(lock).map(Vec::as_slice).unwrap_or_default();
        let Ok(at) = entries.binary_search_by_key(&me, |e| e.revision) else {
            return Snapshot { entries: Vec::new(), seen: self.revision, ..self.whole(lock, now) };
        };
        let (from, skipped) = match entries[at].mode {
            Mode::Exclusive if at > 2 => (at - 1, at - 2),
            _ => (1, 0),
        };
        let near = entries.get(from..=at).unwrap_or_default();
        let told = entries.iter().take(1).chain(near).map(|e| self.told(e, now));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Snapshot {
            entries: told.collect(),
            skipped: count(skipped),
            behind: count(entries.len() - 1 - at),
            seen: self.revision,
        }
    }
}

/// The token of an entry.
pub(super) fn token(revision: u64) -> Token {
    Token::new(revision << LOCAL_BITS).unwrap_or(Token::MAX)
}

/// The revision behind a token.
pub(super) fn revision(token: Token) -> u64 {
    token.get() >> LOCAL_BITS
}
