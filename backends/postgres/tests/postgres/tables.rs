//! The tables: made once, refused when newer, swept, and nobody's name is too odd for them.

use std::time::Duration;

use distlock_core::Kind;
use distlock_testkit::servers::Postgres;
use sqlx::{Connection, Executor, PgConnection};

use crate::kit::{LONG, Named, client, connect, give_back, run, soon, sql, take_for, url};

pub(crate) const TRIALS: &[Named] = &[
    ("who_only_looks_makes_no_tables", looks),
    ("tables_of_a_newer_layout_are_refused_and_left_alone", newer),
    ("older_functions_are_replaced", older),
    ("what_schema_prints_can_be_run_again_while_locks_are_held", printed),
    ("what_nobody_needs_any_more_is_swept", swept),
    ("any_name_is_a_lock_of_its_own", names),
    ("calls_of_a_process_take_three_connections", connections),
    ("a_row_that_somebody_keeps_locked_costs_no_other_lock", kept_row),
];

fn newer() {
    run(async {
        let (server, schema) = Postgres::shared().await.unwrap();
        let query = format!("schema={schema}");
        client(&server, &query).await.close().await;
        sql(&server, &format!("UPDATE {schema}.layout SET tables = 2")).await;
        let e = connect(&url(server.addr(), &query)).await.expect_err("refused");
        assert!(e.kind() == Kind::Layout && e.hint().is_some(), "{e:?}");
        assert_eq!(sql(&server, &format!("SELECT tables FROM {schema}.layout")).await, "2");
    });
}

fn older() {
    run(async {
        let (server, schema) = Postgres::shared().await.unwrap();
        let query = format!("schema={schema}");
        client(&server, &query).await.close().await;
        let break_it = format!(
            "UPDATE {schema}.layout SET code = 0; \
             CREATE OR REPLACE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql AS 'SELECT 1/0::bigint'"
        );
        sql(&server, &break_it).await;
        let locks = client(&server, &query).await;
        give_back(take_for(&locks, "a", LONG).await).await;
    });
}

fn printed() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let text = distlock_postgres::schema("distlock").unwrap();
        sql(&server, &text).await;
        // As a program leaves it, and as an older one did.
        for code in ["code", "0"] {
            let locks = client(&server, "").await;
            let held = take_for(&locks, "a", LONG).await;
            let lock = locks.lock("a").ttl(LONG);
            let waiting = crate::kit::task(async move { lock.acquire().await });
            crate::kit::line_of(&locks, "a", 1).await;
            sql(&server, &format!("UPDATE distlock.layout SET code = {code}")).await;
            sql(&server, &text).await;
            assert!(held.check().is_ok());
            give_back(held).await;
            give_back(crate::kit::soon("its turn", waiting).await.unwrap().unwrap()).await;
            let found = sql(&server, "SELECT tables > 0 AND code > 0 FROM distlock.layout").await;
            assert_eq!(found, "t");
        }
        // What a newer version made is left alone.
        for newer in ["code = code + 1", "tables = tables + 1"] {
            sql(&server, &format!("UPDATE distlock.layout SET {newer}")).await;
            let before = sql(&server, "SELECT * FROM distlock.layout").await;
            let e = Postgres::sql(&server, &text).await.expect_err("it is newer");
            assert!(e.hint().is_some_and(|h| h.contains("another version")), "{e:?}");
            assert_eq!(sql(&server, "SELECT * FROM distlock.layout").await, before);
            sql(&server, "UPDATE distlock.layout SET code = 1").await;
        }
    });
}

