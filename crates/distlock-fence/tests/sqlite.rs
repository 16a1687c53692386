//! Fences, optimistic updates and once-only effects in real SQLite files.
#![allow(clippy::unwrap_used)] // tests

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use distlock_fence::optimistic::Tries;
use distlock_fence::sqlite::{self as db, SCHEMA};
use distlock_fence::{Column, Error, Once, Token};
use rusqlite::{Connection, TransactionBehavior};

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

/// A database with one row (1, 0, 0), and a way to open it again.
fn fresh(dir: &Path) -> impl Fn() -> Connection + Sync {
    let path = dir.join("shop.db");
    let open = move || {
        let db = Connection::open(&path).unwrap();
        db.busy_timeout(Duration::from_secs(60)).unwrap();
        db
    };
    let db = open();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db::install(&db).unwrap();
    db.execute_batch(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, v INTEGER, fence INTEGER);
         INSERT INTO t (id, n, v) VALUES (1, 0, 0);",
    )
    .unwrap();
    open
}

fn number(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |r| r.get(0)).unwrap()
}

#[test]
fn a_stale_token_is_refused_and_its_transaction_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut db = fresh(dir.path())();
    let set = |n: i64| move |tx: &rusqlite::Transaction<'_>| tx.execute("UPDATE t SET n = ?1", [n]);
    let write = |db: &mut Connection, t: Token, n| {
        db::fenced(db, "t", t, |tx| set(n)(tx).map_err(Error::from))
    };
    write(&mut db, token(7), 7).unwrap();
    write(&mut db, token(7), 77).unwrap();
    let late = write(&mut db, token(6), 6).unwrap_err();
    assert_eq!(late.stale().unwrap().highest, token(7));
    // In a transaction of one's own, dropped on the error as `?` does.
    let one = |db: &mut Connection| -> Result<(), Error> {
        let tx = db.transaction()?;
        set(66)(&tx)?;
        db::fence(&tx, "t", token(6))?;
        Ok(tx.commit()?)
    };
    assert!(one(&mut db).unwrap_err().stale().is_some());
    assert_eq!(number(&db, "SELECT n FROM t"), 77);
    // Work that fails takes its fence back with it.
    let failed = db::fenced(&mut db, "t", token(9), |_| Err::<(), _>(Error::Usage("no".into())));
    assert!(matches!(failed, Err(Error::Usage(_))));
    write(&mut db, token(8), 8).unwrap();
    write(&mut db, Token::MAX, 9).unwrap();
    assert!(write(&mut db, token((1 << 63) - 2), 6).unwrap_err().stale().is_some());
    assert!(matches!(write(&mut db, token(1), 6), Err(Error::Stale(_))));
}

#[test]
fn one_who_comes_during_a_fenced_transaction_waits_for_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let open = fresh(dir.path());
    let mut mine = open();
    let tx = mine.transaction().unwrap();
    db::fence(&tx, "t", token(5)).unwrap();
    // One that does not wait is told to come again.
    let mut hasty = open();
    hasty.busy_timeout(Duration::ZERO).unwrap();
    let busy = hasty.transaction().unwrap();
    let told = db::fence(&busy, "t", token(6)).unwrap_err();
    assert!(matches!(told, Error::Retry(_)) && told.is_retryable());
    drop(busy);
    let (done, ended) = mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut db = open();
            let seen = db::fenced(&mut db, "t", token(6), |tx| {
                Ok::<_, Error>(number(tx, "SELECT n FROM t"))
            });
            done.send(seen.unwrap()).unwrap();
        });
        tx.execute("UPDATE t SET n = 5", []).unwrap();
        assert!(ended.try_recv().is_err(), "it did not wait");
        tx.commit().unwrap();
        assert_eq!(ended.recv().unwrap(), 5);
    });
}

#[test]
fn a_deferred_transaction_that_was_overtaken_is_told_to_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let open = fresh(dir.path());
    let (mut slow, mut fast) = (open(), open());
    let tx = slow.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    assert_eq!(number(&tx, "SELECT n FROM t"), 0); // fixes what it sees
    db::fenced(&mut fast, "t", token(1), |tx| {
        tx.execute("UPDATE t SET n = 1", []).map_err(Error::from)
    })
    .unwrap();
    let told = db::fence(&tx, "t", token(2));
    assert!(matches!(told, Err(Error::Retry(_))), "{told:?}");
}

#[test]
fn a_row_has_a_fence_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut db = fresh(dir.path())();
    let fence = Column::new("t", "id", "fence").unwrap();
    for (n, refused) in [(5, false), (5, false), (6, false), (5, true)] {
        let tx = db.transaction().unwrap();
        let let_in = db::fence_row(&tx, &fence, 1, token(n));
        assert_eq!(let_in.as_ref().err().and_then(Error::stale).is_some(), refused, "{let_in:?}");
        tx.commit().unwrap();
    }
    let tx = db.transaction().unwrap();
    assert!(matches!(db::fence_row(&tx, &fence, 2, token(9)), Err(Error::Missing { .. })));
}

