//! Reading lines.
//!
//! Every waiter needs the first entry, to name the holder, and those it must watch: an exclusive
//! request the one just ahead, a shared one the nearest of another mode, one of n permits the n
//! just ahead. So few are read, however long the queue is; the mode of each is in its name. An
//! entry that left since the names were read is simply not in the queue any more.
//!
//! To find those the names of all are read. A waiter far back that looks again on its slow timer
//! does so only now and then, and else asks whether the one ahead is still there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::queue::{Entry, Proven, Snapshot, Spot};
use distlock_core::{BootInstant, Error, FullName, Key, Label, Mode};
use futures_util::future::Either;
use zookeeper_client::{Client, Error as Zk, MultiReadResult, Stat};

use crate::join::token;
use crate::node_names::{self, Child};
use crate::own_entry::OwnEntry;
use crate::record::{Record, one};
use crate::session::Session;
use crate::store::Shared;

/// A long queue as it was seen last.
#[derive(Clone)]
pub(crate) struct Seen {
    first: Spot,
    ahead: Spot,
    skipped: u32,
    behind: u32,
    at: BootInstant,
}

/// The names in a queue, as one session read them.
pub(crate) struct Listing {
    parent: String,
    session: i64,
    sent: BootInstant,
    children: Arc<Vec<Child>>,
}

/// Max reads under way at once when whole queues are read.
pub(crate) const AT_ONCE: usize = 64;
/// Waiters of one client beyond this many in one queue read it together.
const CROWD: usize = 16;
/// A queue is taken to be as it was seen for this long, for each name in it that does not matter.
const A_NAME: Duration = Duration::from_millis(200);

impl Shared {
    /// The queue, as far as it matters to one of its entries.
    pub(crate) async fn known_queue(
        &self,
        client: &Client,
        lock: &FullName,
        me: &OwnEntry,
    ) -> Result<Snapshot, Zk> {
        if let Some(line) = self.glance(client, me).await? {
            return Ok(line);
        }
        self.read_names(client, lock, me).await
    }

    /// The queue, by the names of all in it.
    async fn read_names(
        &self,
        client: &Client,
        lock: &FullName,
        me: &OwnEntry,
    ) -> Result<Snapshot, Zk> {
        let children = match me.0.session.count_in(lock) > CROWD {
            true => self.list_together(client, me).await,
            false => list(client, me.parent()).await.map(Arc::new),
        };
        match children {
            Ok(children) => self.queue_by_names(client, me, &children).await,
            Err(Zk::NoNode) => Ok(Snapshot::default()),
            Err(e) => Err(e),
        }
    }

    /// The names in a long queue, read once for all waiters of this client: each must be told of the
    /// line as it was when it asked, or later.
    async fn list_together(&self, client: &Client, me: &OwnEntry) -> Result<Arc<Vec<Child>>, Zk> {
        let asked = self.clock.now();
        let mut last = self.listing.lock().await;
        let (parent, session) = (me.parent(), me.0.session.id);
        if let Some(last) = last.as_ref()
            && last.sent >= asked
            && last.parent == parent
            && last.session == session
        {
            return Ok(last.children.clone());
        }
        let sent = self.clock.now();
        let children = Arc::new(list(client, parent).await?);
        let parent = parent.to_owned();
        *last = Some(Listing { parent, session, sent, children: children.clone() });
        Ok(children)
    }

    /// The queue as it was seen last, if that is not too long ago for its length and the waiters that
    /// matter are still there.
    async fn glance(&self, client: &Client, me: &OwnEntry) -> Result<Option<Snapshot>, Zk> {
        let Some(seen) = me.seen() else { return Ok(None) };
        if self.clock.now().since(seen.at) >= A_NAME * seen.skipped {
            return Ok(None);
        }
        let (Some(first), Some(ahead)) =
            (node_names::child(&seen.first), node_names::child(&seen.ahead))
        else {
            return Ok(None);
        };
        let mut all = client.new_multi_reader();
        for name in [&first.name, &ahead.name] {
            all.add_get_data(&format!("{}/{name}", me.parent()))?;
        }
        all.add_get_data(&me.0.path)?;
        let mut entries = Vec::with_capacity(3);
        let told = all.commit().await?;
        for (child, told) in [&first, &ahead].into_iter().zip(&told) {
            let MultiReadResult::Data { data, stat } = told else { return Ok(None) };
            entries.extend(self.entry(child, data, stat));
        }
        if entries.len() < 2 || !matches!(told.get(2), Some(MultiReadResult::Data { .. })) {
            return Ok(None);
        }
        entries.push(self.own(me));
        Ok(Some(Snapshot { entries, skipped: seen.skipped, behind: seen.behind, seen: 0 }))
    }

