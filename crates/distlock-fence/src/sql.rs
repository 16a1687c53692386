//! What the SQL databases share: the words, and the statements about a user's own rows.

use std::time::{Duration, SystemTime};

use distlock_core::{Name, Token};

use crate::{Error, Stale};

/// The layout of our tables. A row of a newer one is refused.
pub(crate) const LAYOUT: i16 = 1;

/// One column of the rows of one of your tables: which table, which column finds a row, and which
/// holds the number in question. Names are as the database keeps them (PostgreSQL: in lower case,
/// unless they were created in quotes); a table may be `schema.table`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    table: String,
    key: String,
    name: String,
}

impl Column {
    /// Column `name` of `table`, whose rows are found by `key`.
    ///
    /// # Errors
    /// [`Error::Usage`] when one of them is not an SQL name of letters, digits and underscores.
    pub fn new(table: &str, key: &str, name: &str) -> Result<Self, Error> {
        for part in table.split('.').chain([key, name]) {
            check(part)?;
        }
        Ok(Self { table: table.to_owned(), key: key.to_owned(), name: name.to_owned() })
    }

    /// The same column in rows that count their changes in another, an integer.
    ///
    /// # Errors
    /// [`Error::Usage`] when that is not an SQL name.
    pub fn versioned_by(self, version: &str) -> Result<Versioned, Error> {
        check(version)?;
        Ok(Versioned { column: self, version: version.to_owned() })
    }

    pub(crate) fn row(&self, key: impl std::fmt::Display) -> String {
        format!("row {key} in {}", self.table)
    }

    pub(crate) fn missing(&self, key: impl std::fmt::Display) -> Error {
        Error::Missing { row: self.row(key) }
    }

    /// Binds the key. The row stays locked, where rows are.
    pub(crate) fn lock(&self, d: Dialect) -> String {
        let [t, k, c] = self.quoted(d);
        let lock = if d == Dialect::Sqlite { "" } else { " FOR UPDATE" };
        format!("SELECT {} FROM {t} WHERE {k} = {}{lock}", d.integer(&c), d.mark(1))
    }

    /// Binds the value and the key.
    pub(crate) fn put(&self, d: Dialect) -> String {
        let [t, k, c] = self.quoted(d);
        format!("UPDATE {t} SET {c} = {} WHERE {k} = {}", d.mark(1), d.mark(2))
    }

    /// Binds how many, the key, and how many again.
    pub(crate) fn take(&self, d: Dialect) -> String {
        let [t, k, c] = self.quoted(d);
        let [n, id, least] = [1, 2, 3].map(|i| d.mark(i));
        format!("UPDATE {t} SET {c} = {c} - {n} WHERE {k} = {id} AND {c} >= {least}")
    }

    /// Binds the key.
    pub(crate) fn exists(&self, d: Dialect) -> String {
        let [t, k, _] = self.quoted(d);
        format!("SELECT {} FROM {t} WHERE {k} = {}", d.integer("1"), d.mark(1))
    }

    fn quoted(&self, d: Dialect) -> [String; 3] {
        let table: Vec<String> = self.table.split('.').map(|part| d.quote(part)).collect();
        [table.join("."), d.quote(&self.key), d.quote(&self.name)]
    }
}

/// A column in rows that count their changes; see [`Column::versioned_by`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned {
    column: Column,
    version: String,
}

impl Versioned {
    pub(crate) fn column(&self) -> &Column {
        &self.column
    }

    /// Binds the key; gives value and version.
    pub(crate) fn read(&self, d: Dialect) -> String {
        let [t, k, c] = self.column.quoted(d);
        let v = d.integer(&d.quote(&self.version));
        format!("SELECT {c}, {v} FROM {t} WHERE {k} = {}", d.mark(1))
    }

    /// Binds the value, the key and the version it was read with.
    pub(crate) fn write(&self, d: Dialect) -> String {
        let [t, k, c] = self.column.quoted(d);
        let v = d.quote(&self.version);
        let [new, id, seen] = [1, 2, 3].map(|i| d.mark(i));
        format!("UPDATE {t} SET {c} = {new}, {v} = {v} + 1 WHERE {k} = {id} AND {v} = {seen}")
    }
}

