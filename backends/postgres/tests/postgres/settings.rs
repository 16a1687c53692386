//! What a server, a database or a role is set to: it changes nothing, or is refused with words.

use distlock_core::capability::Fence;
use distlock_core::{Clock, Error, Kind};
use distlock_testkit::servers::{Postgres, Server};
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinHandle;

use crate::kit::{
    LONG, Named, client, connect, give_back, line_of, ms, run, soon, sql, take_for, task, until,
    url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("defaults_of_the_server_change_nothing", defaults),
    ("idle_connections_outlast_the_servers_patience", idle),
    ("what_stands_in_the_search_path_is_not_called", hijacked),
    ("a_standby_is_refused_by_every_algorithm", standby),
    ("a_read_only_role_is_refused_by_every_algorithm", read_only),
    ("a_server_that_takes_no_writes_for_a_while_is_told_and_then_served", for_a_while),
    ("a_database_that_cannot_hold_every_name_is_refused", encoding),
    ("a_server_that_does_not_sync_is_not_called_durable", unsynced),
];

const ALGORITHMS: [&str; 4] =
    ["algorithm=queue", "algorithm=version", "algorithm=advisory", "algorithm=row-lock"];

async fn refused(url: &str, hint: &str) {
    let e: Error = soon("an answer", connect(url)).await.expect_err(url);
    assert_eq!(e.kind(), Kind::Refused, "{url}: {e:?}");
    assert!(e.hint().is_some_and(|h| h.contains(hint)), "{url}: {e:?}");
}

/// Somebody else's connection.
async fn stranger(server: &Server) -> PgConnection {
    PgConnection::connect(&format!("postgres://postgres@{}/postgres", server.addr())).await.unwrap()
}

/// Isolation that fails instead of waiting, and limits that nothing could live with.
fn defaults() {
    run(async {
        let server = Postgres::new()
            .set("default_transaction_isolation", "serializable")
            .set("lock_timeout", "20ms")
            .set("statement_timeout", "2s")
            .set("idle_in_transaction_session_timeout", "1000ms")
            .set("synchronous_commit", "off")
            .start()
            .await
            .unwrap();
        for query in ALGORITHMS {
            let all = [client(&server, query).await, client(&server, query).await];
            // Everybody at once, and nobody is refused.
            let busy: Vec<_> = (0..8)
                .map(|i: usize| {
                    let locks = all[i % 2].clone();
                    task(async move {
                        for _ in 0..10 {
                            give_back(locks.lock("hot").ttl(LONG).acquire().await.unwrap()).await;
                        }
                    })
                })
                .collect();
            for one in busy {
                soon("its turns", one).await.unwrap();
            }
            // A wait and a hold that last longer than all of them.
            let held = take_for(&all[0], "long", ms(20_000)).await;
            let lock = all[1].lock("long").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            Clock::system().sleep(ms(2500)).await;
            assert!(held.check().is_ok() && !waiting.is_finished(), "{query}");
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
        // A row that somebody keeps for a moment is waited for.
        let locks = client(&server, "").await;
        let mut other = stranger(&server).await;
        let keep = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
            BEGIN; SELECT FROM distlock.lock WHERE name = 'hot' FOR UPDATE";
        sqlx::raw_sql(keep).execute(&mut other).await.unwrap();
        let lock = locks.lock("hot").ttl(LONG);
        let asking = task(async move { lock.try_acquire().await });
        waits_or_not(&server, &asking).await;
        Clock::system().sleep(ms(100)).await;
        other.execute("COMMIT").await.unwrap();
        give_back(soon("an answer", asking).await.unwrap().unwrap().unwrap()).await;
        // One that was changed meanwhile, which such a server answers with an error, is read again.
        let locks = client(&server, "algorithm=version").await;
        let change = "BEGIN; UPDATE distlock.state SET version = version + 1 WHERE name = 'hot'";
        sqlx::raw_sql(change).execute(&mut other).await.unwrap();
        let lock = locks.lock("hot").ttl(LONG);
        let asking = task(async move { lock.try_acquire().await });
        waits_or_not(&server, &asking).await;
        other.execute("COMMIT").await.unwrap();
        give_back(soon("an answer", asking).await.unwrap().unwrap().unwrap()).await;
    });
}

/// Waits until somebody waits for a row, or has not.
async fn waits_or_not<T>(server: &Server, asking: &JoinHandle<T>) {
    until("it waits for the row, or does not", async || {
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        asking.is_finished() || sql(server, waits).await == "1"
    })
    .await;
}

fn idle() {
    run(async {
        let server = Postgres::new().set("idle_session_timeout", "1500ms").start().await.unwrap();
        let locks = client(&server, "").await;
        give_back(take_for(&locks, "a", LONG).await).await;
        let ours = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity \
            WHERE application_name = 'distlock'";
        let before = sql(&server, ours).await;
        assert_eq!(before.split(' ').count(), 3, "{before}");
        Clock::system().sleep(ms(4000)).await;
        assert_eq!(sql(&server, ours).await, before);
    });
}

/// A schema before the server's own, as somebody may make who wants to be called.
const EVIL: &str = "CREATE SCHEMA evil; \
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
      $$ SELECT 'epoch'::timestamptz + interval '1 hour' $$; \
    CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''; \
    CREATE FUNCTION evil.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
    CREATE FUNCTION evil.glue(text, int) RETURNS text LANGUAGE sql AS $$ SELECT 'nothing'::text $$; \
    CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = int, FUNCTION = evil.glue); \
    ALTER DATABASE postgres SET search_path = evil, pg_catalog";

