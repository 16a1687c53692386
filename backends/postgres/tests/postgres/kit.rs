//! What every test needs.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks};
use distlock_postgres::open;
use distlock_testkit::servers::{Postgres, Server};

pub(crate) use distlock_testkit::wait::{LONG, give_back, take_for, task};

distlock_testkit::waits!(soon: Duration::from_secs(30), limit: Duration::from_secs(300));

pub(crate) use distlock_testkit::Named;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn url(addr: SocketAddr, query: &str) -> String {
    format!("postgres://postgres@{addr}/postgres?{query}")
}

/// A client of its own, as if it were another process.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(open(StoreUrl::parse(url)?).await?))
}

/// A client of a server; the query without its question mark.
pub(crate) async fn client(server: &Server, query: &str) -> Locks {
    client_at(server.addr(), query).await
}

pub(crate) async fn client_at(addr: SocketAddr, query: &str) -> Locks {
    connect(&url(addr, query)).await.unwrap()
}

pub(crate) async fn sql(server: &Server, statements: &str) -> String {
    Postgres::sql(server, statements).await.unwrap_or_else(|e| panic!("{statements}: {e:?}"))
}
