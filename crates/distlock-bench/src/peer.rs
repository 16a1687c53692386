//! Other locks on the same servers, in the same run.

use std::net::SocketAddr;
use std::time::Duration;

use distlock::{Error, Kind};
use rslock::LockManager;

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
        manager.set_retry(1000, Duration::from_millis(1));
        Self::Rslock(manager)
    }

    /// As the table calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Rslock(_) => "rslock",
            Self::Own(Sql::MySql(_)) => "GET_LOCK",
            Self::Own(Sql::Postgres(_)) => "pg_advisory_lock",
            Self::Sqlx(_) => "PgAdvisoryLock",
        }
    }

    /// Takes a free lock and gives it back.
    pub(crate) async fn cycle(&self, name: &str) -> Result<(), Error> {
        let manager = match self {
            Self::Rslock(manager) => manager,
            Self::Own(sql) => return sql.own_lock(name).await,
            Self::Sqlx(sql) => return sql.sqlx_lock(name).await,
        };
        let lock = manager.lock(name.as_bytes(), Duration::from_secs(10)).await;
        let lock = lock.map_err(|e| Error::new(Kind::Store, format!("rslock: {e:?}")))?;
        manager.unlock(&lock).await;
        Ok(())
    }
}

fn urls(servers: &[SocketAddr]) -> Vec<String> {
    servers.iter().map(|at| format!("redis://{at}")).collect()
}
