//! What the page about once-only effects says that the statements do, they do.

use libtest_mimic::Trial;
use sqlx::{Executor, MySqlPool, PgPool};

async fn mysql(pool: MySqlPool) {
    let run = async |sql: &'static str| pool.execute(sql).await.map(|done| done.rows_affected());
    let one = async |sql: &'static str| {
        let (n,): (i64,) = sqlx::query_as(sql).fetch_one(&pool).await.unwrap();
        n
    };
    for table in [
        "CREATE TABLE parent (id INT PRIMARY KEY) ENGINE=InnoDB",
        "CREATE TABLE said (id BIGINT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(5) UNIQUE NOT NULL,
           n INT NOT NULL, note VARCHAR(9), parent INT,
           FOREIGN KEY (parent) REFERENCES parent (id)) ENGINE=InnoDB",
        "CREATE TABLE child (said BIGINT, FOREIGN KEY (said) REFERENCES said (id)
           ON DELETE CASCADE) ENGINE=InnoDB",
    ] {
        run(table).await.unwrap();
    }
    // INSERT IGNORE hides more than duplicates.
    assert_eq!(run("INSERT IGNORE INTO said (k, n) VALUES ('too long', 1)").await.unwrap(), 1);
    assert_eq!(one("SELECT COUNT(*) FROM said WHERE k = 'too l'").await, 1, "cut");
    run("INSERT IGNORE INTO said (k, n) VALUES ('null', NULL), ('x', 2)").await.unwrap();
    assert_eq!(one("SELECT CAST(n AS SIGNED) FROM said WHERE k = 'null'").await, 0);
    let orphan = "INSERT IGNORE INTO said (k, n, parent) VALUES ('kid', 1, 99)";
    assert_eq!(run(orphan).await.unwrap(), 0, "skipped");
    assert_eq!(run("INSERT IGNORE INTO said (k, n) VALUES ('x', 3)").await.unwrap(), 0);

    // ON DUPLICATE KEY UPDATE: how many rows it affects does not tell new from same here.
    let upsert = "INSERT INTO said (k, n) VALUES ('x', 7) ON DUPLICATE KEY UPDATE n = 7";
    assert_eq!(run(upsert).await.unwrap(), 2, "changed");
    assert_eq!(run(upsert).await.unwrap(), 1, "the same");
    let new = "INSERT INTO said (k, n) VALUES ('y', 7) ON DUPLICATE KEY UPDATE n = 7";
    assert_eq!(run(new).await.unwrap(), 1, "new");
    let (x, y) = ("SELECT id FROM said WHERE k = 'x'", "SELECT id FROM said WHERE k = 'y'");
    assert!(one(y).await - one(x).await > 2, "numbers were used up");

    // REPLACE deletes.
    run("UPDATE said SET note = 'kept?' WHERE k = 'x'").await.unwrap();
    run("INSERT INTO child SELECT id FROM said WHERE k = 'x'").await.unwrap();
    let before = one(x).await;
    assert_eq!(run("REPLACE INTO said (k, n) VALUES ('x', 7)").await.unwrap(), 2);
    assert_ne!(one(x).await, before, "another row");
    assert_eq!(one("SELECT COUNT(*) FROM said WHERE note = 'kept?'").await, 0);
    assert_eq!(one("SELECT COUNT(*) FROM child").await, 0, "its children went with it");

    // A plain insert fails alone; the transaction goes on.
    let mut tx = pool.begin().await.unwrap();
    assert!(tx.execute("INSERT INTO said (k, n) VALUES ('x', 1)").await.is_err());
    tx.execute("INSERT INTO said (k, n) VALUES ('z', 1)").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(one("SELECT COUNT(*) FROM said WHERE k = 'z'").await, 1);
}

async fn postgres(pool: PgPool) {
    let run = async |sql: &'static str| pool.execute(sql).await.map(|done| done.rows_affected());
    run("CREATE TABLE said (k text PRIMARY KEY, n int NOT NULL)").await.unwrap();
    run("INSERT INTO said VALUES ('x', 1)").await.unwrap();
    assert_eq!(run("INSERT INTO said VALUES ('x', 2) ON CONFLICT DO NOTHING").await.unwrap(), 0);
    assert!(run("INSERT INTO said VALUES ('y', NULL) ON CONFLICT DO NOTHING").await.is_err());
    // A plain insert that fails takes the transaction with it.
    let mut tx = pool.begin().await.unwrap();
    assert!(tx.execute("INSERT INTO said VALUES ('x', 3)").await.is_err());
    assert!(tx.execute("INSERT INTO said VALUES ('z', 3)").await.is_err());
    tx.commit().await.unwrap(); // which the server makes a rollback
    // An update that changes nothing writes a row version all the same.
    let version = "SELECT CAST(CAST(xmin AS text) AS bigint) FROM said WHERE k = 'x'";
    let (before,): (i64,) = sqlx::query_as(version).fetch_one(&pool).await.unwrap();
    let same = "INSERT INTO said VALUES ('x', 1) ON CONFLICT (k) DO UPDATE SET n = said.n";
    assert_eq!(run(same).await.unwrap(), 1);
    let (after,): (i64,) = sqlx::query_as(version).fetch_one(&pool).await.unwrap();
    assert_ne!(before, after);
}

fn sqlite() {
    let db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch(
        "PRAGMA foreign_keys = ON;
         CREATE TABLE said (k TEXT PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0), note TEXT);
         CREATE TABLE child (k TEXT REFERENCES said (k) ON DELETE CASCADE);
         INSERT INTO said VALUES ('x', 1, 'kept?'); INSERT INTO child VALUES ('x');",
    )
    .unwrap();
    let run = |sql: &str| db.execute(sql, []);
    for silent in ["('x', 2)", "('y', NULL)", "('y', -1)"] {
        let ignored = run(&format!("INSERT OR IGNORE INTO said (k, n) VALUES {silent}"));
        assert_eq!(ignored.unwrap(), 0, "{silent}");
        let told =
            run(&format!("INSERT INTO said (k, n) VALUES {silent} ON CONFLICT (k) DO NOTHING"));
        assert_eq!(told.is_ok(), silent.starts_with("('x'"), "{silent}");
    }
    run("INSERT OR REPLACE INTO said (k, n) VALUES ('x', 5)").unwrap();
    let left = "SELECT (SELECT count(*) FROM child) + (SELECT count(*) FROM said WHERE note <> '')";
    assert_eq!(db.query_row(left, [], |r| r.get(0)), Ok(0));
}

pub(super) fn trials(runtime: &tokio::runtime::Runtime, mysql_url: &str, pg: &str) -> Vec<Trial> {
    let handle = runtime.handle().clone();
    let _inside = runtime.enter();
    let on_mysql = MySqlPool::connect_lazy(mysql_url).unwrap();
    let on_postgres = PgPool::connect_lazy(pg).unwrap();
    let (first, second) = (handle.clone(), handle);
    let said = |e: tokio::task::JoinError| e.to_string().into();
    vec![
        Trial::test("statements::mysql", move || {
            first.block_on(first.spawn(mysql(on_mysql))).map_err(said)
        }),
        Trial::test("statements::postgres", move || {
            second.block_on(second.spawn(postgres(on_postgres))).map_err(said)
        }),
        Trial::test("statements::sqlite", || {
            sqlite();
            Ok(())
        }),
    ]
}
