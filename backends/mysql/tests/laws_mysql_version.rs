//! The laws every store must pass, over the version algorithm on one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{Algorithm, MysqlOptions, capability, open};
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::{Made, Road, Suite, suite};

suite!(
    Suite::by_url(
        capability(&MysqlOptions::new().algorithm(Algorithm::Version), true),
        |_| Box::pin(async {
            let server = Mariadb::new().start().await?;
            Ok(Made::with(format!("{}?algorithm=version", Mariadb::url(&server)), server))
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
        Road::past(site.url(), &[server.addr()]).await
    }))
    .restart(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        server.restart().await.expect("it starts again");
    }))
    .reads_first()
);
