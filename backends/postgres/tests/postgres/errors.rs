//! What is wrong is said, with what to do next, and nothing hangs.

use std::collections::BTreeSet;

use distlock_core::{Error, Kind};
use distlock_testkit::servers::{Certs, Imposter, Port, Postgres, Server};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection, Row};

use crate::kit::{
    LONG, Named, client, client_at, connect, give_back, line_of, ms, run, soon, sql, take_for,
    task, url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_wrong_password_and_a_wrong_database_are_told_apart", logins),
    ("who_may_not_create_is_told_what_to_run_and_can_use_what_is_there", rights),
    ("a_standby_is_refused", standby),
    ("tls_is_spoken_verified_and_asked_for", tls),
    ("strangers_and_nobody_end_in_time", strangers),
    ("too_many_connections_are_told", crowded),
    ("a_unix_socket_is_a_way_in", socket),
    ("s34_a_pooler_in_transaction_mode_is_refused_and_in_session_mode_serves", s34),
];

async fn refused(url: &str) -> Error {
    match soon("an answer", connect(url)).await {
        Ok(_) => panic!("{url} was taken"),
        Err(e) => e,
    }
}

/// The same of a server that is there: a busy machine may take longer than a client gives it.
pub(crate) async fn refused_in_time(url: &str) -> Error {
    loop {
        let e = refused(url).await;
        if e.kind() != Kind::Unreachable {
            return e;
        }
    }
}

fn is(e: &Error, kind: Kind, hint: &str) {
    assert_eq!(e.kind(), kind, "{e:?}");
    assert!(e.hint().is_some_and(|h| h.contains(hint)), "{e:?}");
    assert!(!format!("{e:?}").contains("sesame"), "a password was printed: {e:?}");
}

fn logins() {
    run(async {
        let server = Postgres::new().password("open sesame").start().await.unwrap();
        let at = |login: &str, db: &str| format!("postgres://{login}{}/{db}", server.addr());
        is(&refused(&at("postgres:sesame@", "postgres")).await, Kind::Credentials, "user:password");
        is(&refused(&at("nobody:sesame@", "postgres")).await, Kind::Credentials, "user:password");
        let login = "postgres:open%20sesame@";
        is(&refused(&at(login, "elsewhere")).await, Kind::Usage, "DATABASE");
        let locks = connect(&at(login, "postgres")).await.unwrap();
        give_back(take_for(&locks, "a", ms(4000)).await).await;
    });
}

fn rights() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        sql(&server, "CREATE ROLE app LOGIN").await;
        let as_app = |query: &str| format!("postgres://app@{}/postgres?{query}", server.addr());
        is(&refused(&as_app("")).await, Kind::Credentials, "distlock schema postgres");
        // What is printed can be run as it is, and is enough.
        sql(&server, &distlock_postgres::schema("distlock").unwrap()).await;
        is(&refused(&as_app("")).await, Kind::Credentials, "distlock schema postgres");
        let grants = "GRANT USAGE ON SCHEMA distlock TO app; \
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA distlock TO app";
        sql(&server, grants).await;
        for query in ["", "algorithm=version"] {
            let locks = connect(&as_app(query)).await.unwrap();
            give_back(take_for(&locks, "a", ms(4000)).await).await;
            assert!(locks.list("").await.unwrap().is_empty());
        }
        // A schema of one's own is enough as well.
        sql(&server, "CREATE SCHEMA mine AUTHORIZATION app").await;
        let locks = connect(&as_app("schema=mine")).await.unwrap();
        give_back(take_for(&locks, "a", ms(4000)).await).await;
    });
}

fn standby() {
    run(async {
        let primary = Postgres::new().start().await.unwrap();
        let standby = Postgres::new().standby_of(&primary).start().await.unwrap();
        is(&refused(&url(standby.addr(), "")).await, Kind::Refused, "primary");
        // Also one that has the tables already.
        let locks = client(&primary, "").await;
        let held = take_for(&locks, "a", ms(60_000)).await;
        crate::kit::until("the tables are there", async || {
            sql(&standby, "SELECT count(*) FROM pg_tables WHERE schemaname = 'distlock'").await
                != "0"
        })
        .await;
        is(&refused(&url(standby.addr(), "")).await, Kind::Refused, "primary");
        give_back(held).await;
    });
}