fn hijacked() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        sql(&server, EVIL).await;
        for query in ALGORITHMS {
            let (one, other) = (client(&server, query).await, client(&server, query).await);
            let held = take_for(&one, "a", LONG).await;
            assert!(held.token().get() > 1_600_000_000_000_000, "{query}: {}", held.token());
            assert!(other.lock("a").ttl(LONG).try_acquire().await.unwrap().is_err(), "{query}");
            let lock = other.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            if query != "algorithm=row-lock" {
                line_of(&one, "a", 1).await;
            }
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
    });
}

fn standby() {
    run(async {
        let primary = Postgres::new().start().await.unwrap();
        client(&primary, "").await.close().await;
        let standby = Postgres::new().standby_of(&primary).start().await.unwrap();
        for query in ALGORITHMS {
            refused(&url(standby.addr(), query), "primary").await;
        }
    });
}

fn read_only() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        client(&server, "").await.close().await;
        sql(&server, "CREATE ROLE app LOGIN SUPERUSER").await;
        sql(&server, "ALTER ROLE app SET default_transaction_read_only = on").await;
        for query in ALGORITHMS {
            let at = format!("postgres://app@{}/postgres?{query}", server.addr());
            refused(&at, "default_transaction_read_only").await;
        }
    });
}

fn for_a_while() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let set = async |to: &str| {
            sql(&server, &format!("ALTER SYSTEM SET default_transaction_read_only = {to}")).await;
            sql(&server, "SELECT pg_reload_conf()").await;
        };
        for query in ["", "algorithm=version"] {
            let locks = client(&server, query).await;
            let held = take_for(&locks, "a", LONG).await;
            set("on").await;
            until("it takes no writes", async || {
                match locks.lock("b").ttl(LONG).try_acquire().await {
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
                        assert!(e.hint().is_some_and(|h| h.contains("read_only")), "{e:?}");
                        true
                    }
                    Ok(_) => false,
                }
            })
            .await;
            assert!(held.check().is_ok());
            set("off").await;
            until("it takes writes", async || {
                locks.lock("b").ttl(LONG).try_acquire().await.is_ok_and(|b| b.is_ok())
            })
            .await;
            give_back(held).await;
        }
    });
}

fn encoding() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let make = |name: &str, encoding: &str| {
            format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        };
        sql(&server, &make("latin", "LATIN1")).await;
        sql(&server, &make("bytes", "SQL_ASCII")).await;
        for query in ALGORITHMS {
            let at = |db: &str| format!("postgres://postgres@{}/{db}?{query}", server.addr());
            refused(&at("latin"), "UTF8").await;
            // Bytes as they come are as good.
            let (one, other) = (connect(&at("bytes")).await.unwrap(), connect(&at("bytes")).await);
            let (held, other) = (take_for(&one, "ä/锁", LONG).await, other.unwrap());
            assert!(other.lock("ä/锁").try_acquire().await.unwrap().is_err());
            let seen = other.list("ä").await.unwrap();
            assert_eq!(seen.len(), 1, "{seen:?}");
            let lock = other.lock("ä/锁").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            if query != "algorithm=row-lock" {
                line_of(&one, "ä/锁", 1).await;
            }
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
    });
}

/// Where a power cut could take a grant back the fence is not durable, and a note names the setting. With
/// `full_page_writes` off it is a page that was half written then, and is not made whole.
fn unsynced() {
    run(async {
        let durable = Postgres::new().durable();
        let server = durable.clone().start().await.unwrap();
        for query in ALGORITHMS {
            let told = client(&server, query).await;
            assert_eq!(told.capability().fence, Fence::Durable, "{query}");
        }
        for setting in ["fsync", "full_page_writes"] {
            let server = durable.clone().set(setting, "off").start().await.unwrap();
            for query in ALGORITHMS {
                let told = client(&server, query).await;
                assert_eq!(told.capability().fence, Fence::Clocked, "{setting} {query}");
                let notes = told.capability().notes;
                assert!(notes.iter().any(|n| n.contains(setting)), "{setting} {query}: {notes:?}");
            }
        }
    });
}
