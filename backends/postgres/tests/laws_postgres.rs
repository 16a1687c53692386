//! The laws every store must pass, over one PostgreSQL: a schema for each law.

#[path = "laws/grants.rs"]
mod grants;

use std::sync::Arc;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_postgres::{PostgresOptions, capability, open};
use distlock_testkit::servers::{Postgres, Server};
use distlock_testkit::{Made, ProxiedRoute, StoreUnderTest, Suite, suite};

fn server(site: &StoreUnderTest) -> &Server {
    site.kept::<Arc<Server>>().expect("its server")
}

suite!(
    Suite::by_url(
        capability(&PostgresOptions::default(), true),
        |_| Box::pin(async {
            let (server, schema) = Postgres::shared().await?;
            let page = include_str!("../../../docs/stores/postgres.md");
            grants::prepare(&server, &schema, page).await?;
            let url = format!("postgres://{schema}@{}/postgres?schema={schema}", server.addr());
            Ok(Made::with(url, server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    .lose(|site, lock| Box::pin(async move {
        let (_, schema) = site.url().split_once("schema=").expect("a schema in its URL");
        let schema = schema.split('&').next().unwrap_or_default();
        let sql = format!("DELETE FROM {schema}.lock WHERE name = '{}'", lock.name);
        Postgres::sql(server(site), &sql).await.expect("the row goes");
    }))
    .road(|site| Box::pin(async move {
        ProxiedRoute::past(site.url(), &[server(site).addr()]).await
    }))
);
