// Included once for each database, with `db`, `Db`, `Pool`, `Connection`, `ID` and `waits`.

use std::time::{Duration, SystemTime};

use distlock_fence::optimistic::Tries;
use distlock_fence::{Column, Error, Once, Stale};
use libtest_mimic::Trial;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor, Transaction};
use tokio::task::JoinHandle;

use crate::{token, until};

async fn run(on: impl Executor<'_, Database = Db>, sql: impl Into<String>) -> sqlx::Result<u64> {
    Ok(sqlx::query(AssertSqlSafe(sql.into())).execute(on).await?.rows_affected())
}

async fn number(on: impl Executor<'_, Database = Db>, sql: impl Into<String>) -> i64 {
    let (n,): (i64,) = sqlx::query_as(AssertSqlSafe(sql.into())).fetch_one(on).await.unwrap();
    n
}

/// A table of one row (1, 0, 0) of its own.
async fn table(pool: &Pool, name: &str) -> Column {
    let columns = "id BIGINT PRIMARY KEY, n BIGINT NOT NULL, v BIGINT NOT NULL, fence BIGINT";
    run(pool, format!("CREATE TABLE {name} ({columns})")).await.unwrap();
    run(pool, format!("INSERT INTO {name} (id, n, v) VALUES (1, 0, 0)")).await.unwrap();
    Column::new(name, "id", "n").unwrap()
}

/// Somebody else in a transaction of their own, on a connection whose waiting can be seen.
struct Other<T> {
    id: i64,
    work: JoinHandle<T>,
}

impl<T: Send + 'static> Other<T> {
    async fn starts<F>(pool: &Pool, work: impl FnOnce(PoolConnection<Db>) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut conn = pool.acquire().await.unwrap();
        let id = number(&mut *conn, ID).await;
        Self { id, work: tokio::spawn(work(conn)) }
    }

    async fn waits(&self, pool: &Pool) {
        until("the other waits for a lock", || async {
            assert!(!self.work.is_finished(), "it did not wait");
            waits(pool, self.id).await
        })
        .await;
    }
}

async fn a_stale_token_is_refused_and_its_transaction_writes_nothing(pool: Pool) {
    let t = table(&pool, "refused").await;
    let mut tx = pool.begin().await.unwrap();
    db::fence(&mut tx, "refused", token(7)).await.unwrap();
    db::fence(&mut tx, "refused", token(7)).await.unwrap(); // again, with the same token
    run(&mut *tx, "UPDATE refused SET n = 7").await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    run(&mut *tx, "UPDATE refused SET n = 6").await.unwrap();
    let Err(Error::Stale(stale)) = db::fence(&mut tx, "refused", token(6)).await else {
        panic!("a stale token was let in")
    };
    assert_eq!(
        stale,
        Stale { resource: "refused".into(), token: token(6), highest: token(7) }
    );
    // Whoever overlooks the error gets nowhere: not before, not after, not by committing.
    assert!(run(&mut *tx, "UPDATE refused SET n = 66").await.is_err());
    let _ = tx.commit().await;
    assert_eq!(number(&pool, "SELECT n FROM refused").await, 7);
    assert!(db::take(&mut pool.acquire().await.unwrap(), &t, 1_i64, 7).await.unwrap());

    // The connection is as good as before, and so is the fence.
    let mut tx = pool.begin().await.unwrap();
    db::fence(&mut tx, "refused", token(8)).await.unwrap();
    run(&mut *tx, "UPDATE refused SET n = 8").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(number(&pool, "SELECT n FROM refused").await, 8);
}

async fn tokens_of_all_sizes_are_told_apart(pool: Pool) {
    let max = (1_u64 << 63) - 1;
    for (resource, low, high) in
        [("a", 1, 2), ("a ", 9, 10), ("A", (1 << 53), (1 << 53) + 1), ("ä/🦀", max - 1, max)]
    {
        let mut tx = pool.begin().await.unwrap();
        db::fence(&mut tx, resource, token(high)).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let late = db::fence(&mut tx, resource, token(low)).await.unwrap_err();
        assert_eq!(late.stale().unwrap().highest, token(high), "{resource:?}");
        tx.rollback().await.unwrap();
    }
    let mut tx = pool.begin().await.unwrap();
    let long = "x".repeat(256);
    for bad in ["", "a\0b", &long] {
        let refused = db::fence(&mut tx, bad, token(1)).await;
        assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    }
}

