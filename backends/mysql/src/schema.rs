//! The tables.

use distlock_core::{Error, Kind};
use distlock_sql::Trouble;
use sqlx::MySqlConnection;

use crate::sql::{number, run};
use crate::trouble::{self, NO_TABLE, calling};

/// The layout written here.
const LAYOUT: u64 = 1;

/// The names of the tables, quoted.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) meta: String,
    pub(crate) lock: String,
    pub(crate) wait: String,
    pub(crate) news: String,
    pub(crate) version: String,
    pub(crate) row: String,
    pub(crate) held: String,
}

impl Tables {
    /// With a prefix that was checked.
    pub(crate) fn new(prefix: &str) -> Self {
        let name = |what: &str| format!("`{prefix}{what}`");
        Self {
            meta: name("meta"),
            lock: name("lock"),
            wait: name("wait"),
            news: name("news"),
            version: name("version"),
            row: name("row"),
            held: name("held"),
        }
    }

    fn create(&self) -> Vec<String> {
        let Self { meta, lock, wait, news, version, row, held } = self;
        let key = "space VARBINARY(255) NOT NULL,\n  name VARBINARY(255) NOT NULL,\n ";
        let big = "BIGINT UNSIGNED NOT NULL DEFAULT 0";
        let table = |name: &str, columns: String| {
            format!("CREATE TABLE IF NOT EXISTS {name} (\n  {columns}\n) ENGINE=InnoDB")
        };
        vec![
            table(
                meta,
                format!(
                    "one TINYINT NOT NULL PRIMARY KEY,\n  layout INT UNSIGNED NOT NULL,\n  floor {big},\n  \
                     swept_space VARBINARY(255) NOT NULL DEFAULT '',\n  \
                     swept_name VARBINARY(255) NOT NULL DEFAULT ''"
                ),
            ),
            table(
                lock,
                format!(
                    "{key} ver {big},\n  hi {big},\n  nwait INT UNSIGNED NOT NULL DEFAULT 0,\n  \
                     delay_until {big},\n  req BINARY(16) NULL,\n  token {big},\n  \
                     block INT UNSIGNED NOT NULL DEFAULT 0,\n  expires {big},\n  granted {big},\n  \
                     claim BLOB NULL,\n  rest LONGBLOB NULL,\n  \
                     released VARBINARY(512) NOT NULL DEFAULT '',\n  cancelled MEDIUMBLOB NULL,\n  \
                     PRIMARY KEY (space, name)"
                ),
            ),
            table(
                wait,
                format!(
                    "{key} req BINARY(16) NOT NULL,\n  since {big},\n  deadline {big},\n  \
                     deaf TINYINT NOT NULL DEFAULT 0,\n  permits INT UNSIGNED NOT NULL DEFAULT 0,\n  \
                     owner VARBINARY(255) NOT NULL,\n  claim BLOB NOT NULL,\n  \
                     PRIMARY KEY (space, name, req),\n  KEY line (space, name, since),\n  \
                     KEY ends (space, name, deadline),\n  \
                     KEY owners (space, name, owner),\n  KEY sizes (space, name, permits)"
                ),
            ),
            table(
                news,
                format!(
                    "session VARBINARY(64) NOT NULL,\n  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,\n  \
                     kind TINYINT UNSIGNED NOT NULL,\n  {key} req BINARY(16) NOT NULL,\n  at {big},\n  \
                     PRIMARY KEY (session, id),\n  KEY (id)"
                ),
            ),
            table(
                version,
                format!(
                    "{key} version {big},\n  text LONGBLOB NOT NULL,\n  idle_from {big},\n  \
                     PRIMARY KEY (space, name),\n  KEY idle (idle_from)"
                ),
            ),
            table(
                row,
                format!("{key} used {big},\n  PRIMARY KEY (space, name),\n  KEY idle (used)"),
            ),
            table(
                held,
                format!(
                    "{key} req BINARY(16) NOT NULL,\n  token {big},\n  granted {big},\n  \
                     conn {big},\n  claim BLOB NOT NULL,\n  PRIMARY KEY (space, name)"
                ),
            ),
            format!("INSERT IGNORE INTO {meta} (one, layout, floor) VALUES (1, {LAYOUT}, 0)"),
        ]
    }
}

/// The statements that make the tables, for people whose programs may not.
#[must_use]
pub fn schema(prefix: &str) -> String {
    Tables::new(prefix).create().into_iter().map(|s| s + ";\n").collect()
}

/// Makes the tables if they are missing, and refuses those of a newer layout. Looks before it
/// makes: a `CREATE` waits for everybody who reads the table, and needs a right that many lack.
pub(crate) async fn ready(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Trouble> {
    let look = format!("SELECT layout FROM {} WHERE one = 1", tables.meta);
    let seen = match run(conn, look.clone()).await {
        Err(e) if trouble::number(&e) == Some(NO_TABLE) => None,
        Err(e) => return Err(calling(e)),
        Ok(given) => given.into_iter().next().and_then(|g| g.rows.into_iter().next()),
    };
    let seen = match seen {
        Some(row) => row,
        None => {
            for statement in tables.create() {
                run(conn, statement).await.map_err(calling)?;
            }
            let given = run(conn, look).await.map_err(calling)?;
            let row = given.into_iter().next().and_then(|g| g.rows.into_iter().next());
            row.ok_or_else(|| {
                Trouble::answered(Error::new(Kind::Layout, "the table of the layout is empty"))
            })?
        }
    };
    match number(&seen, "layout").map_err(calling)? {
        LAYOUT => Ok(()),
        newer => Err(Trouble::answered(
            Error::new(Kind::Layout, format!("the tables are of layout {newer}, not {LAYOUT}"))
                .with_hint("use the newest distlock everywhere, or another ?prefix="),
        )),
    }
}
