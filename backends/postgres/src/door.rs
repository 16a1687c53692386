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

    /// Connections that a lock is tied to. Statements there may wait for as long as the caller does;
    /// a client that is gone is noticed within seconds, also while its statement waits.
    pub(crate) fn of_sessions(to: PgConnectOptions) -> Self {
        let setup = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET statement_timeout = 0; SET tcp_keepalives_idle = 5; \
             SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
             SET tcp_user_timeout = 10000; \
             SELECT set_config('synchronous_commit', 'on', false) \
               WHERE current_setting('synchronous_commit') = 'off'; \
             DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '1s', false); \
               EXCEPTION WHEN OTHERS THEN NULL; END $$"; // not on every system
        Self { to, setup: setup.to_owned() }
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