    /// The queue as an entry of ours was called up in it, with the proof of its place: asked for both
    /// at once, unless the entry that left has proved it with that.
    pub(crate) async fn queue_and_proof(
        &self,
        key: &Key,
        me: &OwnEntry,
    ) -> Result<(Snapshot, Option<Proven>), Error> {
        let session = &me.0.session;
        if self.in_time(session, async { Ok(me.is_called().await) }).await == Ok(true) {
            let lease = session.lease();
            me.hold(&lease);
            let behind = session.count_in(&key.lock).saturating_sub(1);
            let behind = u32::try_from(behind).unwrap_or(u32::MAX);
            return Ok((Snapshot { behind, ..self.alone(me) }, Some(Proven::Mine(lease))));
        }
        let (line, proven) = tokio::join!(self.fresh_queue(&key.lock, me), self.prove(key, me));
        Ok((line?, proven.ok()))
    }

    async fn fresh_queue(&self, lock: &FullName, me: &OwnEntry) -> Result<Snapshot, Error> {
        let Ok(client) = me.0.session.client() else { return Ok(Snapshot::default()) };
        self.told(me, self.read_names(&client, lock, me)).await
    }

    /// The queue, as far as it matters to one of its entries.
    pub(crate) async fn queue(&self, lock: &FullName, me: &OwnEntry) -> Result<Snapshot, Error> {
        // Over: it stands in no line any more.
        let Ok(client) = me.0.session.client() else { return Ok(Snapshot::default()) };
        self.told(me, self.known_queue(&client, lock, me)).await
    }

    async fn told(
        &self,
        me: &OwnEntry,
        line: impl Future<Output = Result<Snapshot, Zk>>,
    ) -> Result<Snapshot, Error> {
        let session = &me.0.session;
        self.in_time(session, line).await.or_else(|e| {
            let e = session.failed(e);
            if session.is_over() { Ok(Snapshot::default()) } else { Err(e) }
        })
    }

    /// A queue in which only this entry is ahead.
    pub(crate) fn alone(&self, me: &OwnEntry) -> Snapshot {
        Snapshot { entries: vec![self.own(me)], ..Snapshot::default() }
    }

    async fn queue_by_names(
        &self,
        client: &Client,
        me: &OwnEntry,
        line: &[Child],
    ) -> Result<Snapshot, Zk> {
        let Some(at) = line.iter().position(|c| c.name == me.name()) else {
            return Ok(Snapshot::default());
        };
        if me.0.session.all_seated(line[..at].iter().map(|c| c.name.as_str())) {
            me.clear();
        }
        let mut ahead: Vec<&Child> = line[..at].iter().collect();
        let mut known: HashMap<&str, Entry> = HashMap::new();
        let mut spare = 0;
        let matter = loop {
            let matter = who_matters(&ahead, me.0.mode, 0);
            if matter.iter().all(|i| known.contains_key(ahead[*i].name.as_str())) {
                break matter;
            }
            // More each time: where many leave, the next that has not is soon found.
            let ask: Vec<&Child> = who_matters(&ahead, me.0.mode, spare)
                .into_iter()
                .map(|i| ahead[i])
                .filter(|c| !known.contains_key(c.name.as_str()))
                .collect();
            let found = self.read(client, me.parent(), &ask, Some(&me.0.session)).await?;
            let mut gone = HashSet::new();
            for (child, entry) in ask.into_iter().zip(found) {
                match entry {
                    Some(entry) => drop(known.insert(&child.name, entry)),
                    None => drop(gone.insert(child.name.as_str())),
                }
            }
            ahead.retain(|c| !gone.contains(c.name.as_str()));
            spare = spare * 2 + 1;
        };
        let told = matter.iter().filter_map(|i| known.remove(ahead[*i].name.as_str()));
        let entries: Vec<Entry> = told.chain([self.own(me)]).collect();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let skipped = count(ahead.len() + 1 - entries.len());
        let line = Snapshot { entries, skipped, behind: count(line.len() - 1 - at), seen: 0 };
        if let ([first, ahead, _], 1.., Mode::Exclusive) =
            (line.entries.as_slice(), skipped, me.0.mode)
        {
            let (first, ahead) = (first.spot.clone(), ahead.spot.clone());
            let (behind, at) = (line.behind, self.clock.now());
            me.saw(Seen { first, ahead, skipped, behind, at });
        }
        Ok(line)
    }

    /// One's own entry: what is in it is known.
    fn own(&self, me: &OwnEntry) -> Entry {
        Entry {
            spot: me.name().into(),
            token: me.0.token,
            tokens: me.0.tokens,
            req: node_names::request(me.name()),
            owner: Some(me.0.owner.clone()),
            label: me.0.label.clone(),
            mode: me.0.mode,
            age: self.clock.now().since(me.0.made),
            left: Some(me.0.session.ttl),
            lingering: false,
            revoked: false,
        }
    }

