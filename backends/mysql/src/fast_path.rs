//! The usual case in one statement: a lock that nobody else holds or waits for, and the turn of one
//! that was woken.
//!
//! Each is one UPDATE of one row, committed by itself, whose condition says that it is the usual
//! case; a row it does not match goes to the slow path (`slow_path`). `ver=ver+1` makes sure that a row
//! that matched counts as affected. The server's time is read before a possible wait for the row,
//! so it is early rather than late: a lock passes on later, and a lease begins no earlier than its
//! request was sent.
//!
//! A turn is confirmed while the release that gave it is still about to commit: the UPDATE waits
//! for the row, and is judged by the row as it is then. It needs to look at nothing else, because
//! the row says whether there is anything else to do (`record`).

use std::sync::Arc;
use std::time::Duration;

use distlock_core::state::Claim;
use distlock_core::{Error, FullName, Key, Reply, ReqId, Token};
use distlock_sql::Trouble;
use sqlx::mysql::MySqlQueryResult;
use sqlx::{AssertSqlSafe, MySqlConnection};

use crate::errors::{DEADLOCK, LOCK_WAIT, calling, number};
use crate::record::{RELEASED, rules, written};
use crate::sql::{NOW, READ_ONLY, at, hex, run_far};
use crate::{schema::Tables, slow_path::Fault};

/// A token and how many wait come back as one number: this many bits are the token's. Microseconds
/// since 1970 need no more before the year 2112.
const TOKEN_BITS: u32 = 52;
/// The largest number of waiters that fits above it: the holder is told that at least so many wait. To
/// count them would take a second statement, which can fail after the grant was committed.
const MANY: u32 = (1 << 11) - 1;

/// The statements, for one set of tables.
pub(crate) struct Fast {
    acquire: Arc<str>,
    confirm: Arc<str>,
    release: Arc<str>,
    table: String,
}

impl Fast {
    pub(crate) fn new(tables: &Tables) -> Self {
        let table = tables.lock.clone();
        let tombstone = micros(rules().tombstone);
        // Assignments are made from left to right: `hi` is still the old one in the second.
        let acquire = format!(
            "UPDATE {table} SET ver=ver+1, token=LAST_INSERT_ID(GREATEST(hi+1,{NOW})), \
             hi=GREATEST(hi+1,{NOW}), block=1, granted={NOW}, expires={NOW}+?, req=?, claim=? \
             WHERE space=? AND name=? AND req IS NULL AND rest IS NULL AND nwait=0 \
             AND delay_until<={NOW} AND hi<4611686018427387904 \
             AND LOCATE(?,released)=0 AND (cancelled IS NULL OR LOCATE(?,cancelled)=0) \
             AND NOT {READ_ONLY}"
        );
        let (all, most) = (1u64 << TOKEN_BITS, (1u64 << TOKEN_BITS) - 1);
        let confirm = format!(
            "UPDATE {table} SET ver=ver+1, \
             token=LAST_INSERT_ID(token+LEAST(nwait,{MANY})*{all})&{most}, \
             granted={NOW}, expires={NOW}+?, req=?, rest=NULL \
             WHERE space=? AND name=? AND req IS NULL AND claim=? AND expires>{NOW} \
             AND token<{all} AND NOT {READ_ONLY}"
        );
        let release = format!(
            "UPDATE {table} SET ver=ver+1, \
             released=RIGHT(CONCAT(released,req,UNHEX(LPAD(HEX({NOW}+{tombstone}),16,'0'))),{RELEASED}), \
             req=NULL, claim=NULL \
             WHERE space=? AND name=? AND req=? AND rest IS NULL AND nwait=0 AND expires>{NOW}"
        );
        Self { acquire: acquire.into(), confirm: confirm.into(), release: release.into(), table }
    }

    /// Takes a lock that is free and not waited for; `None` says that it is not the usual case.
    pub(crate) async fn acquire(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
        claim: &Claim,
    ) -> Result<Option<Reply>, Trouble> {
        let req = claim.req.as_bytes().as_slice();
        let text = written(claim).map_err(Trouble::answered)?;
        let done = sqlx::query(AssertSqlSafe(Arc::clone(&self.acquire)))
            .bind(micros(claim.ttl))
            .bind(req)
            .bind(text)
            .bind(lock.space.as_str().as_bytes())
            .bind(lock.name.as_str().as_bytes())
            .bind(req)
            .bind(req)
            .execute(conn)
            .await
            .map_err(calling)?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        granted(claim, done.last_insert_id(), 0).map(Some).map_err(Trouble::answered)
    }

