//! Statements on a connection that is driven where ours is, on the library's thread: two
//! autocommitted updates of one row, and the lock functions that the servers have of their own.

use std::sync::Arc;
use std::time::Duration;

use distlock::Error;
use distlock::backend::Clock;
use distlock_sql::{ConnectionWorker, Opens, Trouble};
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockKey};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection};

use super::fail;

const BOUND: Duration = Duration::from_secs(10);

pub(crate) struct MySql(String);
pub(crate) struct Postgres(String);

impl Opens for MySql {
    type Conn = MySqlConnection;
    async fn open(&self) -> Result<MySqlConnection, Error> {
        MySqlConnection::connect(&self.0).await.map_err(fail)
    }
    async fn close(&self, conn: MySqlConnection) {
        let _ = conn.close().await;
    }
}

impl Opens for Postgres {
    type Conn = PgConnection;
    async fn open(&self) -> Result<PgConnection, Error> {
        PgConnection::connect(&self.0).await.map_err(fail)
    }
    async fn close(&self, conn: PgConnection) {
        let _ = conn.close().await;
    }
}

/// A server and one connection to it.
#[derive(Clone)]
pub(crate) enum Sql {
    MySql(Arc<ConnectionWorker<MySql>>),
    Postgres(Arc<ConnectionWorker<Postgres>>),
}

fn number(name: usize) -> i64 {
    i64::try_from(name).unwrap_or(0)
}

fn broken(e: sqlx::Error) -> Trouble {
    Trouble::answered(fail(e))
}

impl Sql {
    /// Connects, and makes a row a name.
    pub(crate) async fn mysql(url: &str, names: usize) -> Result<Self, Error> {
        let new = Self::mysql_again(url);
        let Self::MySql(lane) = &new else { return Ok(new) };
        lane.call(move |conn| {
            Box::pin(async move {
                let table =
                    "CREATE TABLE raw_row (name INT PRIMARY KEY, owner VARCHAR(64) NOT NULL,
                             token BIGINT NOT NULL) ENGINE=InnoDB";
                conn.execute(table).await.map_err(broken)?;
                for name in 0..names {
                    let row = sqlx::query("INSERT INTO raw_row VALUES (?, '', 0)");
                    row.bind(number(name)).execute(&mut *conn).await.map_err(broken)?;
                }
                Ok(())
            })
        })
        .await?;
        Ok(new)
    }

    /// Connects, and makes a row a name.
    pub(crate) async fn postgres(url: &str, names: usize) -> Result<Self, Error> {
        let new = Self::postgres_again(url);
        let Self::Postgres(lane) = &new else { return Ok(new) };
        lane.call(move |conn| {
            Box::pin(async move {
                let table =
                    "CREATE TABLE IF NOT EXISTS raw_row (name INT PRIMARY KEY, owner TEXT NOT NULL,
                             token BIGINT NOT NULL) WITH (fillfactor = 50)";
                conn.execute(table).await.map_err(broken)?;
                for name in 0..names {
                    let row = sqlx::query(
                        "INSERT INTO raw_row VALUES ($1, '', 0) ON CONFLICT DO NOTHING",
                    );
                    row.bind(number(name)).execute(&mut *conn).await.map_err(broken)?;
                }
                Ok(())
            })
        })
        .await?;
        Ok(new)
    }

    /// Another connection to the same server.
    pub(crate) fn mysql_again(url: &str) -> Self {
        let opens = Arc::new(MySql(url.to_owned()));
        Self::MySql(Arc::new(ConnectionWorker::new(opens, Clock::system(), BOUND, 1)))
    }

    /// Another connection to the same server.
    pub(crate) fn postgres_again(url: &str) -> Self {
        let opens = Arc::new(Postgres(url.to_owned()));
        Self::Postgres(Arc::new(ConnectionWorker::new(opens, Clock::system(), BOUND, 1)))
    }

    /// One update, one commit.
    pub(crate) async fn update(&self, name: usize) {
        let done = match self {
            Self::MySql(lane) => {
                lane.call(move |conn| {
                    Box::pin(async move {
                        let sql = "UPDATE raw_row SET owner = 'somebody', token = token + 1
                                   WHERE name = ?";
                        let done = sqlx::query(sql).bind(number(name)).execute(conn).await;
                        done.map(drop).map_err(broken)
                    })
                })
                .await
            }
            Self::Postgres(lane) => {
                lane.call(move |conn| {
                    Box::pin(async move {
                        let sql = "UPDATE raw_row SET owner = 'somebody', token = token + 1
                                   WHERE name = $1";
                        let done = sqlx::query(sql).bind(number(name)).execute(conn).await;
                        done.map(drop).map_err(broken)
                    })
                })
                .await
            }
        };
        debug_assert!(done.is_ok());
    }

    /// The server's own lock, taken and given back: nothing is written, and it ends with the
    /// connection.
    pub(crate) async fn own_lock(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        match self {
            Self::MySql(lane) => {
                for sql in ["SELECT GET_LOCK(?, 10)", "SELECT RELEASE_LOCK(?)"] {
                    let name = name.clone();
                    lane.call(move |conn| {
                        let name = name.clone();
                        Box::pin(async move {
                            let row = sqlx::query(sql).bind(name).fetch_one(conn).await;
                            row.map(drop).map_err(broken)
                        })
                    })
                    .await?;
                }
                Ok(())
            }
            Self::Postgres(lane) => {
                for sql in [
                    "SELECT pg_advisory_lock(hashtext($1))",
                    "SELECT pg_advisory_unlock(hashtext($1))",
                ] {
                    let name = name.clone();
                    lane.call(move |conn| {
                        let name = name.clone();
                        Box::pin(async move {
                            let row = sqlx::query(sql).bind(name).fetch_one(conn).await;
                            row.map(drop).map_err(broken)
                        })
                    })
                    .await?;
                }
                Ok(())
            }
        }
    }

    /// What sqlx makes of PostgreSQL's own lock. It has nothing for MySQL.
    pub(crate) async fn sqlx_lock(&self, name: &str) -> Result<(), Error> {
        let Self::Postgres(lane) = self else { return Ok(()) };
        let key = PgAdvisoryLock::new(name).key().clone();
        lane.call(move |conn| {
            let key: PgAdvisoryLockKey = key.clone();
            Box::pin(async move {
                let guard = PgAdvisoryLock::with_key(key).acquire(conn).await;
                guard.map_err(broken)?.release_now().await.map(drop).map_err(broken)
            })
        })
        .await
    }
}
