//! A grant is on disk before it is told, whatever anybody sets meanwhile. The server writes its log
//! by itself only every ten seconds here, so that a commit nobody waited for is lost by a crash.

use distlock_testkit::servers::{Postgres, Server};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection, Row};

use crate::kit::{LONG, Named, client, client_at, run, sql, take_for, until};

pub(crate) const TRIALS: &[Named] = &[
    ("s34_a_grant_behind_a_pooler_is_on_disk_whatever_others_set_there", pooled),
    ("a_grant_is_on_disk_though_the_server_stops_waiting_for_it", reloaded),
];

/// Each algorithm, and the table that has the tokens it gave out.
const TOKENS: [(&str, &str); 4] = [
    ("algorithm=queue", "SELECT max(hi) FROM distlock.lock WHERE name = 'a'"),
    ("algorithm=version", "SELECT max(state::json ->> 'hi') FROM distlock.state WHERE name = 'a'"),
    ("algorithm=advisory", "SELECT max(token) FROM distlock.held WHERE kind = 'advisory'"),
    ("algorithm=row-lock", "SELECT max(token) FROM distlock.held WHERE kind = 'row-lock'"),
];

async fn lazy() -> Server {
    Postgres::new().set("wal_writer_delay", "10s").start().await.unwrap()
}

/// The server forgets what is not on disk.
async fn crash(server: &Server) {
    server.kill();
    server.again().await.unwrap();
}

/// Behind a pooler in transaction mode the connection is somebody else's before and after.
fn pooled() {
    run(async {
        let server = lazy().await;
        let pooler = Server::start(Postgres::pooler(&server, "transaction")).await.unwrap();
        let (query, tokens) = TOKENS[1];
        let locks = client_at(pooler.addr(), query).await;
        let other = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(pooler.addr().port())
            .username("postgres")
            .database("postgres")
            .extra_float_digits(None);
        // The one connection that the pool has open: whoever comes next has it.
        let mut other = PgConnection::connect_with(&other).await.unwrap();
        other.execute("SET synchronous_commit = off").await.unwrap();
        let held = take_for(&locks, "a", LONG).await;
        crash(&server).await;
        assert_eq!(sql(&server, tokens).await, held.token().to_string());
    });
}

/// What a connection took over from the server's configuration changes with it.
fn reloaded() {
    run(async {
        for (query, tokens) in TOKENS {
            let server = lazy().await;
            let locks = client(&server, query).await;
            let other = format!("postgres://postgres@{}/postgres", server.addr());
            let mut other = PgConnection::connect(&other).await.unwrap();
            // The connection of the lock itself is there, too.
            crate::kit::give_back(take_for(&locks, "a", LONG).await).await;
            sql(&server, "ALTER SYSTEM SET synchronous_commit = off").await;
            sql(&server, "SELECT pg_reload_conf()").await;
            until("the others know it", async || {
                let set = sqlx::raw_sql("SHOW synchronous_commit").fetch_one(&mut other).await;
                set.unwrap().get::<String, _>(0) == "off"
            })
            .await;
            let held = take_for(&locks, "a", LONG).await;
            crash(&server).await;
            assert_eq!(sql(&server, tokens).await, held.token().to_string(), "{query}");
        }
    });
}