/// Whether an effect is to happen, or has happened.
#[derive(Debug)]
pub enum Once {
    /// Nobody has done it: do it now, in the same transaction.
    First(First),
    /// It was done, by a transaction that has committed.
    AlreadyDone {
        /// What the first run answered, if it stored an answer.
        answer: Option<Vec<u8>>,
        /// When, by the database's clock.
        at: SystemTime,
    },
}

/// The first run of an effect. Its answer, if others are to get it, is stored with `answer`.
#[derive(Debug)]
pub struct First {
    pub(crate) key: Name,
}

pub(crate) fn done(answer: Option<Vec<u8>>, at: i64, layout: i16) -> Result<Once, Error> {
    known(layout)?;
    let since = Duration::from_micros(u64::try_from(at).unwrap_or(0));
    Ok(Once::AlreadyDone { answer, at: SystemTime::UNIX_EPOCH + since })
}

/// Microseconds, as the tables keep them.
pub(crate) fn micros(age: Duration) -> i64 {
    i64::try_from(age.as_micros()).unwrap_or(i64::MAX)
}

/// What a resource or an effect may be called: as a lock.
pub(crate) fn name(name: &str) -> Result<Name, Error> {
    Name::new(name).map_err(|e| Error::Usage(e.to_string().replace("lock's ", "")))
}

/// A token as databases keep it: below 2^63, so it fits.
pub(crate) fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// Judges what the fence held after the row was locked. A row from before fences counts as none.
pub(crate) fn judge(resource: &str, token: Token, seen: i64) -> Result<(), Stale> {
    match u64::try_from(seen).ok().and_then(|n| Token::new(n).ok()) {
        Some(highest) if highest > token => {
            Err(Stale { resource: resource.to_owned(), token, highest })
        }
        _ => Ok(()),
    }
}

/// Refuses rows of a newer layout.
pub(crate) fn known(layout: i16) -> Result<(), Error> {
    match layout {
        LAYOUT => Ok(()),
        other => Err(Error::Layout(format!("this row has layout {other}, we know {LAYOUT}"))),
    }
}

fn check(part: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !part.is_empty()
        && part.chars().all(plain)
        && !part.starts_with(|c: char| c.is_ascii_digit())
    {
        return Ok(());
    }
    Err(Error::Usage(format!("{part:?} is not an SQL name of letters, digits and underscores")))
}

/// How a database writes things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(all(feature = "mysql", feature = "postgres", feature = "sqlite")), allow(dead_code))]
pub(crate) enum Dialect {
    MySql,
    Postgres,
    Sqlite,
}

impl Dialect {
    fn quote(self, name: &str) -> String {
        if self == Dialect::MySql { format!("`{name}`") } else { format!("\"{name}\"") }
    }

    fn mark(self, n: usize) -> String {
        match self {
            Dialect::MySql => "?".to_owned(),
            Dialect::Postgres => format!("${n}"),
            Dialect::Sqlite => format!("?{n}"),
        }
    }

    /// An integer of any width as the one width we read.
    fn integer(self, expression: &str) -> String {
        let wide = if self == Dialect::MySql { "SIGNED" } else { "BIGINT" };
        format!("CAST({expression} AS {wide})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_names_are_refused_before_any_sql() {
        for bad in ["", "a b", "a`b", "a\"b", "1a", "a;--", "x.y"] {
            assert!(Column::new("t", "id", bad).is_err(), "{bad}");
            assert!(Column::new("t", bad, "c").is_err(), "{bad}");
        }
        assert!(Column::new("shop..stock", "id", "n").is_err());
        let stock = Column::new("shop.stock", "sku", "n").unwrap();
        assert_eq!(
            stock.take(Dialect::MySql),
            "UPDATE `shop`.`stock` SET `n` = `n` - ? WHERE `sku` = ? AND `n` >= ?"
        );
        let versioned = stock.versioned_by("v").unwrap();
        assert_eq!(
            versioned.write(Dialect::Postgres),
            "UPDATE \"shop\".\"stock\" SET \"n\" = $1, \"v\" = \"v\" + 1 \
             WHERE \"sku\" = $2 AND \"v\" = $3"
        );
    }
}
