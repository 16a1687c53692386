//! Reading lines.
//!
//! An exclusive request needs the first in line, to say who holds, and the one just ahead, to watch:
//! two small reads, however long the line is. Others read all who are ahead.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::info::Query;
use distlock_core::line::{Entry, Line, Spot};
use distlock_core::seam::{Ask, Force, Forced};
use distlock_core::{Error, FullName, Kind, Label, Mode, Name};
use zookeeper_client::{Client, Error as Zk, Stat};

use crate::join::token;
use crate::names::{self, Child};
use crate::record::Record;
use crate::store::{Place, Shared};
use crate::trouble::trouble;

/// So many questions are under way at once when whole lines are read.
const AT_ONCE: usize = 64;
/// So often a line is read again that changes while it is read.
const TRIES: usize = 16;

impl Shared {
    /// The line, as far as it matters to one of its entries.
    pub(crate) async fn line_of(&self, client: &Client, me: &Place) -> Result<Line, Zk> {
        for _ in 0..TRIES {
            let children = match client.list_children(me.parent()).await {
                Ok(children) => children,
                Err(Zk::NoNode) => return Ok(Line::default()),
                Err(e) => return Err(e),
            };
            if let Some(line) = self.read_line(client, me, &children, None).await? {
                return Ok(line);
            }
        }
        Err(Zk::Throttled)
    }

