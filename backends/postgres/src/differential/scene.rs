//! A real server, the functions in held time, and a listener on two channels.

use std::time::Duration;

use distlock_core::{Clock, Event, FullName, Key, LockState, Query, Reply, Rules, Wake};
use distlock_testkit::differential::{Knows, Play, Subject};
use distlock_testkit::servers::{Postgres, Server};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::schema::Schema;
use crate::statements::Statements;
use crate::{fast_path, function_calls, inspect, notification};

/// How long a message may take that was sent.
const SOON: Duration = Duration::from_secs(20);

const VIAS: [&str; 4] =
    ["distlock_0000000000000001", "distlock_0000000000000002", "distlock_f00000000000dead", ""];

pub(super) struct Scene {
    _server: Server,
    conn: PgConnection,
    statements: Statements,
    sink: PgListener,
    /// How many sequences were begun.
    sequences: usize,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let server = Postgres::new().start().await.expect("`cargo xtask setup`");
        let to = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(server.addr().port())
            .username("postgres")
            .database("postgres");
        let mut conn = PgConnection::connect_with(&to).await.unwrap();
        let schema = Schema::new("distlock").unwrap();
        for text in [schema.create(), schema.tables(), schema.functions()] {
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut conn).await.unwrap();
        }
        for clock in ["now_us", "asked_us"] {
            let held = format!(
                "CREATE OR REPLACE FUNCTION distlock.{clock}() RETURNS bigint LANGUAGE sql \
                 VOLATILE AS $$ SELECT current_setting('distlock.now')::bigint $$"
            );
            conn.execute(AssertSqlSafe(held)).await.unwrap();
        }
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(to);
        let mut sink = PgListener::connect_with(&pool).await.unwrap();
        for (channel, key) in [(VIAS[0], 1_i64), (VIAS[1], 2)] {
            sink.listen(channel).await.unwrap();
            let alive = sqlx::query("SELECT pg_advisory_lock($1)").bind(key);
            sink.execute(alive).await.unwrap();
        }
        Self { _server: server, conn, statements: Statements::new(&schema), sink, sequences: 0 }
    }

    async fn run(&mut self, statements: impl Into<String>) {
        self.conn.execute(AssertSqlSafe(statements.into())).await.unwrap();
    }
}

impl Subject for Scene {
    const VIAS: [&'static str; 4] = VIAS;
    const KNOWS: Knows = Knows::Always;
    const SHOWS_SPENT: bool = false;

    fn rules() -> Rules {
        // As many as the function `spend` remembers: calls are hardly ever delivered twice.
        Rules { released_cap: 8, ..Rules::default() }
    }

    async fn clear(&mut self) -> u64 {
        self.sequences += 1;
        for table in ["lock", "waiter", "spent"] {
            self.run(format!("DELETE FROM distlock.{table}")).await;
        }
        Clock::system().wall_micros()
    }

    async fn play(
        &mut self,
        now: u64,
        _trusted: bool,
        play: &Play,
        locks: &[FullName],
    ) -> (Vec<Reply>, Vec<LockState>) {
        self.run(format!("SET distlock.now = {now}")).await;
        // Both ways have to give the same answers: in most sequences the short one is tried first.
        let short = !self.sequences.is_multiple_of(4);
        let (conn, sql) = (&mut self.conn, &self.statements);
        let replies = match play {
            Play::Acquire { ask, wait, via } => {
                let told = wait.is_some().then_some(*via);
                let mut shortly = None;
                if short && fast_path::fits(ask) {
                    shortly = fast_path::take(conn, sql, ask, via).await.unwrap();
                }
                if short && shortly.is_none() {
                    shortly = fast_path::confirm(conn, sql, ask, told).await.unwrap();
                }
                match shortly {
                    Some(reply) => Ok(vec![reply]),
                    None => {
                        function_calls::acquire(conn, sql, ask, *wait, via).await.map(|r| vec![r])
                    }
                }
            }
            Play::Heartbeat { due, via } => function_calls::heartbeat(conn, sql, due, via).await,
            Play::Renew { due } => function_calls::renew(conn, sql, due).await,
            Play::Release { key } => {
                match short && fast_path::give(conn, sql, key).await.unwrap() {
                    true => Ok(vec![Reply::Released]),
                    false => function_calls::release(conn, sql, key).await.map(|(r, _)| vec![r]),
                }
            }
            Play::Cancel { key } => function_calls::cancel(conn, sql, key).await.map(|r| vec![r]),
            Play::Force { lock, token, how } => {
                function_calls::force(conn, sql, lock, *token, *how).await.map(|r| vec![r])
            }
        };
        let mut states = Vec::new();
        for lock in locks {
            let seen = inspect::states(conn, sql, &Query::Name(lock.clone()), true).await.unwrap();
            states.push(seen.into_iter().next().map(|(_, state, _)| state).unwrap_or_default());
        }
        (replies.unwrap(), states)
    }

    async fn heard(&mut self) -> Vec<(u8, Key)> {
        for channel in &VIAS[..2] {
            self.run(format!("NOTIFY {channel}, 'end'")).await;
        }
        let (mut told, mut ends) = (Vec::new(), 0);
        while ends < 2 {
            let next = Clock::system().timeout(SOON, self.sink.recv()).await;
            match notification::parse(next.expect("a message soon").unwrap().payload()) {
                Some((lock, wake)) => told.push(match wake {
                    Wake::Turn(req) => (b't', Key { lock, req }),
                    Wake::Event(Event::Contended(key)) => (b'c', key),
                    Wake::Event(Event::Lost(key, _)) => (b'x', key),
                    other => panic!("{other:?}"),
                }),
                None => ends += 1,
            }
        }
        told
    }
}
