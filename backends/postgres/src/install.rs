//! Installs tables and functions when the store opens, or says why it may not.

use distlock_core::{Error, Kind};
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use crate::schema::{CODE, DDL, Schema, TABLES};

/// Asked of the catalogue's tables: what `to_regclass` says may be older than the lock we waited for.
const SCHEMA_THERE: &str =
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = @NAME)";
const LAYOUT_THERE: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = @NAME AND c.relname = 'layout')";

/// Asks whether something of a schema is there: in one message, because nothing stays prepared on a
/// connection that is a pooler's.
async fn is_there(
    conn: &mut PgConnection,
    asked: &str,
    schema: &Schema,
) -> Result<bool, sqlx::Error> {
    let asked = asked.replace("@NAME", &format!("'{}'", schema.name()));
    sqlx::raw_sql(AssertSqlSafe(asked)).fetch_one(conn).await?.try_get(0)
}

/// What is there.
enum There {
    /// Nothing.
    Nothing,
    /// Tables, with functions of this revision.
    Code(i32),
}

/// Sees to it that the tables and functions are there. Many processes may do so at once.
///
/// # Errors
/// The driver's, or in the inner result [`Kind::Layout`] for tables of a newer version.
pub(crate) async fn install(
    conn: &mut PgConnection,
    schema: &Schema,
) -> Result<Result<(), Error>, sqlx::Error> {
    match look(conn, schema).await? {
        Ok(There::Code(code)) if code >= CODE => return Ok(Ok(())),
        Ok(_) => {}
        Err(e) => return Ok(Err(e)),
    }
    // For this transaction alone: nothing of it may stay on a connection that is a pooler's.
    conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let made = make(conn, schema).await;
    let end = if matches!(made, Ok(Ok(()))) { "COMMIT" } else { "ROLLBACK" };
    conn.execute(end).await?;
    made
}

async fn make(conn: &mut PgConnection, schema: &Schema) -> Result<Result<(), Error>, sqlx::Error> {
    let ours = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = 0";
    sqlx::raw_sql(ours).execute(&mut *conn).await?;
    conn.execute(AssertSqlSafe(format!("SELECT pg_advisory_xact_lock({DDL})"))).await?;
    let mut texts = Vec::new();
    match look(conn, schema).await? {
        Err(e) => return Ok(Err(e)),
        Ok(There::Code(code)) if code >= CODE => return Ok(Ok(())),
        Ok(There::Code(_)) => {}
        Ok(There::Nothing) => {
            let there = is_there(conn, SCHEMA_THERE, schema).await?;
            // A user that may not create schemas may have been given one.
            texts.extend((!there).then(|| schema.create()));
            texts.push(schema.tables());
        }
    }
    texts.extend([schema.functions(), schema.mark()]);
    for text in texts {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *conn).await?;
    }
    Ok(Ok(()))
}

/// Whether the tables are there; makes none.
///
/// # Errors
/// As [`install`].
pub(crate) async fn exists(
    conn: &mut PgConnection,
    schema: &Schema,
) -> Result<Result<bool, Error>, sqlx::Error> {
    Ok(look(conn, schema).await?.map(|there| matches!(there, There::Code(_))))
}

async fn look(
    conn: &mut PgConnection,
    schema: &Schema,
) -> Result<Result<There, Error>, sqlx::Error> {
    let table = schema.fill("distlock.layout");
    if !is_there(conn, LAYOUT_THERE, schema).await? {
        return Ok(Ok(There::Nothing));
    }
    let row = sqlx::raw_sql(AssertSqlSafe(format!("SELECT tables, code FROM {table}")))
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else { return Ok(Ok(There::Code(0))) };
    let (tables, code): (i32, i32) = (row.try_get(0)?, row.try_get(1)?);
    Ok(if tables == TABLES { Ok(There::Code(code)) } else { Err(other(tables)) })
}

fn other(tables: i32) -> Error {
    let message = format!("the tables have layout {tables}, and this distlock knows {TABLES}");
    Error::new(Kind::Layout, message).with_hint(
        "bring every client of this database to the same version, or use another ?schema=",
    )
}
