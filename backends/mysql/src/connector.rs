//! How connections are made and what they are set to.

use std::time::Duration;

use distlock_core::{Error, Kind};
use distlock_sql::{Dozes, Opens, Trouble};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Connection, MySqlConnection};

use crate::errors::{calling, opening};
use crate::sql::run;

/// What every connection is set to, whatever the server's defaults are. `sql_mode` can change what
/// an UPDATE means (MariaDB's `SIMULTANEOUS_ASSIGNMENT`) and whether a value too long is an error;
/// with another `completion_type` a COMMIT opens the next transaction, or ends the connection.
/// Limits on statements and silent transactions would end the wake-up connection's sleep and a row
/// lock's hold; they have other names at MySQL, which reads the first comment as one, as MariaDB
/// does the second.
const SETTINGS: &str = "SET SESSION autocommit=1, completion_type=0, \
     group_concat_max_len=16777216, sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     sql_safe_updates=0, sql_select_limit=18446744073709551615\
     /*M!100300 , max_statement_time=0, idle_transaction_timeout=0, \
     idle_write_transaction_timeout=0, idle_readonly_transaction_timeout=0 */\
     /*!50708 , max_execution_time=0 */; \
     SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Opens connections of one kind.
pub(crate) struct Connector {
    to: MySqlConnectOptions,
    /// Taken by `GET_LOCK` for as long as a connection lives: others see by it whether it does.
    sign: Option<String>,
    /// Taken likewise, for the wake-up connection to wait for.
    sleep_lock: Option<String>,
}

impl Connector {
    pub(crate) fn new(to: MySqlConnectOptions, sign: Option<String>) -> Self {
        Self { to, sign, sleep_lock: None }
    }

    /// With another name to be taken.
    pub(crate) fn with_sleep_lock(self, sleep_lock: String) -> Self {
        Self { sleep_lock: Some(sleep_lock), ..self }
    }

    /// Takes a name; the connection that has it gets this many seconds to leave it first.
    async fn take(conn: &mut MySqlConnection, sign: &str, patience: u32) -> Result<(), Error> {
        let get = |wait: u32| format!("SELECT GET_LOCK('{sign}', {wait}) = 1 AS got");
        for (last, wait) in [(false, patience), (true, 1)] {
            let given = run(conn, get(wait)).await.map_err(|e| calling(e).error)?;
            let row = given.first().and_then(|g| g.rows.first());
            let got = row.is_some_and(|r| crate::sql::number(r, "got").unwrap_or(0) == 1);
            if got {
                return Ok(());
            }
            if !last {
                // An earlier connection of ours has not been missed by the server yet. Gone
                // meanwhile is as good.
                let _ = run(conn, format!("KILL CONNECTION IS_USED_LOCK('{sign}')")).await;
            }
        }
        Err(Error::new(Kind::Unreachable, "an earlier connection of this process still lives")
            .with_hint("ask again in a moment"))
    }
}

impl Opens for Connector {
    type Conn = MySqlConnection;

    async fn open(&self) -> Result<MySqlConnection, Error> {
        let mut conn = self.to.connect().await.map_err(opening)?;
        // What renews for everybody is not kept waiting by one row for long.
        let wait = if self.sign.is_some() { 1 } else { 3 };
        let settings = format!("{SETTINGS}; SET SESSION innodb_lock_wait_timeout={wait}");
        run(&mut conn, settings).await.map_err(opening)?;
        if let Some(sign) = &self.sign {
            Self::take(&mut conn, sign, 0).await?;
        }
        if let Some(sleep_lock) = &self.sleep_lock {
            // The wake-up connection may just have got it itself, and lets go of it at once.
            Self::take(&mut conn, sleep_lock, 1).await?;
        }
        Ok(conn)
    }

    async fn close(&self, conn: MySqlConnection) {
        let _ = conn.close().await;
    }
}

impl Dozes for Connector {
    async fn doze(&self, conn: &mut MySqlConnection, nap: Duration) -> Result<(), Trouble> {
        run(conn, format!("DO SLEEP({})", nap.as_secs())).await.map(drop).map_err(calling)
    }
}