fn swept() {
    run(async {
        let (server, schema) = Postgres::shared().await.unwrap();
        let locks = client(&server, &format!("schema={schema}")).await;
        for i in 0..20 {
            give_back(take_for(&locks, &format!("old-{i}"), LONG).await).await;
        }
        let held = take_for(&locks, "kept", LONG).await;
        let rows = async || sql(&server, &format!("SELECT count(*) FROM {schema}.lock")).await;
        assert_eq!(rows().await, "21");
        // Two days pass for those that are free.
        sql(&server, &format!("UPDATE {schema}.lock SET kept_until = 1 WHERE name <> 'kept'"))
            .await;
        for i in 0..3 {
            give_back(take_for(&locks, &format!("new-{i}"), LONG).await).await;
        }
        // In small steps: eight for each new name.
        assert_eq!(rows().await, "4");
        give_back(held).await;
    });
}

fn names() {
    run(async {
        let (server, schema) = Postgres::shared().await.unwrap();
        let query = format!("schema={schema}");
        let (locks, other) = (client(&server, &query).await, client(&server, &query).await);
        let names =
            ["a", "a/", "A", "'; DROP SCHEMA x; --", "3:b|c", "ä\u{10FFFF}", " ", "%_\\", "\n"];
        let mut held = Vec::new();
        for name in names {
            held.push(take_for(&locks, name, LONG).await);
        }
        assert_eq!(locks.list("").await.unwrap().len(), names.len());
        assert_eq!(locks.list("a").await.unwrap().len(), 2);
        for (name, guard) in names.into_iter().zip(held) {
            let lock = other.lock(name).ttl(LONG);
            let waiting = crate::kit::task(async move { lock.acquire().await.unwrap() });
            crate::kit::line_of(&locks, name, 1).await;
            give_back(guard).await;
            // Told by push: a waiter that is not is found by its next heartbeat, long after.
            give_back(crate::kit::soon("its turn", waiting).await.unwrap()).await;
        }
    });
}

fn connections() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, "").await;
        let held = take_for(&locks, "a", LONG).await;
        let waiting: Vec<_> = (0..200)
            .map(|_| {
                let lock = locks.lock("a").ttl(LONG);
                crate::kit::task(async move { give_back(lock.acquire().await.unwrap()).await })
            })
            .collect();
        crate::kit::line_of(&locks, "a", 200).await;
        let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
        assert_eq!(sql(&server, ours).await, "3");
        give_back(held).await;
        for one in waiting {
            crate::kit::soon("its turn", one).await.unwrap();
        }
        assert_eq!(sql(&server, ours).await, "3");
    });
}

/// Somebody's transaction keeps the row of one lock: others of the same process are renewed.
fn kept_row() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, "").await;
        let ttl = Duration::from_secs(10);
        let held = [
            take_for(&locks, "a", ttl).await,
            take_for(&locks, "b", ttl).await,
            take_for(&locks, "c", ttl).await,
        ];
        let to = format!("postgres://postgres@{}/postgres", server.addr());
        let mut other = PgConnection::connect(&to).await.unwrap();
        let mut tx = other.begin().await.unwrap();
        let keep = "SELECT FROM distlock.lock WHERE space = '' AND name = 'b' FOR UPDATE";
        assert_eq!(tx.execute(keep).await.unwrap().rows_affected(), 1);
        // By then the first would be lost too, were it not renewed.
        soon("nobody could renew it", held[1].lost()).await;
        assert!(held[0].check().is_ok() && held[2].check().is_ok());
    });
}

fn looks() {
    run(async {
        let (server, schema) = Postgres::shared().await.unwrap();
        let look = async |algorithm: &str| {
            let query = format!("schema={schema}&algorithm={algorithm}");
            let url = distlock_core::url::StoreUrl::parse(&url(server.addr(), &query)).unwrap();
            distlock_postgres::open_to_look(url).await.unwrap()
        };
        let all = ["queue", "version", "advisory", "row-lock"];
        for algorithm in all {
            assert!(look(algorithm).await.is_none());
        }
        let there = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
        assert_eq!(sql(&server, &there).await, "0");
        client(&server, &format!("schema={schema}")).await.close().await;
        for algorithm in all {
            let locks =
                distlock_core::Locks::from_store(look(algorithm).await.expect("its tables"));
            assert_eq!(locks.list("").await.unwrap(), []);
            locks.close().await;
        }
    });
}
