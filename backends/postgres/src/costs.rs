//! Tests of what each statement reads: rows and index entries as the server counts them, not time.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::Pulse;
use distlock_core::{
    Ask, FullName, Key, Label, Mode, Name, Namespace, Owner, Patience, Query, Reply, ReqId,
};
use distlock_testkit::servers::{Postgres, Server};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Executor, PgConnection};

use crate::connector::Connector;
use crate::schema::Schema;
use crate::statements::Statements;
use crate::{cas_store, function_calls, inspect};

/// A server with the tables, and a connection as the stores have it.
struct Bench {
    _server: Server,
    conn: PgConnection,
    sql: Statements,
    before: i64,
}

impl Bench {
    async fn new(connector: fn(PgConnectOptions) -> Connector) -> Self {
        let server = Postgres::new().set("autovacuum", "off").start().await.unwrap();
        let to = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(server.addr().port())
            .username("postgres")
            .database("postgres");
        let mut conn = connector(to).connect().await.unwrap();
        let schema = Schema::new("distlock").unwrap();
        for text in [schema.create(), schema.tables(), schema.functions()] {
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut conn).await.unwrap();
        }
        Self { _server: server, conn, sql: Statements::new(&schema), before: 0 }
    }

    async fn run(&mut self, statements: impl Into<String>) {
        self.conn.execute(AssertSqlSafe(statements.into())).await.unwrap();
    }

    /// This many locks that were not used for a while, of one namespace.
    async fn fill(&mut self, rows: u32) {
        self.run(format!(
            "INSERT INTO distlock.lock (space, name, hi, kept_until) \
             SELECT '', 'old-' || i, 1, distlock.now_us() + 90000000000 FROM generate_series(1, {rows}) i"
        ))
        .await;
    }

    /// Starts counting what is read of a table; the server adds it up while a transaction lasts.
    async fn count(&mut self, table: &str) {
        self.run("BEGIN").await;
        self.before = self.counter(table).await;
    }

    /// How many rows of the table and entries of its indexes were read since.
    async fn read(&mut self, table: &str) -> i64 {
        let read = self.counter(table).await - self.before;
        self.run("ROLLBACK").await;
        read
    }

    async fn counter(&mut self, table: &str) -> i64 {
        let read = "SELECT (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) \
            FROM pg_index i WHERE i.indrelid = c.oid)::bigint + pg_stat_get_xact_tuples_returned(c.oid) \
            FROM pg_class c WHERE c.oid = $1::regclass";
        sqlx::query_scalar(read).bind(table).fetch_one(&mut self.conn).await.unwrap()
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn full(name: &str) -> FullName {
    FullName { space: Namespace::default(), name: Name::new(name).unwrap() }
}

fn ask(name: &str) -> Ask {
    Ask {
        lock: full(name),
        req: ReqId::random(),
        owner: Owner::named("somebody").unwrap(),
        mode: Mode::Exclusive,
        ttl: 60 * SECOND,
        patience: Patience::Never,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new(""),
        block: NonZeroU32::MIN,
    }
}

fn queue(to: PgConnectOptions) -> Connector {
    Connector::new(to, 60 * SECOND)
}

#[tokio::test]
async fn a_new_name_reads_no_rows_of_others() {
    let mut bench = Bench::new(queue).await;
    bench.fill(3000).await;
    bench.count("distlock.lock").await;
    function_calls::acquire(&mut bench.conn, &bench.sql, &ask("new"), None, "").await.unwrap();
    let read = bench.read("distlock.lock").await;
    assert!(read < 20, "{read} rows read for a name that nobody had used");
    // What is over goes all the same, a few at a time.
    bench.run("UPDATE distlock.lock SET kept_until = 1 WHERE name < 'old-2'").await;
    bench.count("distlock.lock").await;
    function_calls::acquire(&mut bench.conn, &bench.sql, &ask("new"), None, "").await.unwrap();
    let left = "SELECT count(*) FROM distlock.lock WHERE kept_until = 1";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&mut bench.conn).await.unwrap();
    assert_eq!(left, 1111 - 8);
    bench.run("ROLLBACK").await;
}

#[tokio::test]
async fn a_listing_reads_its_prefix_alone() {
    let mut bench = Bench::new(queue).await;
    bench.fill(3000).await;
    function_calls::acquire(&mut bench.conn, &bench.sql, &ask("new/1"), None, "").await.unwrap();
    for query in [
        Query::Name(full("new/1")),
        Query::Prefix {
            space: Namespace::default(),
            prefix: "new/".to_owned(),
            after: None,
            limit: 10,
        },
    ] {
        bench.count("distlock.lock").await;
        let found = inspect::inspect(&mut bench.conn, &bench.sql, &query).await.unwrap();
        assert_eq!(found.len(), 1);
        let read = bench.read("distlock.lock").await;
        assert!(read < 20, "{read} rows read for {query:?}");
    }
}

