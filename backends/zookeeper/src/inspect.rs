//! What an operator sees, and takes away.

use std::sync::Arc;

use distlock_core::queue::{Entry, Snapshot};
use distlock_core::{Error, Force, Forced, FullName, Kind, Name, Query};
use zookeeper_client::{Client, Error as Zk};

use crate::errors::{gone, is_lost, trouble};
use crate::join::{AGAIN, token};
use crate::node_names::{self, Child};
use crate::read_queue::AT_ONCE;
use crate::record::Record;
use crate::store::Shared;

impl Shared {
    /// Whole lines, as an operator wants them: up to date with what anybody was told.
    pub(crate) async fn queues(
        self: &Arc<Self>,
        query: &Query,
    ) -> Result<Vec<(FullName, Snapshot)>, Error> {
        let client = self.any_client().await?;
        self.queues_by(&client, query).await.map_err(trouble)
    }

    async fn queues_by(
        &self,
        client: &Client,
        query: &Query,
    ) -> Result<Vec<(FullName, Snapshot)>, Zk> {
        let root = &self.options.root;
        gone(client.sync(root).await)?;
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
                let names = nodes.iter().filter_map(|n| node_names::decode(n)).filter(meant);
                let mut names: Vec<FullName> = names.collect();
                names.sort();
                (names, *limit)
            }
        };
        let mut queues = Vec::new();
        for some in names.chunks(AT_ONCE) {
            let parents: Vec<String> = some.iter().map(|lock| self.parent(lock)).collect();
            let asked: Vec<_> = parents.iter().map(|p| client.get_children(p)).collect();
            for ((lock, parent), answer) in some.iter().zip(&parents).zip(asked) {
                let children = match answer.await {
                    Ok((children, _)) => node_names::in_order(&children),
                    Err(Zk::NoNode) => continue,
                    Err(e) => return Err(e),
                };
                let all: Vec<&Child> = children.iter().collect();
                let entries = self.read(client, parent, &all, None).await?;
                let entries: Vec<Entry> = entries.into_iter().flatten().collect();
                if !entries.is_empty() && queues.len() < limit {
                    queues.push((lock.clone(), Snapshot { entries, ..Snapshot::default() }));
                }
            }
            if queues.len() >= limit {
                break;
            }
        }
        Ok(queues)
    }

    /// Takes an entry away: this very one, also when a lost answer has it asked again. The
    /// holder by then is another one.
    pub(crate) async fn oust(
        self: &Arc<Self>,
        lock: &FullName,
        entry: &Entry,
        how: Force,
    ) -> Result<Forced, Error> {
        let client = self.any_client().await?;
        let path = format!("{}/{}", self.parent(lock), entry.spot);
        let mut sent = false;
        loop {
            let left = || if sent { Forced::Done } else { Forced::NoMatch };
            let (data, stat) = match client.get_data(&path).await {
                Ok(found) => found,
                Err(Zk::NoNode) => return Ok(left()),
                Err(e) if sent && is_lost(&e) => {
                    self.clock.sleep(AGAIN).await;
                    continue;
                }
                Err(e) => return Err(trouble(e)),
            };
            if token(stat.czxid)? != entry.token {
                return Ok(left());
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
                Err(Zk::NoNode) => return Ok(left()),
                Err(e) if is_lost(&e) => sent = true,
                // It changed meanwhile: looked at again.
                Err(Zk::BadVersion) => {}
                Err(e) => return Err(trouble(e)),
            }
        }
    }
}

fn foreign() -> Error {
    Error::new(
        Kind::Unsupported,
        "another kind of client holds the lock and cannot be told to release it",
    )
    .with_hint("take it away at once (--now), knowing that its holder goes on unaware")
}
