//! The tables.

use distlock_core::{Error, Kind};
use distlock_sql::Trouble;
use sqlx::MySqlConnection;

use crate::errors::{self, NO_TABLE, calling};
use crate::options::checked_prefix;
use crate::sql::{execute, number, run};

/// The layout written here.
const LAYOUT: u64 = 1;

/// The indexes of the table of waiters that came later, each on a column of a lock's queue.
const INDEXES: [(&str, &str); 2] = [("owners", "owner"), ("sizes", "permits")];

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
///
/// # Errors
/// [`Kind::Usage`] for an invalid prefix.
pub fn schema(prefix: &str) -> Result<String, Error> {
    let tables = Tables::new(checked_prefix(prefix)?);
    Ok(tables.create().into_iter().map(|s| s + ";\n").collect())
}

/// Makes the tables if they are missing, and refuses those of a newer layout. Looks before it
/// makes: a `CREATE` waits for all readers of the table, and needs a right that many lack.
pub(crate) async fn ready(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Trouble> {
    if layout(conn, tables).await?.is_some() {
        return complete(conn, tables).await;
    }
    for statement in tables.create() {
        execute(conn, statement).await?;
    }
    match layout(conn, tables).await? {
        Some(()) => Ok(()),
        None => {
            Err(Trouble::answered(Error::new(Kind::Layout, "the table of the layout is empty")))
        }
    }
}

/// Whether the tables are there; refuses those of a newer layout.
pub(crate) async fn layout(
    conn: &mut MySqlConnection,
    tables: &Tables,
) -> Result<Option<()>, Trouble> {
    let look = format!("SELECT layout FROM {} WHERE one = 1", tables.meta);
    let seen = match run(conn, look).await {
        Err(e) if errors::number(&e) == Some(NO_TABLE) => None,
        Err(e) => return Err(calling(e)),
        Ok(given) => given.into_iter().next().and_then(|g| g.rows.into_iter().next()),
    };
    let Some(seen) = seen else { return Ok(None) };
    match number(&seen, "layout").map_err(calling)? {
        LAYOUT => Ok(Some(())),
        newer => Err(Trouble::answered(
            Error::new(Kind::Layout, format!("the tables are of layout {newer}, not {LAYOUT}"))
                .with_hint("use the newest distlock everywhere, or another ?prefix="),
        )),
    }
}

/// Adds the indexes that tables of an earlier version lack. A user that may not, or finds the table
/// in use for longer than a second, goes on without them: only the cost of a long queue grows.
async fn complete(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), Trouble> {
    let wait = &tables.wait;
    // Of a table that this user may not read nothing is seen, and nothing is done.
    let look = format!(
        "SELECT COUNT(DISTINCT INDEX_NAME) AS known, \
         COALESCE(SUM(INDEX_NAME='owners'),0)>0 AS owners, \
         COALESCE(SUM(INDEX_NAME='sizes'),0)>0 AS sizes FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{}'",
        wait.trim_matches('`')
    );
    let given = run(conn, look).await.map_err(calling)?;
    let Some(seen) = given.first().and_then(|g| g.rows.first()) else { return Ok(()) };
    let has = |column| number(seen, column).map(|n| n > 0).map_err(calling);
    if !has("known")? {
        return Ok(());
    }
    let mut missing = Vec::new();
    for (name, column) in INDEXES {
        if !has(name)? {
            missing.push(format!("ADD KEY {name} (space, name, {column})"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let add = format!("ALTER TABLE {wait} {}, ALGORITHM=INPLACE, LOCK=NONE", missing.join(", "));
    let bound = |wait: &str| format!("SET SESSION lock_wait_timeout={wait}");
    run(conn, bound("1")).await.map_err(calling)?;
    if let Err(e) = run(conn, add).await {
        let trouble = calling(e);
        if trouble.broken {
            return Err(trouble);
        }
        tracing::info!(error = %trouble.error, "the table of waiters stays without an index");
    }
    run(conn, bound("DEFAULT")).await.map(drop).map_err(calling)
}
