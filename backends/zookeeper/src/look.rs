//! Reading lines.
//!
//! An exclusive request needs the first in line, to say who holds, and the one just ahead, to watch:
//! two small reads, however long the line is. Others read all who are ahead.
//!
//! To find those two the names of all are read. Who waits far back and looks again on its slow timer
//! does so only now and then, and else asks whether the one ahead is still there.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::line::{Entry, Line, Proven, Spot};
use distlock_core::seam::Key;
use distlock_core::{BootInstant, Error, FullName, Label, Mode};
use futures_util::future::Either;
use zookeeper_client::{Client, Error as Zk, MultiReadResult, Stat};

use crate::join::token;
use crate::names::{self, Child};
use crate::place::Place;
use crate::record::Record;
use crate::session::Session;
use crate::store::Shared;

/// A long line as it was seen last.
#[derive(Clone)]
pub(crate) struct Seen {
    first: Spot,
    ahead: Spot,
    skipped: u32,
    behind: u32,
    at: BootInstant,
}

/// The names in a line, as one session read them.
pub(crate) struct Listing {
    parent: String,
    session: i64,
    sent: BootInstant,
    children: Arc<Vec<Child>>,
}

/// So many questions are under way at once when whole lines are read.
pub(crate) const AT_ONCE: usize = 64;
/// More than so many of one client in a line read it together.
const CROWD: usize = 16;
/// For so long a line is taken to be as it was seen, for each name in it that does not matter.
const A_NAME: Duration = Duration::from_millis(200);
/// So often a line is read again that changes while it is read.
const TRIES: usize = 16;

impl Shared {
    /// The line, as far as it matters to one of its entries.
    pub(crate) async fn line_of(
        &self,
        client: &Client,
        lock: &FullName,
        me: &Place,
    ) -> Result<Line, Zk> {
        if let Some(line) = self.glance(client, me).await? {
            return Ok(line);
        }
        self.read_names(client, lock, me).await
    }

    /// The line, by the names of all in it.
    async fn read_names(&self, client: &Client, lock: &FullName, me: &Place) -> Result<Line, Zk> {
        let crowd = me.session().crowd(lock);
        for _ in 0..TRIES {
            let children = match crowd > CROWD {
                true => self.list_together(client, me).await,
                false => list(client, me.parent()).await.map(Arc::new),
            };
            let children = match children {
                Ok(children) => children,
                Err(Zk::NoNode) => return Ok(Line::default()),
                Err(e) => return Err(e),
            };
            if let Some(line) = self.read_line(client, me, &children).await? {
                return Ok(line);
            }
        }
        Err(Zk::Throttled)
    }

