//! What is the same for each database of `sqlx`: the calls about a user's own rows, and what follows
//! the insert of a once-only effect. A macro, because the bounds that would make them generic over
//! the database are longer than the calls.

/// Defines `fence_row`, `take` and `change` for a database, and `trouble`, `ours` and `already_done`
/// for its module. That brings `spoil` (makes the rest of a refused transaction fail), `is` (whether
/// an error has one of some codes) with the codes `AGAIN` and `NO_SUCH_TABLE`, `id` (a name as its
/// tables keep it), and the statement `DONE`.
macro_rules! rows {
    ($Db:ty, $Connection:ty, $D:expr) => {
        /// A value that can find a row.
        pub trait Key:
            for<'q> sqlx::Encode<'q, $Db> + sqlx::Type<$Db> + std::fmt::Display + Send + Sync
        {
        }
        impl<K> Key for K where
            K: for<'q> sqlx::Encode<'q, $Db> + sqlx::Type<$Db> + std::fmt::Display + Send + Sync
        {
        }

        fn trouble(e: sqlx::Error) -> Error {
            if is(&e, &AGAIN) { Error::Retry(Box::new(e)) } else { Error::Store(Box::new(e)) }
        }

        /// Trouble with a statement about a table of ours.
        fn ours(e: sqlx::Error) -> Error {
            if is(&e, &[NO_SUCH_TABLE]) { Error::NotInstalled(Box::new(e)) } else { trouble(e) }
        }

        /// Lets a token pass that is not below what was seen; with any other the rest of the
        /// transaction fails.
        async fn admit(
            tx: &mut sqlx::Transaction<'_, $Db>,
            what: &str,
            token: Token,
            seen: i64,
        ) -> Result<(), Error> {
            match judge(what, token, seen) {
                Ok(()) => Ok(()),
                Err(stale) => Err(spoil(tx, stale).await),
            }
        }

        /// Fences one row of a table of yours that has a column for it (an integer of 64 bits, 0
        /// or NULL at first). The row stays locked until the transaction ends, so that an older
        /// and a newer holder come one after the other.
        ///
        /// # Errors
        /// [`Error::Stale`] when a higher token was here, and then the rest of the transaction
        /// fails as with [`fence`]; [`Error::Missing`] when there is no such row;
        /// [`Error::Retry`] when the transaction has to be run again.
        ///
        /// # Cancel safety
        /// What it did is part of the transaction: roll that back.
        pub async fn fence_row(
            tx: &mut sqlx::Transaction<'_, $Db>,
            fence: &Column,
            key: impl Key,
            token: Token,
        ) -> Result<(), Error> {
            let seen: Option<(Option<i64>,)> = sqlx::query_as(AssertSqlSafe(fence.lock($D)))
                .bind(&key)
                .fetch_optional(&mut **tx)
                .await
                .map_err(trouble)?;
            let (seen,) = seen.ok_or_else(|| fence.missing(&key))?;
            let seen = seen.unwrap_or(0);
            admit(tx, &fence.row(&key), token, seen).await?;
            if seen < number(token) {
                let put = sqlx::query(AssertSqlSafe(fence.put($D))).bind(number(token)).bind(&key);
                put.execute(&mut **tx).await.map_err(trouble)?;
            }
            Ok(())
        }

        /// Takes `n` from a number unless less is there, in one statement: whether it was taken.
        /// Needs no lock, no fence and no transaction of its own.
        ///
        /// # Errors
        /// [`Error::Missing`] when there is no such row; [`Error::Retry`] when a transaction
        /// around it has to be run again.
        ///
        /// # Cancel safety
        /// Outside of a transaction it may still happen, once.
        pub async fn take(
            db: &mut $Connection,
            stock: &Column,
            key: impl Key,
            n: u32,
        ) -> Result<bool, Error> {
            let n = i64::from(n);
            let take = sqlx::query(AssertSqlSafe(stock.take($D))).bind(n).bind(&key).bind(n);
            if take.execute(&mut *db).await.map_err(trouble)?.rows_affected() > 0 {
                return Ok(true);
            }
            let there = sqlx::query(AssertSqlSafe(stock.exists($D))).bind(&key);
            let there = there.fetch_optional(&mut *db).await.map_err(trouble)?;
            there.map(|_| false).ok_or_else(|| stock.missing(&key))
        }

        /// Changes a value by its version: reads it, asks `change` for the new one (`None` leaves
        /// it), and writes it if nobody wrote meanwhile. Gives what was written. Works on the
        /// pool, each statement by itself, because a transaction may go on reading an old
        /// snapshot.
        ///
        /// # Errors
        /// [`Error::Conflict`] when others were quicker in every try, [`Error::Missing`] when
        /// there is no such row.
        ///
        /// # Cancel safety
        /// Dropped during the write it may still happen, once; else nothing was written.
        pub async fn change<T>(
            db: &sqlx::Pool<$Db>,
            row: &Versioned,
            key: impl Key,
            tries: &Tries,
            mut change: impl FnMut(&T) -> Option<T> + Send,
        ) -> Result<Option<T>, Error>
        where
            T: for<'r> sqlx::Decode<'r, $Db>
                + for<'q> sqlx::Encode<'q, $Db>
                + sqlx::Type<$Db>
                + Send
                + Sync
                + Unpin,
        {
            let key = &key;
            let read = || async move {
                let found = sqlx::query_as(AssertSqlSafe(row.read($D))).bind(key);
                let found: Option<(T, i64)> = found.fetch_optional(db).await.map_err(trouble)?;
                found.ok_or_else(|| row.column().missing(key))
            };
            let write = |value: T, version: i64| {
                let new = change(&value);
                async move {
                    let Some(new) = new else { return Ok(Some(None)) };
                    let write = sqlx::query(AssertSqlSafe(row.write($D)));
                    let write = write.bind(&new).bind(key).bind(version).execute(db).await;
                    match write.map_err(trouble) {
                        Ok(done) if done.rows_affected() == 0 => Ok(None),
                        // Which is to say that somebody else was there at the same moment.
                        Err(Error::Retry(_)) => Ok(None),
                        Ok(_) => Ok(Some(Some(new))),
                        Err(e) => Err(e),
                    }
                }
            };
            optimistic::update(tries, &row.column().row(key), read, write).await
        }

        /// What became of an effect that is in the table already.
        async fn already_done(
            tx: &mut sqlx::Transaction<'_, $Db>,
            key: &Name,
        ) -> Result<Once, Error> {
            let row = sqlx::query_as(DONE).bind(id(key)).fetch_optional(&mut **tx).await;
            // It was there for the insert and is gone: forgotten in between.
            let forgotten = || Error::Retry("the effect was forgotten at this moment".into());
            let (answer, at, layout) = row.map_err(trouble)?.ok_or_else(forgotten)?;
            sql::done(answer, at, layout)
        }
    };
}

pub(crate) use rows;
