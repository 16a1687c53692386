//! The laws every store must pass, with `?algorithm=row-lock`.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_postgres::{Algorithm, PostgresOptions, capability, open};
use distlock_testkit::servers::Postgres;
use distlock_testkit::{Made, Road, Suite, suite};

suite!(
    Suite::by_url(
        capability(&PostgresOptions::new().algorithm(Algorithm::RowLock), true),
        |_| Box::pin(async {
            let server = Postgres::new().set("max_connections", "1000").start().await?;
            let url = format!(
                "postgres://postgres@{}/postgres?algorithm=row-lock&sessions=400",
                server.addr()
            );
            Ok(Made::with(url, server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    // The record of such a lock is a session.
    .lose(|site, lock| Box::pin(async move {
        let end = format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM distlock.held WHERE name = '{}'",
            lock.name
        );
        let ended = Postgres::sql(site.server(), &end).await.expect("an answer");
        assert_eq!(ended, "t", "its session goes");
    }))
    .road(|site| Box::pin(Road::past_its_server(site)))
    .restart(|site| Box::pin(async move {
        site.server().restart().await.expect("it starts again");
    }))
    // Nobody sees who holds it before the first answer has come and been answered.
    .reads_first()
);