    /// Entries by their names, asked for all at once; `None` for what is gone. What is in those of
    /// this session, if one is named, is known.
    pub(crate) async fn read(
        &self,
        client: &Client,
        parent: &str,
        children: &[&Child],
        session: Option<&Session>,
    ) -> Result<Vec<Option<Entry>>, Zk> {
        let mut entries = Vec::with_capacity(children.len());
        let ask = |child: &&Child| match session.and_then(|s| s.seated(&child.name)) {
            Some(place) => Either::Left(place),
            None => Either::Right(client.get_data(&format!("{parent}/{}", child.name))),
        };
        for some in children.chunks(AT_ONCE) {
            let asked: Vec<_> = some.iter().map(ask).collect();
            for (child, answer) in some.iter().zip(asked) {
                let answer = match answer {
                    Either::Left(place) => {
                        entries.push(Some(self.own(&place)));
                        continue;
                    }
                    Either::Right(answer) => answer.await,
                };
                match answer {
                    Ok((data, stat)) => entries.push(self.entry(child, &data, &stat)),
                    Err(Zk::NoNode) => entries.push(None),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(entries)
    }

    fn entry(&self, child: &Child, data: &[u8], stat: &Stat) -> Option<Entry> {
        let record = Record::read(data);
        let now = Duration::from_micros(self.clock.wall_micros());
        let made = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
        let unnamed = || Label::new("another kind of client");
        Some(Entry {
            spot: child.name.as_str().into(),
            token: token(stat.czxid).ok()?,
            tokens: record.as_ref().map_or_else(one, |r| r.tokens),
            req: record.as_ref().map(|r| r.req),
            owner: record.as_ref().map(|r| r.owner.clone()),
            label: record.as_ref().map_or_else(unnamed, |r| r.label.clone()),
            mode: child.mode,
            age: now.saturating_sub(made),
            left: record.as_ref().map(Record::ttl),
            lingering: false,
            revoked: record.is_some_and(|r| r.revoked),
        })
    }

    /// Completes when one of these is gone, or when that cannot be told.
    pub(crate) async fn gone(&self, lock: &FullName, watch: &[Spot]) {
        let parent = self.parent(lock);
        let Some(client) = self.pool.any().and_then(|s| s.client().ok()) else { return };
        let mut watchers = Vec::with_capacity(watch.len());
        for spot in watch {
            match client.get_and_watch_data(&format!("{parent}/{spot}")).await {
                Ok((_, _, watcher)) => watchers.push(watcher),
                Err(_) => return,
            }
        }
        drop((parent, client));
        match watchers.len() {
            0 => std::future::pending().await,
            1 => drop(watchers.remove(0).changed().await),
            _ => {
                let all = watchers.into_iter().map(|w| Box::pin(w.changed()));
                drop(futures_util::future::select_all(all).await);
            }
        }
    }
}

/// The names in a queue, in order.
async fn list(client: &Client, parent: &str) -> Result<Vec<Child>, Zk> {
    client.list_children(parent).await.map(|children| node_names::in_order(&children))
}

/// The entries that matter to one that has these ahead, in the order of the queue, and so many more
/// of the same kinds as there are to spare.
fn who_matters(ahead: &[&Child], mode: Mode, spare: usize) -> Vec<usize> {
    let most = match mode {
        Mode::Exclusive | Mode::Shared => 1,
        Mode::Permit(n) => usize::try_from(n.get()).unwrap_or(usize::MAX),
    };
    let near = (0..ahead.len()).rev();
    let near = near.filter(|i| mode != Mode::Shared || ahead[*i].mode != Mode::Shared);
    let first = 0..ahead.len().min(1 + spare);
    let all: BTreeSet<usize> = first.chain(near.take(most.saturating_add(spare))).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn few_matter_however_long_the_line_is() {
        let child = |sequence: i32, mode| Child { name: sequence.to_string(), sequence, mode };
        let readers: Vec<Child> = (0..1000).map(|i| child(i, Mode::Shared)).collect();
        let mut line: Vec<&Child> = readers.iter().collect();
        assert_eq!(who_matters(&line, Mode::Exclusive, 0), [0, 999]);
        assert_eq!(who_matters(&line, Mode::Shared, 0), [0]);
        let three = Mode::Permit(NonZeroU32::new(3).unwrap());
        assert_eq!(who_matters(&line, three, 0), [0, 997, 998, 999]);
        let writers = [child(10, Mode::Exclusive), child(20, Mode::Exclusive)];
        (line[10], line[20]) = (&writers[0], &writers[1]);
        assert_eq!(who_matters(&line, Mode::Shared, 0), [0, 20]);
        assert_eq!(who_matters(&line, Mode::Shared, 1), [0, 1, 10, 20]);
        assert!(who_matters(&[], three, 5).is_empty());
    }
}
