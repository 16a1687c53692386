//! The laws every store must pass, over the version algorithm on one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{Algorithm, MysqlOptions, capability, open, schema};
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::{Made, ProxiedRoute, Suite, suite};

/// The page's list of rights: the laws are run as a user who has just these.
const PAGE: &str = include_str!("../../../docs/stores/mysql-version.md");

suite!(
    Suite::by_url(
        capability(
            &MysqlOptions { algorithm: Algorithm::Version, ..MysqlOptions::default() },
            true
        ),
        |_| Box::pin(async {
            let server = Mariadb::new().start().await?;
            let url = Mariadb::least_rights(&server, &schema("distlock_")?, PAGE)?;
            Ok(Made::with(format!("{url}?algorithm=version"), server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    .lose(|site, lock| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        let sql = format!("DELETE FROM test.distlock_version WHERE name = '{}'", lock.name);
        Mariadb::ask(server, &sql).expect("the row goes");
    }))
    .road(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        ProxiedRoute::past(site.url(), &[server.addr()]).await
    }))
    .restart(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        server.restart().await.expect("it starts again");
    }))
    .reads_first()
);
