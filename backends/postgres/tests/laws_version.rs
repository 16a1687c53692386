//! The laws every store must pass, with `?algorithm=version`.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_postgres::{Algorithm, PostgresOptions, capability, open};
use distlock_testkit::servers::Postgres;
use distlock_testkit::{Made, Suite, suite};

suite!(Suite::by_url(
    capability(&PostgresOptions::new().algorithm(Algorithm::Version)),
    |_| Box::pin(async {
        let (server, schema) = Postgres::shared().await?;
        let url = format!(
            "postgres://postgres@{}/postgres?schema={schema}&algorithm=version",
            server.addr()
        );
        Ok(Made::with(url, server))
    }),
    |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    }
));
