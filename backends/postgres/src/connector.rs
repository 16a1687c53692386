//! How connections are made: one place for every worker.

use std::time::Duration;

use distlock_core::{Error, Kind};
use distlock_sql::{Dozes, Opens, Trouble};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::errors::{refusal, standby, trouble};

/// What a connection is set to, whatever the defaults of the server, the database or the role
/// are:
/// * only what the server brings along is meant by a name without a schema;
/// * the functions count on seeing what others committed while they waited for a row;
/// * no limit but ours ends a statement, a rest or a transaction (some are newer than the server);
/// * rows are found by their index: our tables are small and often rewritten, and what the planner
///   takes for the better way, and keeps, costs each call up to a fifth;
/// * statements are planned once: one that looks cheaper for some values is otherwise planned at
///   every call, which costs more than it saves;
/// * a client that is gone is noticed within seconds.
///
/// What is as it should be is set all the same: the server's configuration may change later, and a
/// connection follows it in everything that was not set on the connection itself.
pub(crate) const OURS: &str = "SET search_path = pg_catalog, pg_temp; \
    SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SELECT set_config(s, '0', false) \
      FROM unnest(ARRAY['lock_timeout', 'idle_session_timeout', 'transaction_timeout']) s \
      WHERE current_setting(s, true) IS NOT NULL; \
    SELECT set_config(s, 'off', false) FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'jit']) s \
      WHERE current_setting(s, true) IS NOT NULL; \
    SELECT set_config('plan_cache_mode', 'force_generic_plan', false) \
      WHERE current_setting('plan_cache_mode', true) IS NOT NULL; \
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
    SET tcp_user_timeout = 10000";
/// And a grant is on disk before it is told.
const DURABLE: &str = "SELECT set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, false) \
      FROM current_setting('synchronous_commit') s";
/// What a connection must be to be of use.
const FIT: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
    current_setting('server_encoding')";

/// Makes connections.
pub(crate) struct Connector {
    pub(crate) to: PgConnectOptions,
    setup: String,
}

impl Connector {
    /// Connections whose statements the server itself ends before the caller gives up: what was
    /// given up would otherwise be done all the same, after a wait for a row. And one that falls
    /// silent while it makes the tables must not keep others from them.
    pub(crate) fn new(to: PgConnectOptions, timeout: Duration) -> Self {
        let most = timeout.mul_f64(0.8).as_millis().max(50);
        let setup = format!(
            "{OURS}; {DURABLE}; SET statement_timeout = {most}; \
             SET idle_in_transaction_session_timeout = '10s'; {FIT}"
        );
        Self { to, setup }
    }

    /// For the version algorithm, whose connections may be a pooler's: the next transaction may run
    /// on another one, and this one be somebody else's. So nothing is set on it; each statement says
    /// for itself what it needs.
    pub(crate) fn plain(to: PgConnectOptions) -> Self {
        Self { to, setup: FIT.to_owned() }
    }

    /// Connections that a lock is tied to. Statements there may wait for as long as the caller does;
    /// a client that is gone is noticed within seconds, also while its statement waits.
    pub(crate) fn of_sessions(to: PgConnectOptions) -> Self {
        let setup = format!(
            "{OURS}; {DURABLE}; SET statement_timeout = 0; \
             DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '1s', false); \
               EXCEPTION WHEN OTHERS THEN NULL; END $$; {FIT}" // not on every system
        );
        Self { to, setup }
    }

    /// One ready for use.
    ///
    /// # Errors
    /// Whatever keeps it from coming about; [`Kind::Refused`] where nothing can be written.
    pub(crate) async fn connect(&self) -> Result<PgConnection, Error> {
        let mut conn = PgConnection::connect_with(&self.to).await.map_err(refusal)?;
        let setup = sqlx::raw_sql(AssertSqlSafe(self.setup.as_str()));
        let said = setup.fetch_all(&mut conn).await.map_err(refusal)?;
        if let Some(last) = said.last() {
            fits(last)?;
        }
        Ok(conn)
    }
}

fn fits(row: &PgRow) -> Result<(), Error> {
    let yes = |i: usize| row.try_get::<bool, _>(i).map_err(refusal);
    if yes(0)? {
        return Err(standby());
    }
    if yes(1)? {
        return Err(Error::new(Kind::Refused, "transactions are read-only here").with_hint(
            "default_transaction_read_only is on for this server, database or role, and locks are \
             written: ALTER ROLE … SET default_transaction_read_only = off, or name another user",
        ));
    }
    let encoding: String = row.try_get(2).map_err(refusal)?;
    if !matches!(encoding.as_str(), "UTF8" | "SQL_ASCII") {
        let what = format!("a database in {encoding} cannot hold the name of every lock");
        return Err(Error::new(Kind::Refused, what)
            .with_hint("name one made with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"));
    }
    Ok(())
}

impl Opens for Connector {
    type Conn = PgConnection;

    async fn open(&self) -> Result<PgConnection, Error> {
        self.connect().await
    }

    async fn close(&self, conn: PgConnection) {
        let _ = conn.close().await;
    }
}

impl Dozes for Connector {
    async fn doze(&self, conn: &mut PgConnection, nap: Duration) -> Result<(), Trouble> {
        let sleep = format!("SELECT pg_sleep({})", nap.as_secs());
        sqlx::raw_sql(AssertSqlSafe(sleep)).execute(conn).await.map(drop).map_err(trouble)
    }
}
