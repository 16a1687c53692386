//! The laws at a store whose locks are sessions.

use std::path::Path;

use distlock_core::backend::Fut;
use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks};
use distlock_postgres::{Algorithm, PostgresOptions, capability, open};
use distlock_testkit::servers::Postgres;
use distlock_testkit::{Made, ProxiedRoute, Suite};

/// A server, and a URL that asks for an algorithm.
pub(crate) async fn start(algorithm: Algorithm) -> Result<Made, Error> {
    let server = Postgres::new().set("max_connections", "1000").start().await?;
    let (at, word) = (server.addr(), algorithm.word());
    let page = match algorithm {
        Algorithm::RowLock => include_str!("../../../../docs/stores/postgres-row-lock.md"),
        _ => include_str!("../../../../docs/stores/postgres-advisory.md"),
    };
    crate::grants::prepare(&server, "distlock", page).await?;
    let url = format!("postgres://distlock@{at}/postgres?algorithm={word}&sessions=400");
    Ok(Made::with(url, server))
}

pub(crate) fn suite(
    algorithm: Algorithm,
    make: fn(&Path) -> Fut<'static, Result<Made, Error>>,
) -> Suite {
    let options = PostgresOptions { algorithm, ..PostgresOptions::default() };
    Suite::by_url(capability(&options, true), make, |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    })
    // The record of such a lock is a session.
    .lose(|site, lock| {
        Box::pin(async move {
            let end = format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM distlock.held WHERE name = '{}'",
                lock.name
            );
            let ended = Postgres::sql(site.server(), &end).await.expect("an answer");
            assert_eq!(ended, "t", "its session goes");
        })
    })
    .road(|site| Box::pin(ProxiedRoute::past_its_server(site)))
    .restart(|site| {
        Box::pin(async move {
            site.server().restart().await.expect("it starts again");
        })
    })
    // Nobody sees who holds it before the first answer has come and been answered.
    .reads_first()
}
