//! Calls the SQL functions (acquire, heartbeat, renew, release, cancel, force) and reads their rows.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::state::{End, Left, Pulse, Refusal};
use distlock_core::{
    Ask, Due, Force, FullName, Holder, Key, Label, LossReason, Owner, Reply, ReqId, Token,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Error, Executor, PgConnection, Postgres, Row, SqlSafeStr};

use crate::columns::{count, micros, mode_of, number_of, span, token};
use crate::statements::Statements;

/// How many locks at most go into one call: it locks them all until it is done.
pub(crate) const BATCH: usize = 100;
/// Max waiters in one heartbeat call: positions in the queue of a lock are counted once for each call.
const WAITERS: usize = 1000;

/// An answer that no function of ours gives.
pub(crate) fn odd(what: &str) -> Error {
    Error::Decode(format!("unexpected answer to {what}").into())
}

/// Prepares what the library itself sends, so that the first time is no slower than the next.
pub(crate) async fn prepare(conn: &mut PgConnection, sql: &Statements) -> Result<(), Error> {
    for text in [&sql.cancel, &sql.renew, &sql.heartbeat, &sql.give, &sql.release] {
        conn.prepare(AssertSqlSafe(text.clone()).into_sql_str()).await?;
    }
    Ok(())
}

/// A statement with values.
pub(crate) type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

/// A statement about a request: the first three of what it is given say which, and of which lock.
pub(crate) fn about<'q>(statement: &Arc<str>, lock: &'q FullName, req: &'q ReqId) -> PgQuery<'q> {
    sqlx::query(AssertSqlSafe(statement.clone()))
        .bind(lock.space.as_str())
        .bind(lock.name.as_str())
        .bind(&req.as_bytes()[..])
}

/// Asks, asks again, confirms or polls.
pub(crate) async fn acquire(
    conn: &mut PgConnection,
    statements: &Statements,
    ask: &Ask,
    wait: Option<Duration>,
    via: &str,
) -> Result<Reply, Error> {
    let row = about(&statements.acquire, &ask.lock, &ask.req)
        .bind(ask.owner.as_str())
        .bind(number_of(ask.mode))
        .bind(micros(ask.ttl))
        .bind(micros(ask.min_hold))
        .bind(micros(ask.lock_delay))
        .bind(ask.label.as_str())
        .bind(i64::from(ask.block.get()))
        .bind(via)
        .bind(wait.map(micros))
        .fetch_one(conn)
        .await?;
    let kind = row.try_get(0)?;
    let mut numbers = [None; 5];
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = row.try_get(i + 1)?;
    }
    acquired(kind, numbers, row.try_get(6)?, row.try_get(7)?).ok_or_else(|| odd("acquire"))
}

fn acquired(
    kind: i32,
    numbers: [Option<i64>; 5],
    owner: Option<&str>,
    label: Option<&str>,
) -> Option<Reply> {
    let [a, b, c, d, e] = numbers;
    Some(match kind {
        1 => Reply::Granted {
            token: token(a?)?,
            block: NonZeroU32::new(count(b?)?)?,
            remaining: span(c?)?,
            waiters: count(d?)?,
            floor: token(e?)?,
        },
        2 | 3 => {
            let holder = match c {
                None => None,
                Some(c) => Some(Holder {
                    label: Label::new(label?),
                    owner: Owner::named(owner?).ok()?,
                    token: token(c)?,
                    age: span(d?)?,
                    left: Some(span(e?)?),
                }),
            };
            let left = match b {
                None => None,
                Some(left) => Some(span(left)?),
            };
            let (ahead, why) = (count(a?)?, Left { holder, left });
            if kind == 2 { Reply::Waiting { ahead, why } } else { Reply::Busy { ahead, why } }
        }
        4 => Reply::Refused(match (a?, b?) {
            (0, n) => Refusal::PermitsDiffer(NonZeroU32::new(count(n)?)?),
            (_, mode) => Refusal::ModeDiffers(mode_of(mode)?),
        }),
        5 => Reply::Tombstoned(if a? == 0 { End::Released } else { End::Cancelled }),
        _ => return None,
    })
}

/// The names and requests of a batch, each as an array.
fn columns<'a>(keys: impl Iterator<Item = &'a Key>) -> (Vec<&'a str>, Vec<&'a str>, Vec<&'a [u8]>) {
    let mut all = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        all.0.push(key.lock.space.as_str());
        all.1.push(key.lock.name.as_str());
        all.2.push(&key.req.as_bytes()[..]);
    }
    all
}

/// In which order a batch is worked through: by name, so that two calls that lock the same rows
/// never wait for each other.
fn order<T>(items: &[T], lock: impl Fn(&T) -> &FullName) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| lock(&items[*a]).cmp(lock(&items[*b])));
    order
}