    /// Confirms the turn of a waiter; `None` says that it is not its turn, or that there is more to
    /// do.
    pub(crate) async fn confirm(
        &self,
        conn: &mut MySqlConnection,
        lock: &FullName,
        claim: &Claim,
    ) -> Result<Option<Reply>, Fault> {
        let text = written(claim)?;
        let done = sqlx::query(AssertSqlSafe(Arc::clone(&self.confirm)))
            .bind(micros(claim.ttl))
            .bind(claim.req.as_bytes().as_slice())
            .bind(lock.space.as_str().as_bytes())
            .bind(lock.name.as_str().as_bytes())
            .bind(text)
            .execute(conn)
            .await?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        let both = done.last_insert_id();
        let waiters = u32::try_from(both >> TOKEN_BITS).unwrap_or(MANY);
        Ok(Some(granted(claim, both & ((1 << TOKEN_BITS) - 1), waiters)?))
    }

    /// Gives back a lock that is not waited for; false says that it is not the usual case.
    pub(crate) async fn release(
        &self,
        conn: &mut MySqlConnection,
        key: &Key,
    ) -> Result<bool, Trouble> {
        let done = sqlx::query(AssertSqlSafe(Arc::clone(&self.release)))
            .bind(key.lock.space.as_str().as_bytes())
            .bind(key.lock.name.as_str().as_bytes())
            .bind(key.req.as_bytes().as_slice())
            .execute(conn)
            .await
            .map_err(calling)?;
        Ok(done.rows_affected() > 0)
    }

    /// Renews holds in one round trip, each in a transaction of its own, so that no two rows are
    /// ever locked at once; `None` for those that are not the usual case. A row that somebody keeps
    /// locked is that hold's trouble alone.
    pub(crate) async fn renew(
        &self,
        conn: &mut MySqlConnection,
        due: &[(FullName, ReqId, Duration)],
    ) -> Result<Vec<Result<Option<Reply>, Error>>, Trouble> {
        let table = &self.table;
        let one = |(lock, req, ttl): &(FullName, ReqId, Duration)| {
            format!(
                "UPDATE {table} SET ver=ver+1, \
                 expires={NOW}+LAST_INSERT_ID(GREATEST(expires,{NOW}+{})-{NOW}) \
                 WHERE {} AND req={} AND rest IS NULL AND nwait=0 AND expires>{NOW} \
                 AND NOT {READ_ONLY}",
                micros(*ttl),
                at(lock),
                hex(req.as_bytes())
            )
        };
        let read = |done: &MySqlQueryResult| {
            (done.rows_affected() > 0).then(|| Reply::Renewed {
                remaining: Duration::from_micros(done.last_insert_id()),
                waiters: 0,
            })
        };
        let sql: Vec<String> = due.iter().map(one).collect();
        let mut renewed = Vec::with_capacity(sql.len());
        while renewed.len() < sql.len() {
            let (given, failed) = run_far(conn, sql[renewed.len()..].join(";")).await;
            renewed.extend(given.iter().map(|g| Ok(read(&g.done))));
            match failed {
                None => break,
                Some(e) if matches!(number(&e), Some(DEADLOCK | LOCK_WAIT)) => {
                    renewed.push(Err(calling(e).error));
                }
                Some(e) => return Err(calling(e)),
            }
        }
        Ok(renewed)
    }
}

/// The grant of a claim's whole lease.
fn granted(claim: &Claim, token: u64, waiters: u32) -> Result<Reply, Error> {
    let (token, block, remaining) = (Token::new(token)?, claim.block, claim.ttl);
    Ok(Reply::Granted { token, block, remaining, waiters, floor: token })
}

/// Whether a claim can be the usual case.
pub(crate) fn fits(claim: &Claim) -> bool {
    claim.min_hold.is_zero() && claim.block.get() == 1
}

pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