    /// The names in a long line, read once for all who wait in it here: each must be told of the
    /// line as it was when it asked, or later.
    async fn list_together(&self, client: &Client, me: &Place) -> Result<Arc<Vec<Child>>, Zk> {
        let asked = self.clock.now();
        let mut last = self.listing.lock().await;
        let (parent, session) = (me.parent(), me.session().id());
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

    /// The line as it was seen last, if that is not too long ago for its length and those who
    /// matter are still there.
    async fn glance(&self, client: &Client, me: &Place) -> Result<Option<Line>, Zk> {
        let Some(seen) = me.seen() else { return Ok(None) };
        if self.clock.now().since(seen.at) >= A_NAME * seen.skipped {
            return Ok(None);
        }
        let (Some(first), Some(ahead)) = (names::child(&seen.first), names::child(&seen.ahead))
        else {
            return Ok(None);
        };
        let mut all = client.new_multi_reader();
        for name in [&first.name, &ahead.name] {
            all.add_get_data(&format!("{}/{name}", me.parent()))?;
        }
        all.add_get_data(me.path())?;
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
        Ok(Some(Line { entries, skipped: seen.skipped, behind: seen.behind, seen: 0 }))
    }

    /// The line as an entry of ours was called up in it, with the proof of its place: asked for both
    /// at once, unless who left has proved it with that.
    pub(crate) async fn line_up(
        &self,
        key: &Key,
        me: &Place,
    ) -> Result<(Line, Option<Proven>), Error> {
        let session = me.session();
        if self.in_time(session, async { Ok(me.is_called().await) }).await == Ok(true) {
            let lease = session.lease();
            me.hold(&lease);
            let behind = session.crowd(&key.lock).saturating_sub(1);
            let behind = u32::try_from(behind).unwrap_or(u32::MAX);
            return Ok((Line { behind, ..self.alone(me) }, Some(Proven::Mine(lease))));
        }
        let (line, proven) = tokio::join!(self.line_now(&key.lock, me), self.prove(key, me));
        Ok((line?, proven.ok()))
    }

    async fn line_now(&self, lock: &FullName, me: &Place) -> Result<Line, Error> {
        let Ok(client) = me.session().client() else { return Ok(Line::default()) };
        self.told(me, self.read_names(&client, lock, me)).await
    }

    /// The line, as far as it matters to one of its entries.
    pub(crate) async fn line(&self, lock: &FullName, me: &Place) -> Result<Line, Error> {
        // Over: it stands in no line any more.
        let Ok(client) = me.session().client() else { return Ok(Line::default()) };
        self.told(me, self.line_of(&client, lock, me)).await
    }

    async fn told(
        &self,
        me: &Place,
        line: impl Future<Output = Result<Line, Zk>>,
    ) -> Result<Line, Error> {
        let session = me.session();
        match self.in_time(session, line).await {
            Ok(line) => Ok(line),
            Err(e) => {
                let e = session.failed(e);
                if session.is_over() { Ok(Line::default()) } else { Err(e) }
            }
        }
    }

    /// A line of which nobody but this one is ahead.
    pub(crate) fn alone(&self, me: &Place) -> Line {
        Line { entries: vec![self.own(me)], ..Line::default() }
    }

    /// `None` when one of those who matter has left meanwhile.
    async fn read_line(
        &self,
        client: &Client,
        me: &Place,
        line: &[Child],
    ) -> Result<Option<Line>, Zk> {
        let Some(at) = line.iter().position(|c| c.name == me.name()) else {
            return Ok(Some(Line::default()));
        };
        if me.session().all_seated(line[..at].iter().map(|c| c.name.as_str())) {
            me.clear();
        }
        let exclusive = line[at].mode == Mode::Exclusive;
        // What an exclusive request does not need, it does not ask for.
        let (from, skipped) = if exclusive && at > 2 { (at - 1, at - 2) } else { (1, 0) };
        let near = line.get(from..at).unwrap_or_default();
        let ahead: Vec<&Child> = line.iter().take(at.min(1)).chain(near).collect();
        let mut entries = self.read(client, me.parent(), &ahead, Some(me.session())).await?;
        if entries.iter().any(Option::is_none) {
            return Ok(None);
        }
        entries.push(Some(self.own(me)));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let line = Line {
            entries: entries.into_iter().flatten().collect(),
            skipped: count(skipped),
            behind: count(line.len() - 1 - at),
            seen: 0,
        };
        if let ([first, ahead, _], 1..) = (line.entries.as_slice(), skipped) {
            let (first, ahead) = (first.spot.clone(), ahead.spot.clone());
            let (skipped, behind, at) = (line.skipped, line.behind, self.clock.now());
            me.saw(Seen { first, ahead, skipped, behind, at });
        }
        Ok(Some(line))
    }

    /// One's own entry: what is in it is known.
    fn own(&self, me: &Place) -> Entry {
        Entry {
            spot: me.name().into(),
            token: me.token(),
            req: names::request(me.name()),
            owner: Some(me.owner().clone()),
            label: me.label().clone(),
            mode: me.mode(),
            age: self.clock.now().since(me.made()),
            left: Some(me.session().ttl),
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
        Some(Entry {
            spot: child.name.as_str().into(),
            token: token(stat.czxid).ok()?,
            req: record.as_ref().map(|r| r.req),
            owner: record.as_ref().map(|r| r.owner.clone()),
            label: record
                .as_ref()
                .map_or_else(|| Label::new("another kind of client"), |r| r.label.clone()),
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

/// The names in a line, in order.
async fn list(client: &Client, parent: &str) -> Result<Vec<Child>, Zk> {
    client.list_children(parent).await.map(|children| names::in_order(&children))
}
