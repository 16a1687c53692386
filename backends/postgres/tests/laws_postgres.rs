//! The laws every store must pass, over one PostgreSQL: a schema for each law.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_postgres::{PostgresOptions, capability, open};
use distlock_testkit::servers::Postgres;
use distlock_testkit::{Made, Suite, suite};

suite!(Suite::by_url(
    capability(&PostgresOptions::new()),
    |_| Box::pin(async {
        let (server, schema) = Postgres::shared().await?;
        let url = format!("postgres://postgres@{}/postgres?schema={schema}", server.addr());
        Ok(Made::with(url, server))
    }),
    |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    }
));
