//! Listing locks: a snapshot, without the write lock.

use distlock_core::{Error, FullName, LockInfo, Name, Query};

use crate::errors::{damaged, is_damaged, trouble};
use crate::lock_row::{COLUMNS, LockRow};
use crate::schema;
use crate::transaction::Database;

impl Database {
    /// Lists locks.
    pub(crate) fn inspect(&mut self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        self.run("BEGIN")?;
        let found = self.list(query);
        self.rollback();
        found
    }

    fn list(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let meta = self.meta()?;
        if meta.boot.id != self.boot.id {
            return Ok(Vec::new());
        }
        self.of_this_boot(meta)?;
        let now = self.now().lease;
        let wrong = |e| trouble(&self.file, e);
        let of_row = |lock: &FullName, e| match is_damaged(&e) {
            true => damaged(lock, e),
            false => wrong(e),
        };
        let table = schema::table(&self.conn).map_err(wrong)?;
        let (space, prefix, after, limit) = match query {
            Query::Name(lock) => {
                let row = LockRow::read(&self.conn, table, lock, 0, None);
                let row = row.map_err(|e| of_row(lock, e))?;
                return Ok(row.state.into_view(lock, now).into_iter().collect());
            }
            Query::Prefix { space, prefix, after, limit } => (space, prefix, after, *limit),
        };
        let sql = format!(
            "SELECT {COLUMNS}, name FROM {table} WHERE space = ?1 AND name >= ?2 AND name > ?3
             ORDER BY name"
        );
        let mut statement = self.conn.prepare_cached(&sql).map_err(wrong)?;
        let after = after.as_ref().map_or("", Name::as_str);
        let mut rows = statement.query([space.as_str(), prefix, after]).map_err(wrong)?;
        let mut found = Vec::new();
        while found.len() < limit {
            let Some(row) = rows.next().map_err(wrong)? else { break };
            let name: String = row.get("name").map_err(wrong)?;
            // Names come in the order of their bytes: those with the prefix stand together.
            if !name.starts_with(prefix.as_str()) {
                break;
            }
            let lock = FullName { space: space.clone(), name: Name::new(name)? };
            let row = LockRow::of(&self.conn, &lock, row, None).map_err(|e| of_row(&lock, e))?;
            found.extend(row.state.into_view(&lock, now));
        }
        Ok(found)
    }
}