async fn a_newer_holder_waits_for_the_older_and_sees_what_it_did(pool: Pool) {
    table(&pool, "newer").await;
    let mut old = pool.begin().await.unwrap();
    db::fence(&mut old, "newer", token(5)).await.unwrap();
    let new = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        db::fence(&mut tx, "newer", token(6)).await.unwrap();
        // Also where a transaction reads one snapshot: it is not taken before the fence.
        let seen = number(&mut *tx, "SELECT n FROM newer").await;
        tx.commit().await.unwrap();
        seen
    })
    .await;
    new.waits(&pool).await;
    run(&mut *old, "UPDATE newer SET n = 5").await.unwrap();
    old.commit().await.unwrap();
    assert_eq!(new.work.await.unwrap(), 5);
}

async fn an_older_holder_waits_for_the_newer_and_is_refused(pool: Pool) {
    let mut new = pool.begin().await.unwrap();
    db::fence(&mut new, "older", token(6)).await.unwrap();
    let old = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        db::fence(&mut tx, "older", token(5)).await
    })
    .await;
    old.waits(&pool).await;
    new.commit().await.unwrap();
    let refused = old.work.await.unwrap().unwrap_err();
    assert_eq!(refused.stale().unwrap().highest, token(6));
}

async fn a_fence_that_was_rolled_back_refuses_nobody(pool: Pool) {
    let mut new = pool.begin().await.unwrap();
    db::fence(&mut new, "undone", token(6)).await.unwrap();
    let old = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        let let_in = db::fence(&mut tx, "undone", token(5)).await;
        tx.commit().await.unwrap();
        let_in
    })
    .await;
    old.waits(&pool).await;
    new.rollback().await.unwrap();
    old.work.await.unwrap().unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert!(db::fence(&mut tx, "undone", token(4)).await.unwrap_err().stale().is_some());
}

async fn a_crowd_at_a_new_resource_meets_no_deadlock(pool: Pool) {
    for round in 0..5 {
        let crowd = (1..=12).map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                let let_in = db::fence(&mut tx, &format!("crowd/{round}"), token(n)).await;
                match &let_in {
                    Ok(()) => tx.commit().await.unwrap(),
                    Err(_) => tx.rollback().await.unwrap(),
                }
                let_in
            })
        });
        let crowd: Vec<_> = crowd.collect();
        for one in crowd {
            let let_in = one.await.unwrap();
            assert!(matches!(let_in, Ok(()) | Err(Error::Stale(_))), "{let_in:?}");
        }
        let highest = format!("SELECT token FROM distlock_fence WHERE resource = 'crowd/{round}'");
        assert_eq!(number(&pool, highest).await, 12, "the highest is always let in");
    }
}

async fn two_who_cross_are_told_to_run_again(pool: Pool) {
    for resource in ["cross/a", "cross/b"] {
        let mut tx = pool.begin().await.unwrap();
        db::fence(&mut tx, resource, token(1)).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut mine = pool.begin().await.unwrap();
    db::fence(&mut mine, "cross/a", token(2)).await.unwrap();
    let other = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        db::fence(&mut tx, "cross/b", token(2)).await?;
        db::fence(&mut tx, "cross/a", token(2)).await?;
        tx.commit().await.unwrap();
        Ok::<(), Error>(())
    })
    .await;
    other.waits(&pool).await;
    let me = db::fence(&mut mine, "cross/b", token(2)).await;
    match &me {
        Ok(()) => mine.commit().await.unwrap(),
        Err(_) => mine.rollback().await.unwrap(),
    }
    let both = [me, other.work.await.unwrap()];
    let again = both.iter().flat_map(|r| r.as_ref().err()).filter(|e| e.is_retryable()).count();
    let done = both.iter().filter(|r| r.is_ok()).count();
    assert_eq!((again, done), (1, 1), "{both:?}");
}

