//! The tables: made by the first lock, not by a look; those of an earlier version completed.

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::open_to_look;
use distlock_testkit::servers::Mariadb;

use crate::kit::{LONG, Named, ask, client, connect, give_back, run, start, take, url};

pub(crate) const TRIALS: &[Named] = &[
    ("who_only_looks_makes_no_tables", looks),
    ("tables_of_an_earlier_version_get_their_indexes", indexes),
];

const ALL: [&str; 3] = ["", "algorithm=version", "algorithm=row-lock"];

fn looks() {
    run(async {
        let server = start(Mariadb::new()).await;
        let look = async |query: &str| {
            open_to_look(StoreUrl::parse(&url(server.addr(), query)).unwrap()).await.unwrap()
        };
        for query in ALL {
            assert!(look(query).await.is_none());
        }
        assert_eq!(ask(&server, "SHOW TABLES"), "");
        client(&server, "").await.close().await;
        for query in ALL {
            let locks = Locks::from_store(look(query).await.expect("its tables"));
            assert_eq!(locks.list("").await.unwrap(), []);
            locks.close().await;
        }
    });
}

fn indexes() {
    run(async {
        let server =
            start(Mariadb::new().user("app", "pw", "SELECT, INSERT, UPDATE, DELETE")).await;
        client(&server, "").await.close().await;
        let old = "ALTER TABLE distlock_wait DROP KEY owners, DROP KEY sizes";
        ask(&server, old);
        let count = "SELECT COUNT(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS \
                     WHERE TABLE_NAME = 'distlock_wait' AND INDEX_NAME IN ('owners', 'sizes')";
        // Who may not alter the table takes locks all the same.
        let other = format!("mysql://app:pw@{}/{}", server.addr(), Mariadb::DATABASE);
        let locks = connect(&other).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        assert_eq!(ask(&server, count), "0");
        client(&server, "").await.close().await;
        assert_eq!(ask(&server, count), "2");
        let made = ask(&server, "SHOW CREATE TABLE distlock_wait");
        ask(&server, "DROP TABLE distlock_wait, distlock_meta");
        client(&server, "").await.close().await;
        assert_eq!(made, ask(&server, "SHOW CREATE TABLE distlock_wait"), "as in a new table");
    });
}