fn waiter(i: u32) -> ReqId {
    ReqId::from_bytes(u128::from(i).to_be_bytes())
}

/// A held lock "a", and this many waiters behind it: number 1 is the first. Written down as they are,
/// not joined.
async fn long_queue(waiters: u32) -> (Bench, Key) {
    let mut bench = Bench::new(queue).await;
    let ask = ask("a");
    function_calls::acquire(&mut bench.conn, &bench.sql, &ask, None, "").await.unwrap();
    bench
        .run(format!(
            "INSERT INTO distlock.waiter SELECT l.id, decode(lpad(to_hex(i), 32, '0'), 'hex'), i, \
             distlock.now_us() + 600000000, false, 'o' || i, 0, 1000000, 0, 0, '', 1, '' \
             FROM distlock.lock l, generate_series(1, {waiters}) i; \
             UPDATE distlock.lock SET queued = {waiters}, latest = {waiters}, \
             soonest = distlock.now_us() + 600000000; ANALYZE distlock.waiter"
        ))
        .await;
    (bench, Key { lock: full("a"), req: ask.req })
}

/// Each waiter is read a few times, however many wait for the same lock. Positions are counted up to
/// a thousand.
#[tokio::test]
async fn a_heartbeat_of_many_waiters_of_one_lock_is_no_square() {
    const WAITERS: u32 = 6_000;
    let (mut bench, _) = long_queue(WAITERS).await;
    for (first, ahead) in [(1, 0), (801, 800), (5_801, 1024)] {
        let waiting: Vec<(Key, Duration)> = (first..first + 200)
            .map(|i| (Key { lock: full("a"), req: waiter(i) }, SECOND))
            .collect();
        bench.count("distlock.waiter").await;
        let told =
            function_calls::heartbeat(&mut bench.conn, &bench.sql, &waiting, "").await.unwrap();
        let read = bench.read("distlock.waiter").await;
        assert!(read < 2_000, "{read} rows read for 200 of {WAITERS} waiters");
        for (i, pulse) in (0..).zip(told) {
            let Reply::Pulse(Pulse::Queued { ahead: told, .. }) = pulse else {
                panic!("{pulse:?}")
            };
            assert_eq!(told, (ahead + i).min(1024), "number {i} of those from {first} on");
        }
    }
}

/// To join a long queue, to ask again from its end, and to hand the lock to its head.
#[tokio::test]
async fn a_move_reads_no_more_of_a_long_queue() {
    let (mut bench, holder) = long_queue(6_000).await;
    bench.count("distlock.waiter").await;
    let joins = Ask { owner: Owner::named("another").unwrap(), ..ask("a") };
    let wait = Some(300 * SECOND);
    for ahead in [6_000, 1024] {
        let (conn, sql) = (&mut bench.conn, &bench.sql);
        let told = function_calls::acquire(conn, sql, &joins, wait, "").await.unwrap();
        assert!(matches!(told, Reply::Waiting { ahead: a, .. } if a == ahead), "{told:?}");
    }
    let (conn, sql) = (&mut bench.conn, &bench.sql);
    let (reply, promoted) = function_calls::release(conn, sql, &holder).await.unwrap();
    assert!(reply == Reply::Released && promoted, "{reply:?}");
    let head = Ask { req: waiter(1), owner: Owner::named("o1").unwrap(), ..ask("a") };
    let told = function_calls::acquire(conn, sql, &head, wait, "").await.unwrap();
    assert!(matches!(told, Reply::Granted { waiters: 6_000, .. }), "{told:?}");
    let read = bench.read("distlock.waiter").await;
    assert!(read < 1_200, "{read} rows read of a queue of 6,000");
}

/// As the planner likes, behind a pooler: also where it knows nothing of the table.
#[tokio::test]
async fn a_move_of_the_version_algorithm_reads_its_own_row() {
    let mut bench = Bench::new(Connector::plain).await;
    bench
        .run(
            "INSERT INTO distlock.state SELECT '', 'old-' || i, i, repeat('x', 300), \
             distlock.now_us() FROM generate_series(1, 3000) i",
        )
        .await;
    let sql = cas_store::Statements::new(&Schema::new("distlock").unwrap());
    let mut after = Default::default();
    for round in 0..8 {
        bench.count("distlock.state").await;
        let (rows, _) = cas_store::read(&mut bench.conn, &sql, &[full("old-7")]).await.unwrap();
        assert!(rows[0].is_some());
        let read = bench.read("distlock.state").await;
        assert!(read < 20, "{read} rows read in round {round}");
        bench.count("distlock.state").await;
        after = cas_store::sweep(&mut bench.conn, &sql, &after).await.unwrap();
        let read = bench.read("distlock.state").await;
        assert!(read < 5 * 200, "{read} rows read by a sweep of 200 in round {round}");
    }
}