#[test]
fn stock_is_taken_to_the_last_and_changes_by_version_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let open = fresh(dir.path());
    let stock = Column::new("t", "id", "n").unwrap();
    let row = stock.clone().versioned_by("v").unwrap();
    open().execute("INSERT INTO t (id, n, v) VALUES (2, 30, 0)", []).unwrap();
    let sold: u32 = std::thread::scope(|s| {
        let buyers: Vec<_> = (0..4)
            .map(|_| {
                s.spawn(|| {
                    let (db, tries) = (open(), Tries::at_most(1000));
                    let mut got = 0;
                    for _ in 0..10 {
                        got += u32::from(db::take(&db, &stock, 2, 1).unwrap());
                        db::change(&db, &row, 1, &tries, |n: &i64| Some(n + 1)).unwrap();
                    }
                    got
                })
            })
            .collect();
        buyers.into_iter().map(|b| b.join().unwrap()).sum()
    });
    let db = open();
    assert_eq!((sold, number(&db, "SELECT n FROM t WHERE id = 2")), (30, 0));
    assert_eq!(number(&db, "SELECT n + v FROM t WHERE id = 1"), 80);
    assert!(matches!(db::take(&db, &stock, 3, 1), Err(Error::Missing { .. })));

    let tries = Tries::at_most(2).pauses(Duration::ZERO, Duration::ZERO);
    let faster = open();
    let overtaken = db::change(&db, &row, 1, &tries, |_: &i64| {
        faster.execute("UPDATE t SET v = v + 1", []).unwrap();
        Some(-1)
    });
    assert!(matches!(overtaken, Err(Error::Conflict(c)) if c.tries == 2));
    assert_eq!(number(&db, "SELECT n FROM t WHERE id = 1"), 40);
}

#[test]
fn an_effect_happens_once_its_answer_is_kept_and_old_ones_are_forgotten_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut db = fresh(dir.path())();
    let run = |db: &mut Connection, key: &str, commit: bool| -> Option<Vec<u8>> {
        let tx = db.transaction().unwrap();
        let answer = match db::once(&tx, key).unwrap() {
            Once::First(first) => {
                db::answer(&tx, first, key.as_bytes()).unwrap();
                None
            }
            Once::AlreadyDone { answer, at } => {
                let age = at.elapsed().unwrap_or_default();
                assert!(age < Duration::from_secs(600), "{age:?}");
                answer
            }
        };
        if commit {
            tx.commit().unwrap();
        }
        answer
    };
    assert_eq!(run(&mut db, "pay", false), None); // rolled back: never happened
    assert_eq!(run(&mut db, "pay", true), None);
    assert_eq!(run(&mut db, "pay", true).as_deref(), Some(&b"pay"[..]));
    for n in 0..4 {
        run(&mut db, &n.to_string(), true);
    }
    db.execute("UPDATE distlock_once SET at = at - 7200000000", []).unwrap();
    run(&mut db, "young", true);
    for gone in [3, 2, 0] {
        assert_eq!(db::forget_older_than(&db, Duration::from_secs(3600), 3).unwrap(), gone);
    }
    assert_eq!(number(&db, "SELECT count(*) FROM distlock_once"), 1);
    assert_eq!(run(&mut db, "pay", true), None);
    db.execute("UPDATE distlock_once SET layout = 2", []).unwrap();
    let tx = db.transaction().unwrap();
    assert!(matches!(db::once(&tx, "pay"), Err(Error::Layout(_))));
}

#[test]
fn without_the_tables_it_says_how_to_get_them() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = db.transaction().unwrap();
    let missing = db::fence(&tx, "t", token(1)).unwrap_err();
    assert!(matches!(missing, Error::NotInstalled(_)) && missing.hint().contains("install"));
    assert!(matches!(db::once(&tx, "x"), Err(Error::NotInstalled(_))));
    let forgotten = db::forget_older_than(&tx, Duration::ZERO, 1);
    assert!(matches!(forgotten, Err(Error::NotInstalled(_))));
    tx.execute_batch(&SCHEMA.join(";")).unwrap();
    db::install(&tx).unwrap(); // once more does no harm
    db::fence(&tx, "t", token(1)).unwrap();
    assert!(matches!(db::fence(&tx, "", token(1)), Err(Error::Usage(_))));
    tx.execute("UPDATE distlock_fence SET layout = 2", []).unwrap();
    assert!(matches!(db::fence(&tx, "t", token(1)), Err(Error::Layout(_))));
}
