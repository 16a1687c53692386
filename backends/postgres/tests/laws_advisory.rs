//! The laws every store must pass, with `?algorithm=advisory`.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_postgres::{Algorithm, PostgresOptions, capability, open};
use distlock_testkit::servers::Postgres;
use distlock_testkit::{Made, Suite, suite};

suite!(Suite::by_url(
    capability(&PostgresOptions::new().algorithm(Algorithm::Advisory)),
    |_| Box::pin(async {
        let server = Postgres::new().set("max_connections", "1000").start().await?;
        let url = format!(
            "postgres://postgres@{}/postgres?algorithm=advisory&sessions=400",
            server.addr()
        );
        Ok(Made::with(url, server))
    }),
    |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    }
));