async fn a_row_has_a_fence_of_its_own(pool: Pool) {
    table(&pool, "own_fence").await;
    let fence = Column::new("own_fence", "id", "fence").unwrap();
    let mut tx = pool.begin().await.unwrap();
    db::fence_row(&mut tx, &fence, 1_i64, token(5)).await.unwrap(); // NULL so far
    db::fence_row(&mut tx, &fence, 1_i64, token(5)).await.unwrap();
    let newer = Other::starts(&pool, {
        let fence = fence.clone();
        |mut conn| async move {
            let mut tx = conn.begin().await.unwrap();
            db::fence_row(&mut tx, &fence, 1_i64, token(6)).await.unwrap();
            tx.commit().await.unwrap();
        }
    })
    .await;
    newer.waits(&pool).await;
    tx.commit().await.unwrap();
    newer.work.await.unwrap();
    // The other way round: the older waits for the newer, and is refused.
    let mut tx = pool.begin().await.unwrap();
    db::fence_row(&mut tx, &fence, 1_i64, token(8)).await.unwrap();
    let older = Other::starts(&pool, {
        let fence = fence.clone();
        |mut conn| async move {
            let mut tx = conn.begin().await.unwrap();
            let let_in = db::fence_row(&mut tx, &fence, 1_i64, token(7)).await;
            tx.commit().await.unwrap();
            let_in
        }
    })
    .await;
    older.waits(&pool).await;
    tx.commit().await.unwrap();
    assert_eq!(older.work.await.unwrap().unwrap_err().stale().unwrap().highest, token(8));
    let mut tx = pool.begin().await.unwrap();
    let late = db::fence_row(&mut tx, &fence, 1_i64, token(5)).await.unwrap_err();
    assert_eq!(late.stale().unwrap().highest, token(8));
    assert!(run(&mut *tx, "UPDATE own_fence SET n = 5").await.is_err());
    drop(tx);
    let mut tx = pool.begin().await.unwrap();
    let missing = db::fence_row(&mut tx, &fence, 2_i64, token(9)).await.unwrap_err();
    assert!(matches!(&missing, Error::Missing { row } if row == "row 2 in own_fence"));
}

async fn stock_is_taken_to_the_last_and_never_further(pool: Pool) {
    let stock = table(&pool, "taken").await;
    run(&pool, "UPDATE taken SET n = 100").await.unwrap();
    let buyers: Vec<_> = (0..8)
        .map(|_| {
            let (pool, stock) = (pool.clone(), stock.clone());
            tokio::spawn(async move {
                let mut conn = pool.acquire().await.unwrap();
                let mut got = 0;
                for _ in 0..20 {
                    got += u32::from(db::take(&mut conn, &stock, 1_i64, 1).await.unwrap());
                }
                got
            })
        })
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.unwrap();
    }
    assert_eq!((sold, number(&pool, "SELECT n FROM taken").await), (100, 0));
    let conn: &mut Connection = &mut pool.acquire().await.unwrap();
    let missing = db::take(conn, &stock, 7_i64, 1).await;
    assert!(matches!(missing, Err(Error::Missing { .. })), "{missing:?}");
}

async fn changes_by_version_are_all_kept(pool: Pool) {
    let row = table(&pool, "versions").await.versioned_by("v").unwrap();
    let tries = Tries::at_most(1000);
    let crowd: Vec<_> = (0..6)
        .map(|_| {
            let (pool, row, tries) = (pool.clone(), row.clone(), tries.clone());
            tokio::spawn(async move {
                for _ in 0..5 {
                    let n = db::change(&pool, &row, 1_i64, &tries, |n: &i64| Some(n + 1)).await;
                    assert!(n.unwrap().is_some());
                }
            })
        })
        .collect();
    for one in crowd {
        one.await.unwrap();
    }
    assert_eq!(number(&pool, "SELECT n FROM versions").await, 30);
    assert_eq!(number(&pool, "SELECT v FROM versions").await, 30);
    let left = db::change(&pool, &row, 1_i64, &tries, |n: &i64| (*n > 30).then_some(0)).await;
    assert_eq!((left.unwrap(), number(&pool, "SELECT v FROM versions").await), (None, 30));
}