/// Splits heartbeats into calls of at most [`WAITERS`] waiters of at most [`BATCH`] locks. Those of one
/// lock should stand together.
pub(crate) fn batches(mut waiting: &[(Key, Duration)]) -> Vec<&[(Key, Duration)]> {
    let mut batches = Vec::new();
    while !waiting.is_empty() {
        let (mut locks, mut last) = (0, None);
        let fits = |(key, _): &&'_ (Key, Duration)| {
            locks += usize::from(last.replace(key.lock.clone()).as_ref() != Some(&key.lock));
            locks <= BATCH
        };
        let (batch, rest) = waiting.split_at(waiting.iter().take(WAITERS).take_while(fits).count());
        batches.push(batch);
        waiting = rest;
    }
    batches
}

/// The answers of a batch, back in the order of the questions.
fn restore(
    order: &[usize],
    rows: &[PgRow],
    read: impl Fn(&PgRow) -> Result<Reply, Error>,
) -> Result<Vec<Reply>, Error> {
    if rows.len() != order.len() {
        return Err(odd("a batch"));
    }
    let mut replies = vec![Reply::Settled; order.len()];
    for (i, row) in order.iter().zip(rows) {
        replies[*i] = read(row)?;
    }
    Ok(replies)
}

/// Says that waiters are alive.
pub(crate) async fn heartbeat(
    conn: &mut PgConnection,
    statements: &Statements,
    waiting: &[(Key, Duration)],
    via: &str,
) -> Result<Vec<Reply>, Error> {
    let order = order(waiting, |(key, _)| &key.lock);
    let (spaces, names, reqs) = columns(order.iter().map(|i| &waiting[*i].0));
    let waits: Vec<i64> = order.iter().map(|i| micros(waiting[*i].1)).collect();
    let rows = sqlx::query(AssertSqlSafe(statements.heartbeat.clone()))
        .bind(spaces)
        .bind(names)
        .bind(reqs)
        .bind(waits)
        .bind(via)
        .fetch_all(conn)
        .await?;
    restore(&order, &rows, |row| {
        let (state, ahead, left): (i32, Option<i64>, Option<i64>) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let queued = || Some(Pulse::Queued { ahead: count(ahead?)?, left: left.and_then(span) });
        Ok(Reply::Pulse(match state {
            0 => queued().ok_or_else(|| odd("heartbeat"))?,
            1 => Pulse::Turn,
            _ => Pulse::Unknown,
        }))
    })
}

/// Renews holds.
pub(crate) async fn renew(
    conn: &mut PgConnection,
    statements: &Statements,
    due: &[Due],
) -> Result<Vec<Reply>, Error> {
    let order = order(due, |d| &d.key.lock);
    let (spaces, names, reqs) = columns(order.iter().map(|i| &due[*i].key));
    let ttls: Vec<i64> = order.iter().map(|i| micros(due[*i].ttl)).collect();
    let rows = sqlx::query(AssertSqlSafe(statements.renew.clone()))
        .bind(spaces)
        .bind(names)
        .bind(reqs)
        .bind(ttls)
        .fetch_all(conn)
        .await?;
    restore(&order, &rows, |row| {
        let (left, waiters): (i64, i32) = (row.try_get(0)?, row.try_get(1)?);
        Ok(match left {
            -1 => Reply::Lost(LossReason::Gone),
            -2 => Reply::Lost(LossReason::Revoked),
            left => {
                let held = || Some((span(left)?, u32::try_from(waiters).ok()?));
                let (remaining, waiters) = held().ok_or_else(|| odd("renew"))?;
                Reply::Renewed { remaining, waiters }
            }
        })
    })
}

/// Gives a hold back; also whether somebody was told that it is its turn.
pub(crate) async fn release(
    conn: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> Result<(Reply, bool), Error> {
    let row = about(&statements.release, &key.lock, &key.req).fetch_one(conn).await?;
    match row.try_get::<i32, _>(0)? {
        1 => Ok((Reply::Released, false)),
        2 => Ok((Reply::Lost(LossReason::Gone), false)),
        3 => Ok((Reply::Lost(LossReason::Revoked), false)),
        4 => Ok((Reply::Released, true)),
        _ => Err(odd("release")),
    }
}

/// Undoes a request.
pub(crate) async fn cancel(
    conn: &mut PgConnection,
    statements: &Statements,
    key: &Key,
) -> Result<Reply, Error> {
    about(&statements.cancel, &key.lock, &key.req).fetch_one(conn).await?;
    Ok(Reply::Cancelled)
}

/// Takes a lock away.
pub(crate) async fn force(
    conn: &mut PgConnection,
    statements: &Statements,
    lock: &FullName,
    token: Option<Token>,
    how: Force,
) -> Result<Reply, Error> {
    let token = token.map(|t| i64::try_from(t.get()).unwrap_or(i64::MAX));
    let taken: bool = sqlx::query_scalar(AssertSqlSafe(statements.force.clone()))
        .bind(lock.space.as_str())
        .bind(lock.name.as_str())
        .bind(token)
        .bind(how == Force::Now)
        .fetch_one(conn)
        .await?;
    Ok(if taken { Reply::Forced } else { Reply::NoMatch })
}
