//! The laws every store must pass, over row locks of one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{Algorithm, MysqlOptions, capability, open};
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::{Made, Road, Suite, suite};

suite!(
    Suite::by_url(
        capability(&MysqlOptions::new().algorithm(Algorithm::RowLock), true),
        |_| Box::pin(async {
            let server = Mariadb::new().arg("max-connections", "1000").start().await?;
            let url = format!("{}?algorithm=row-lock&sessions=600", Mariadb::url(&server));
            Ok(Made::with(url, server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    // The record of such a lock is a connection.
    .lose(|site, lock| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        let which = format!("SELECT conn FROM distlock_held WHERE name = '{}'", lock.name);
        let conn = Mariadb::ask(server, &which).expect("who holds it");
        Mariadb::ask(server, &format!("KILL CONNECTION {conn}")).expect("its connection goes");
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
