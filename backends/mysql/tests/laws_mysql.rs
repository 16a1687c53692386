//! The laws every store must pass, over one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{MysqlOptions, capability, open, schema};
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::{Made, ProxiedRoute, Suite, suite};

/// The page's list of rights: the laws are run as a user who has just these.
const PAGE: &str = include_str!("../../../docs/stores/mysql.md");

suite!(
    Suite::by_url(
        capability(&MysqlOptions::default(), true),
        |_| Box::pin(async {
            let server = Mariadb::new().start().await?;
            let url = Mariadb::least_rights(&server, &schema("distlock_")?, PAGE)?;
            Ok(Made::with(url, server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    .lose(|site, lock| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        let sql = format!("DELETE FROM test.distlock_lock WHERE name = '{}'", lock.name);
        Mariadb::ask(server, &sql).expect("the row goes");
    }))
    .road(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        ProxiedRoute::past(site.url(), &[server.addr()]).await.map(ProxiedRoute::undo_needs_answers)
    }))
    .restart(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        server.restart().await.expect("it starts again");
    }))
);
