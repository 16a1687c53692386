//! What every test needs.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks};
use distlock_mysql::open;
use distlock_testkit::servers::{Mariadb, Server};

pub(crate) use distlock_testkit::wait::{LONG, give_back, take_for as take, task, timed, within};

distlock_testkit::waits!(soon: Duration::from_secs(30), limit: Duration::from_secs(300));

pub(crate) use distlock_testkit::Named;

/// The lease algorithms.
pub(crate) const BOTH: [&str; 2] = ["timeout=3s", "timeout=3s&algorithm=version"];

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) async fn start(how: Mariadb) -> Server {
    how.start().await.expect("`cargo xtask setup` installs MariaDB")
}

/// A client of its own, as if it were another process.
pub(crate) async fn connect(url: &str) -> Result<Locks, Error> {
    Ok(Locks::from_store(open(StoreUrl::parse(url)?).await?))
}

pub(crate) fn url(addr: SocketAddr, query: &str) -> String {
    format!("mysql://root@{addr}/{}?{query}", Mariadb::DATABASE)
}

/// A client of a server; the query without its question mark.
pub(crate) async fn client(server: &Server, query: &str) -> Locks {
    client_at(server.addr(), query).await
}

pub(crate) async fn client_at(addr: SocketAddr, query: &str) -> Locks {
    connect(&url(addr, query)).await.unwrap()
}

/// What the server answers to its root, through its socket.
pub(crate) fn ask(server: &Server, statement: &str) -> String {
    Mariadb::ask(server, statement).unwrap()
}

/// The connections of clients other than the one that asks.
pub(crate) fn connections(server: &Server) -> Vec<u64> {
    let list = "SELECT ID FROM information_schema.PROCESSLIST \
                WHERE ID <> CONNECTION_ID() AND COMMAND <> 'Daemon' AND USER <> 'system user'";
    ask(server, list).lines().filter_map(|l| l.trim().parse().ok()).collect()
}

/// The doorbells that sleep just now.
pub(crate) fn doorbells(server: &Server) -> Vec<String> {
    let list = "SELECT ID FROM information_schema.PROCESSLIST \
                WHERE INFO LIKE '% AS rung%' AND ID <> CONNECTION_ID() ORDER BY ID";
    ask(server, list).lines().map(str::to_owned).collect()
}