    /// `None` when one of those who matter has left meanwhile.
    pub(crate) async fn read_line(
        &self,
        client: &Client,
        me: &Place,
        children: &[String],
        ask: Option<&Ask>,
    ) -> Result<Option<Line>, Zk> {
        let line = names::in_order(children);
        let Some(at) = line.iter().position(|c| c.name == me.name()) else {
            return Ok(Some(Line::default()));
        };
        let exclusive = line[at].mode == Mode::Exclusive;
        // What an exclusive request does not need, it does not ask for.
        let (from, skipped) = if exclusive && at > 2 { (at - 1, at - 2) } else { (1, 0) };
        let near = line.get(from..at).unwrap_or_default();
        let ahead: Vec<&Child> = line.iter().take(at.min(1)).chain(near).collect();
        let mut entries = self.read(client, me.parent(), &ahead).await?;
        if entries.iter().any(Option::is_none) {
            return Ok(None);
        }
        entries.push(Some(self.own(me, line[at].mode, ask)));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Some(Line {
            entries: entries.into_iter().flatten().collect(),
            skipped: count(skipped),
            behind: count(line.len() - 1 - at),
            seen: 0,
        }))
    }

    /// One's own entry: what is in it is known.
    fn own(&self, me: &Place, mode: Mode, ask: Option<&Ask>) -> Entry {
        Entry {
            spot: me.name().into(),
            token: me.token(),
            req: names::request(me.name()),
            owner: ask.map(|a| a.owner.clone()),
            label: ask.map_or_else(|| Label::new(""), |a| a.label.clone()),
            mode,
            age: Duration::ZERO,
            left: Some(me.session().ttl),
            lingering: false,
            revoked: false,
        }
    }

    /// Entries by their names, asked for all at once; `None` for what is gone.
    async fn read(
        &self,
        client: &Client,
        parent: &str,
        children: &[&Child],
    ) -> Result<Vec<Option<Entry>>, Zk> {
        let mut entries = Vec::with_capacity(children.len());
        for some in children.chunks(AT_ONCE) {
            let asked: Vec<_> =
                some.iter().map(|c| client.get_data(&format!("{parent}/{}", c.name))).collect();
            for (child, answer) in some.iter().zip(asked) {
                match answer.await {
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
        let Some(client) = self.pool.any().and_then(|s| s.client().ok()) else { return };
        let parent = self.parent(lock);
        let mut watchers = Vec::with_capacity(watch.len());
        for spot in watch {
            match client.get_and_watch_data(&format!("{parent}/{spot}")).await {
                Ok((_, _, watcher)) => watchers.push(Box::pin(watcher.changed())),
                Err(_) => return,
            }
        }
        if watchers.is_empty() {
            return std::future::pending().await;
        }
        let _ = futures_util::future::select_all(watchers).await;
    }

    /// Whole lines, as an operator wants them: up to date with what anybody was told.
    pub(crate) async fn lines(
        self: &Arc<Self>,
        query: &Query,
    ) -> Result<Vec<(FullName, Line)>, Error> {
        let client = self.any_client().await?;
        self.lines_by(&client, query).await.map_err(trouble)
    }

    async fn lines_by(&self, client: &Client, query: &Query) -> Result<Vec<(FullName, Line)>, Zk> {
        let root = &self.options.root;
        match client.sync(root).await {
            Ok(()) | Err(Zk::NoNode) => {}
            Err(e) => return Err(e),
        }
        let (names, limit) = match query {
            Query::Name(lock) => (vec![lock.clone()], 1),
            Query::Prefix { space, prefix, after, limit } => {
                let nodes = match client.list_children(root).await {
                    Ok(nodes) => nodes,
                    Err(Zk::NoNode) => return Ok(Vec::new()),
                    Err(e) => return Err(e),
                };
                let after = |name: &Name| after.as_ref().is_none_or(|a| name > a);
                let meant = |lock: &FullName| {
                    lock.space == *space
                        && lock.name.as_str().starts_with(prefix)
                        && after(&lock.name)
                };
                let names = nodes.iter().filter_map(|n| names::decode(n)).filter(meant);
                let mut names: Vec<FullName> = names.collect();
                names.sort();
                (names, *limit)
            }
        };
        let mut lines = Vec::new();
        for some in names.chunks(AT_ONCE) {
            let parents: Vec<String> = some.iter().map(|lock| self.parent(lock)).collect();
            let asked: Vec<_> = parents.iter().map(|p| client.get_children(p)).collect();
            for ((lock, parent), answer) in some.iter().zip(&parents).zip(asked) {
                let children = match answer.await {
                    Ok((children, _)) => names::in_order(&children),
                    Err(Zk::NoNode) => continue,
                    Err(e) => return Err(e),
                };
                let all: Vec<&Child> = children.iter().collect();
                let entries = self.read(client, parent, &all).await?;
                let entries: Vec<Entry> = entries.into_iter().flatten().collect();
                if !entries.is_empty() && lines.len() < limit {
                    lines.push((lock.clone(), Line { entries, ..Line::default() }));
                }
            }
            if lines.len() >= limit {
                break;
            }
        }
        Ok(lines)
    }

    /// Takes an entry away.
    pub(crate) async fn oust(
        self: &Arc<Self>,
        lock: &FullName,
        entry: &Entry,
        how: Force,
    ) -> Result<Forced, Error> {
        let client = self.any_client().await?;
        let path = format!("{}/{}", self.parent(lock), entry.spot);
        loop {
            let (data, stat) = match client.get_data(&path).await {
                Ok(found) => found,
                Err(Zk::NoNode) => return Ok(Forced::NoMatch),
                Err(e) => return Err(trouble(e)),
            };
            if token(stat.czxid)? != entry.token {
                return Ok(Forced::NoMatch);
            }
            let done = match (how, Record::read(&data)) {
                (Force::Now, _) => client.delete(&path, Some(stat.version)).await,
                (Force::Revoke, Some(record)) if record.revoked => return Ok(Forced::Done),
                (Force::Revoke, Some(record)) => {
                    let marked = record.marked().write();
                    client.set_data(&path, &marked, Some(stat.version)).await.map(drop)
                }
                (Force::Revoke, None) => return Err(foreign()),
            };
            match done {
                Ok(()) => return Ok(Forced::Done),
                Err(Zk::NoNode) => return Ok(Forced::NoMatch),
                // It changed meanwhile: looked at again.
                Err(Zk::BadVersion) => {}
                Err(e) => return Err(trouble(e)),
            }
        }
    }
}

fn foreign() -> Error {
    Error::new(Kind::Unsupported, "another kind of client holds the lock: it cannot be told")
        .with_hint("take it away at once (--now), knowing that its holder goes on unaware")
}
