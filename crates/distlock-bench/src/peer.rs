//! Other locks on the same servers, in the same run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock::{Error, Kind};
use rslock::LockManager;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::raw::etcd::Etcd;
use crate::raw::sql::Sql;

/// Somebody else's lock.
#[derive(Clone)]
pub(crate) enum Peer {
    /// `rslock`, over one or several servers: no fencing token, no line, no renewal by itself.
    Rslock(LockManager),
    /// The database's own lock function: no token, and it ends with its connection.
    Own(Sql),
    /// `PgAdvisoryLock` of `sqlx`: the same, taken and given back by another crate.
    Sqlx(Sql),
    /// The lock service of etcd, `v3lock`: a waiter is a call that is not answered yet.
    Service(Etcd),
    /// The lock of `zookeeper-client`: a line of its own, and no proof of one's place in it.
    ZooKeeper(Arc<Client>),
}

impl Peer {
    /// `rslock` over one server, or as a Redlock over several.
    pub(crate) fn rslock(servers: &[SocketAddr]) -> Self {
        Self::patient(LockManager::new(urls(servers)))
    }

    /// `rslock` over a cluster, which it takes for one server.
    pub(crate) fn rslock_cluster(nodes: &[SocketAddr]) -> Result<Self, Error> {
        let manager = LockManager::new_cluster(urls(nodes));
        let trouble = |e| Error::new(Kind::Store, "rslock does not take the cluster").because(e);
        manager.map(Self::patient).map_err(trouble)
    }

    fn patient(mut manager: LockManager) -> Self {
        manager.set_retry(60_000, Duration::from_millis(1));
        Self::Rslock(manager)
    }

    /// The lock of `zookeeper-client`.
    pub(crate) async fn zookeeper(server: SocketAddr) -> Result<Self, Error> {
        let client = Client::connect(&server.to_string()).await.map_err(theirs)?;
        Ok(Self::ZooKeeper(Arc::new(client)))
    }

    /// Whether who waits for it stands in a line, so that a crowd can be compared.
    pub(crate) fn keeps_a_line(&self) -> bool {
        matches!(self, Self::ZooKeeper(_) | Self::Service(_))
    }

    /// As the table calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Rslock(_) => "rslock",
            Self::Own(Sql::MySql(_)) => "GET_LOCK",
            Self::Own(Sql::Postgres(_)) => "pg_advisory_lock",
            Self::Sqlx(_) => "PgAdvisoryLock",
            Self::Service(_) => "v3lock",
            Self::ZooKeeper(_) => "zookeeper-client",
        }
    }

    /// Takes a lock and gives it back, as one of many tasks.
    pub(crate) async fn cycle(&self, name: &str, task: usize) -> Result<(), Error> {
        self.timed_cycle(name, task, || ()).await
    }

    /// The same, and says when the lock is granted, except for the database's own lock functions.
    pub(crate) async fn timed_cycle(
        &self,
        name: &str,
        task: usize,
        granted: impl FnOnce() + Send,
    ) -> Result<(), Error> {
        let manager = match self {
            Self::Rslock(manager) => manager,
            Self::Own(sql) => return sql.own_lock(name).await,
            Self::Sqlx(sql) => return sql.sqlx_lock(name).await,
            Self::Service(etcd) => {
                let key = etcd.service_lock(name, task).await?;
                granted();
                return etcd.service_unlock(key).await;
            }
            Self::ZooKeeper(client) => {
                return zookeeper_lock(client, name, granted).await.map_err(theirs);
            }
        };
        let lock = manager.lock(name.as_bytes(), Duration::from_secs(10)).await;
        let lock = lock.map_err(|e| Error::new(Kind::Store, format!("rslock: {e:?}")))?;
        granted();
        manager.unlock(&lock).await;
        Ok(())
    }
}

/// Gives it back by one delete, as its drop does in the background, and waits for that.
async fn zookeeper_lock(
    client: &Client,
    name: &str,
    granted: impl FnOnce() + Send,
) -> Result<(), zookeeper_client::Error> {
    let (acls, dir) = (Acls::anyone_all(), format!("/peer/{}", name.replace(' ', "-")));
    let parents = CreateMode::Container.with_acls(acls);
    let options = LockOptions::new(acls).with_ancestor_options(parents)?;
    let prefix = LockPrefix::new_curator(&dir, "lock-")?;
    let held = client.lock(prefix, &[b'x'; 200], options).await?;
    granted();
    let path = held.lock_path().to_owned();
    std::mem::forget(held);
    client.delete(&path, None).await
}

fn theirs(e: zookeeper_client::Error) -> Error {
    Error::new(Kind::Store, "zookeeper-client's lock failed").because(e)
}

fn urls(servers: &[SocketAddr]) -> Vec<String> {
    servers.iter().map(|at| format!("redis://{at}")).collect()
}