async fn a_change_that_is_always_overtaken_is_a_conflict(pool: Pool) {
    let row = table(&pool, "overtaken").await.versioned_by("v").unwrap();
    let tries = Tries::at_most(3).pauses(Duration::ZERO, Duration::ZERO);
    let changed = db::change(&pool, &row, 1_i64, &tries, |_: &i64| {
        // Between the read and the write, each time.
        tokio::task::block_in_place(|| {
            let faster = run(&pool, "UPDATE overtaken SET n = n + 1, v = v + 1");
            tokio::runtime::Handle::current().block_on(faster).unwrap();
        });
        Some(-1)
    })
    .await;
    let Err(Error::Conflict(conflict)) = changed else { panic!("{changed:?}") };
    assert_eq!((conflict.what.as_str(), conflict.tries), ("row 1 in overtaken", 3));
    assert_eq!(number(&pool, "SELECT n FROM overtaken").await, 3, "nothing of it was written");
    let missing = db::change(&pool, &row, 2_i64, &tries, |_: &i64| None).await;
    assert!(matches!(missing, Err(Error::Missing { .. })), "{missing:?}");
}

async fn first(tx: &mut Transaction<'_, Db>, key: &str, answer: &str) {
    match db::once(tx, key).await.unwrap() {
        Once::First(first) => db::answer(tx, first, answer.as_bytes()).await.unwrap(),
        done => panic!("{done:?}"),
    }
}

async fn an_effect_happens_once_and_its_answer_is_kept(pool: Pool) {
    let mut tx = pool.begin().await.unwrap();
    first(&mut tx, "pay/1", "receipt 17").await;
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Once::AlreadyDone { answer, at } = db::once(&mut tx, "pay/1").await.unwrap() else {
        panic!("it would be done twice")
    };
    assert_eq!(answer.as_deref(), Some(&b"receipt 17"[..]));
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
    // The transaction that was told so goes on.
    first(&mut tx, "pay/2", "").await;
    tx.commit().await.unwrap();
    // An effect without an answer is done as well.
    let mut tx = pool.begin().await.unwrap();
    assert!(matches!(db::once(&mut tx, "pay/3").await, Ok(Once::First(_))));
    assert!(matches!(
        db::once(&mut tx, "pay/3").await,
        Ok(Once::AlreadyDone { answer: None, .. })
    ));
}

async fn who_asks_during_the_first_run_waits_for_its_answer(pool: Pool) {
    let mut tx = pool.begin().await.unwrap();
    first(&mut tx, "during", "42").await;
    let second = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        db::once(&mut tx, "during").await.unwrap()
    })
    .await;
    second.waits(&pool).await;
    tx.commit().await.unwrap();
    let Once::AlreadyDone { answer, .. } = second.work.await.unwrap() else {
        panic!("it would be done twice")
    };
    assert_eq!(answer.as_deref(), Some(&b"42"[..]));
}

async fn who_asks_during_a_first_run_that_fails_is_first(pool: Pool) {
    let mut tx = pool.begin().await.unwrap();
    first(&mut tx, "fails", "never seen").await;
    let second = Other::starts(&pool, |mut conn| async move {
        let mut tx = conn.begin().await.unwrap();
        first(&mut tx, "fails", "mine").await;
        tx.commit().await.unwrap();
    })
    .await;
    second.waits(&pool).await;
    tx.rollback().await.unwrap();
    second.work.await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Once::AlreadyDone { answer, .. } = db::once(&mut tx, "fails").await.unwrap() else {
        panic!("it would be done twice")
    };
    assert_eq!(answer.as_deref(), Some(&b"mine"[..]));
}

