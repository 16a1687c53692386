//! The laws every store must pass, over one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{MysqlOptions, capability, open, schema};
use distlock_testkit::servers::{Mariadb, Server};
use distlock_testkit::{Made, Road, Suite, suite};

/// The page's list of rights: the laws are run as a user who has just these.
const PAGE: &str = include_str!("../../../docs/stores/mysql.md");

/// Makes the tables, and the user; its URL.
fn least_rights(server: &Server) -> Result<String, distlock_core::Error> {
    let granted: String = PAGE.lines().filter(|line| line.starts_with("GRANT ")).collect();
    assert!(!granted.is_empty(), "the page lists no rights");
    let user = "CREATE USER 'app'@'%' IDENTIFIED BY 'pw'";
    let granted = granted.replace("locks.", &format!("{}.", Mariadb::DATABASE));
    Mariadb::ask(server, &format!("{} {user}; {granted}", schema("distlock_")))?;
    Ok(format!("mysql://app:pw@{}/{}", server.addr(), Mariadb::DATABASE))
}

suite!(
    Suite::by_url(
        capability(&MysqlOptions::new(), true),
        |_| Box::pin(async {
            let server = Mariadb::new().start().await?;
            Ok(Made::with(least_rights(&server)?, server))
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
        Road::past(site.url(), &[server.addr()]).await.map(Road::undo_needs_answers)
    }))
    .restart(|site| Box::pin(async move {
        let server = site.kept::<Server>().expect("its server");
        server.restart().await.expect("it starts again");
    }))
);
