//! How connections are made: one place for every lane.

use std::time::Duration;

use distlock_core::Error;
use distlock_sql::Opens;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::trouble::refusal;

/// Makes connections.
pub(crate) struct Door {
    pub(crate) to: PgConnectOptions,
    setup: String,
}

impl Door {
    /// Connections whose statements the server itself ends before the caller gives up: what was
    /// given up would otherwise be done all the same, after a wait for a row.
    pub(crate) fn new(to: PgConnectOptions, timeout: Duration) -> Self {
        let most = timeout.mul_f64(0.8).as_millis().max(50);
        // The functions count on seeing what others committed while they waited for a row. A grant
        // must be on disk before it is told, whatever the database's default is.
        let setup = format!(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET statement_timeout = {most}; \
             SELECT set_config('synchronous_commit', 'on', false) \
               WHERE current_setting('synchronous_commit') = 'off'"
        );
        Self { to, setup }
    }

    /// One ready for use.
    ///
    /// # Errors
    /// Whatever keeps it from coming about.
    pub(crate) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut conn = PgConnection::connect_with(&self.to).await?;
        sqlx::raw_sql(AssertSqlSafe(self.setup.as_str())).execute(&mut conn).await?;
        Ok(conn)
    }
}

impl Opens for Door {
    type Conn = PgConnection;

    async fn open(&self) -> Result<PgConnection, Error> {
        self.connect().await.map_err(refusal)
    }

    async fn close(&self, conn: PgConnection) {
        let _ = conn.close().await;
    }
}