/// In a database of its own: it counts what is in the tables, and that they are missing.
async fn tables_are_made_on_request_and_old_effects_forgotten_in_steps(pool: Pool, bare: Pool) {
    run(&pool, "CREATE DATABASE bare").await.unwrap();
    let mut tx = bare.begin().await.unwrap();
    let missing = db::fence(&mut tx, "x", token(1)).await;
    assert!(matches!(missing, Err(Error::NotInstalled(_))), "{missing:?}");
    drop(tx);
    let mut tx = bare.begin().await.unwrap();
    let missing = db::once(&mut tx, "x").await;
    assert!(matches!(missing, Err(Error::NotInstalled(_))), "{missing:?}");
    drop(tx);

    let all: Vec<_> = (0..8)
        .map(|_| {
            let bare = bare.clone();
            tokio::spawn(async move { db::install(&bare).await })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }

    for n in 0..5 {
        let mut tx = bare.begin().await.unwrap();
        first(&mut tx, &format!("old/{n}"), "").await;
        tx.commit().await.unwrap();
    }
    run(&bare, "UPDATE distlock_once SET at = at - 7200000000").await.unwrap();
    let mut tx = bare.begin().await.unwrap();
    first(&mut tx, "young", "").await;
    tx.commit().await.unwrap();
    let conn: &mut Connection = &mut bare.acquire().await.unwrap();
    let hour = Duration::from_secs(3600);
    for gone in [3, 2, 0] {
        assert_eq!(db::forget_older_than(conn, hour, 3).await.unwrap(), gone);
    }
    assert_eq!(number(&bare, "SELECT COUNT(*) FROM distlock_once").await, 1);

    run(&bare, "UPDATE distlock_once SET layout = 2").await.unwrap();
    let mut tx = bare.begin().await.unwrap();
    db::fence(&mut tx, "x", token(1)).await.unwrap();
    run(&mut *tx, "UPDATE distlock_fence SET layout = 2").await.unwrap();
    let newer = db::fence(&mut tx, "x", token(1)).await;
    assert!(matches!(newer, Err(Error::Layout(_))), "{newer:?}");
    let newer = db::once(&mut tx, "young").await;
    assert!(matches!(newer, Err(Error::Layout(_))), "{newer:?}");
}

pub(super) fn trials(runtime: &tokio::runtime::Runtime, url: &str) -> Vec<Trial> {
    let pools = sqlx::pool::PoolOptions::<Db>::new().max_connections(24);
    let _inside = runtime.enter();
    let pool = pools.clone().connect_lazy(url).unwrap();
    let bare = pools.connect_lazy(&format!("{}/bare", url.rsplit_once('/').unwrap().0)).unwrap();
    runtime.block_on(db::install(&pool)).unwrap();
    let mut trials = Vec::new();
    let store = module_path!().rsplit("::").next().unwrap();
    macro_rules! laws {
        ($($law:ident($($pool:ident),*);)*) => {$({
            let handle = runtime.handle().clone();
            $(let $pool = $pool.clone();)*
            let law = move || {
                // On a task, so that a panic is that of the trial.
                let done = handle.block_on(handle.spawn($law($($pool),*)));
                done.map_err(|e| e.to_string().into())
            };
            trials.push(Trial::test(concat!("laws::", stringify!($law)), law).with_kind(store));
        })*};
    }
    laws! {
        a_stale_token_is_refused_and_its_transaction_writes_nothing(pool);
        tokens_of_all_sizes_are_told_apart(pool);
        a_newer_holder_waits_for_the_older_and_sees_what_it_did(pool);
        an_older_holder_waits_for_the_newer_and_is_refused(pool);
        a_fence_that_was_rolled_back_refuses_nobody(pool);
        a_crowd_at_a_new_resource_meets_no_deadlock(pool);
        two_who_cross_are_told_to_run_again(pool);
        a_row_has_a_fence_of_its_own(pool);
        stock_is_taken_to_the_last_and_never_further(pool);
        changes_by_version_are_all_kept(pool);
        a_change_that_is_always_overtaken_is_a_conflict(pool);
        an_effect_happens_once_and_its_answer_is_kept(pool);
        who_asks_during_the_first_run_waits_for_its_answer(pool);
        who_asks_during_a_first_run_that_fails_is_first(pool);
        tables_are_made_on_request_and_old_effects_forgotten_in_steps(pool, bare);
        what_only_this_database_does(pool);
    }
    trials
}