fn tls() {
    run(async {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let server = Postgres::new().tls(&certs).unwrap().start().await.unwrap();
        let at = |query: &str| url(server.addr(), query);
        let ca = certs.ca().display().to_string();
        let locks = connect(&at(&format!("sslmode=verify-full&sslrootcert={ca}"))).await.unwrap();
        give_back(take_for(&locks, "a", ms(4000)).await).await;
        connect(&at("sslmode=require")).await.unwrap();
        is(&refused(&at("sslmode=disable")).await, Kind::Credentials, "sslmode=require");
        let other = strange.ca().display().to_string();
        let e = refused(&at(&format!("sslmode=verify-full&sslrootcert={other}"))).await;
        is(&e, Kind::Refused, "sslrootcert");
        let plain = Postgres::new().start().await.unwrap();
        is(&refused(&url(plain.addr(), "sslmode=require")).await, Kind::Refused, "sslmode");
    });
}

fn strangers() {
    run(async {
        let nobody = Port::claim().unwrap();
        is(&refused(&url(nobody.addr(), "timeout=1s")).await, Kind::Unreachable, "runs");
        let silent = Imposter::silent().await.unwrap();
        is(&refused(&url(silent.addr(), "timeout=1s")).await, Kind::Unreachable, "database runs");
        let garbage = Imposter::garbage().await.unwrap();
        let e = refused(&url(garbage.addr(), "timeout=1s")).await;
        assert!(e.hint().is_some(), "{e:?}");
    });
}

fn crowded() {
    run(async {
        let server: Server = Postgres::new()
            .set("max_connections", "5")
            .set("superuser_reserved_connections", "0")
            .set("max_wal_senders", "0")
            .start()
            .await
            .unwrap();
        let first = client(&server, "timeout=2s").await;
        let held = take_for(&first, "a", ms(60_000)).await;
        let e = refused(&url(server.addr(), "timeout=2s")).await;
        is(&e, Kind::Unreachable, "connections");
        give_back(held).await;
    });
}

fn socket() {
    run(async {
        let server = Postgres::new().password("open sesame").start().await.unwrap();
        let dir = Postgres::socket_dir(&server).display().to_string();
        let port = server.addr().port();
        let escaped = dir.replace('/', "%2F");
        for url in [
            format!("postgres://postgres@/postgres?host={dir}&port={port}"),
            format!("postgres://postgres@{escaped}:{port}/postgres"),
        ] {
            let locks = connect(&url).await.unwrap();
            give_back(take_for(&locks, "a", ms(4000)).await).await;
        }
    });
}

/// What somebody else finds set on the connections of a pool, all of them.
async fn settings(pooler: &Server) -> Vec<String> {
    let (host, port) = (pooler.addr().ip().to_string(), pooler.addr().port());
    let to = PgConnectOptions::new_without_pgpass().host(&host).port(port).username("postgres");
    let (mut open, mut seen) = (Vec::new(), BTreeSet::new());
    for _ in 0..8 {
        let to = to.clone().database("postgres").extra_float_digits(None);
        let mut conn = PgConnection::connect_with(&to).await.unwrap();
        // In a transaction, so that each has a connection of its own.
        conn.execute("BEGIN").await.unwrap();
        let text = "SELECT concat_ws(' ', current_setting('search_path'), \
            current_setting('statement_timeout'), current_setting('default_transaction_isolation'), \
            current_setting('idle_in_transaction_session_timeout'))";
        let row = sqlx::raw_sql(text).fetch_one(&mut conn).await.unwrap();
        seen.insert(row.get::<String, _>(0));
        open.push(conn);
    }
    seen.into_iter().collect()
}

fn s34() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        // Tables that are there already change nothing.
        for _ in 0..2 {
            let pooler = Server::start(Postgres::pooler(&server, "transaction")).await.unwrap();
            let before = settings(&pooler).await;
            for query in ["", "algorithm=advisory", "algorithm=row-lock"] {
                let at = url(pooler.addr(), &format!("timeout=3s&{query}"));
                is(&refused_in_time(&at).await, Kind::Refused, "pooler");
                // What others get from that pool is as it was.
                assert_eq!(settings(&pooler).await, before, "{query}");
            }
            let version = url(pooler.addr(), "timeout=3s&algorithm=version");
            if let Err(e) = soon("an answer", connect(&version)).await {
                is(&e, Kind::Refused, "pooler");
            }
            assert_eq!(settings(&pooler).await, before);
            client(&server, "").await.close().await;
        }
        let pooler = Server::start(Postgres::pooler(&server, "session")).await.unwrap();
        let (locks, direct) = (client_at(pooler.addr(), "").await, client(&server, "").await);
        let held = take_for(&direct, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&direct, "a", 1).await;
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}
