//! The stock and the sales, in a database.

use distlock::Token;
use distlock::fence::{Column, Error, mysql, postgres};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool};

pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// A shop, whichever database it keeps its books in.
#[derive(Clone)]
pub(crate) enum Shop {
    Mysql(MySqlPool),
    Postgres(PgPool),
}

/// The same statements for both.
macro_rules! on {
    ($shop:expr, |$db:ident, $pool:ident| $body:expr) => {
        match $shop {
            Shop::Mysql($pool) => {
                #[allow(unused_imports)]
                use mysql as $db;
                $body
            }
            Shop::Postgres($pool) => {
                #[allow(unused_imports)]
                use postgres as $db;
                $body
            }
        }
    };
}

fn store(e: sqlx::Error) -> Error {
    Error::Store(Box::new(e))
}

const SALE: &str = "INSERT INTO teapots_sold (item) VALUES (1)";

impl Shop {
    pub(crate) async fn open(url: &str) -> Result<Self, Trouble> {
        Ok(if url.starts_with("postgres") {
            Shop::Postgres(PgPool::connect(url).await?)
        } else {
            Shop::Mysql(MySqlPool::connect(url).await?)
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Shop::Mysql(_) => "MariaDB",
            Shop::Postgres(_) => "PostgreSQL",
        }
    }

    /// Fills the shelf.
    pub(crate) async fn prepare(&self, items: i64) -> Result<(), Trouble> {
        on!(self, |db, pool| {
            db::install(pool).await?;
            for statement in [
                "DROP TABLE IF EXISTS teapots",
                "DROP TABLE IF EXISTS teapots_sold",
                "CREATE TABLE teapots (id INT PRIMARY KEY, left_over BIGINT, version BIGINT)",
                "CREATE TABLE teapots_sold (item INT)",
            ] {
                sqlx::query(statement).execute(pool).await?;
            }
            let fill = format!("INSERT INTO teapots VALUES (1, {items}, 0)");
            sqlx::query(AssertSqlSafe(fill)).execute(pool).await?;
        });
        Ok(())
    }

    /// How many there are, and in which version of the row.
    pub(crate) async fn look(&self) -> Result<(i64, i64), Error> {
        let look = "SELECT left_over, version FROM teapots WHERE id = 1";
        on!(self, |db, pool| sqlx::query_as(look).fetch_one(pool).await.map_err(store))
    }

    /// How many were sold.
    pub(crate) async fn sold(&self) -> Result<i64, Trouble> {
        let count = "SELECT COUNT(*) FROM teapots_sold";
        let (n,): (i64,) = on!(self, |db, pool| sqlx::query_as(count).fetch_one(pool).await?);
        Ok(n)
    }

    /// Writes what is left and a sale, in one transaction; behind a fence if there is a token.
    pub(crate) async fn sell_down_to(&self, left: i64, token: Option<Token>) -> Result<(), Error> {
        on!(self, |db, pool| {
            let mut tx = pool.begin().await.map_err(store)?;
            if let Some(token) = token {
                db::fence(&mut tx, "teapots", token).await?;
            }
            let write = format!("UPDATE teapots SET left_over = {left} WHERE id = 1");
            sqlx::query(AssertSqlSafe(write)).execute(&mut *tx).await.map_err(store)?;
            sqlx::query(SALE).execute(&mut *tx).await.map_err(store)?;
            tx.commit().await.map_err(store)
        })
    }

    /// The same, if the row is still of this version: whether it was.
    pub(crate) async fn sell_if_version(&self, left: i64, version: i64) -> Result<bool, Error> {
        let write = format!(
            "UPDATE teapots SET left_over = {left}, version = version + 1
             WHERE id = 1 AND version = {version}"
        );
        on!(self, |db, pool| {
            let mut tx = pool.begin().await.map_err(store)?;
            let wrote = sqlx::query(AssertSqlSafe(write)).execute(&mut *tx).await.map_err(store)?;
            if wrote.rows_affected() == 0 {
                return Ok(false);
            }
            sqlx::query(SALE).execute(&mut *tx).await.map_err(store)?;
            tx.commit().await.map_err(store)?;
            Ok(true)
        })
    }

    /// Takes one if there is one: whether there was.
    pub(crate) async fn sell_if_there(&self) -> Result<bool, Error> {
        let stock = Column::new("teapots", "id", "left_over")?;
        on!(self, |db, pool| {
            let mut tx = pool.begin().await.map_err(store)?;
            if !db::take(&mut tx, &stock, 1, 1).await? {
                return Ok(false);
            }
            sqlx::query(SALE).execute(&mut *tx).await.map_err(store)?;
            tx.commit().await.map_err(store)?;
            Ok(true)
        })
    }
}
