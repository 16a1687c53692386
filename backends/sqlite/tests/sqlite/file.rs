//! Where the file may lie, who may open it, and what a strange one is answered with.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use distlock_core::capability::{Fence, Survives};
use distlock_core::info::Query;
use distlock_core::lease::LeaseStore;
use distlock_core::{Clock, Error, Kind, Name, Namespace, Outcome};
use distlock_sqlite::{Sqlite, SqliteOptions, Sync, capability};
use distlock_testkit::fellow::Fellow;

use crate::kit::{Dir, Moves, Named, ask, cycle, is_busy, lock, open, run, take};

pub(crate) const TRIALS: &[Named] = &[
    ("sixteen_processes_open_an_empty_store_at_once", sixteen),
    ("files_are_private_and_parents_are_made", private),
    ("strange_files_and_paths_are_refused_with_a_hint", strange),
    ("a_newer_layout_is_refused", newer),
    ("a_damaged_row_spoils_only_its_own_lock", damaged),
    ("another_time_namespace_is_refused", namespace),
    ("a_locked_database_is_unreachable_in_bounded_time", locked),
    ("awkward_names_are_locks_of_their_own", awkward),
    ("listing_pages_through_a_prefix", paging),
    ("a_link_leads_to_the_same_store", link),
    ("a_closed_store_says_so", closed),
    ("the_capability_says_what_a_reboot_does", promise),
];

async fn refused(path: impl AsRef<std::path::Path>) -> Error {
    let e = Sqlite::open(path, SqliteOptions::default()).await.map(|_| ()).unwrap_err();
    assert!(e.hint().is_some(), "{e}");
    e
}

fn sixteen() {
    // Again and again: a race that is lost once in ten openings must not hide.
    for _ in 0..5 {
        sixteen_once();
    }
}

fn sixteen_once() {
    let dir = Dir::new();
    let mut children: Vec<_> = (0..16).map(|_| Fellow::start("open", dir.db())).collect();
    for child in &mut children {
        assert_eq!(child.line(), "ready");
    }
    for child in &mut children {
        child.tell("go");
    }
    for child in &mut children {
        let token: u64 = child.line().parse().expect("a token");
        assert!(token > 0);
    }
    let rows: i64 = dir.raw().query_row("SELECT count(*) FROM locks", [], |r| r.get(0)).unwrap();
    assert_eq!(rows, 16);
}

fn private() {
    let dir = Dir::new();
    let db = dir.path().join("some/where/locks.db");
    run(async {
        let store = Sqlite::open(&db, SqliteOptions::default()).await.unwrap();
        assert_eq!(store.info().site, format!("sqlite:{}", db.display()));
        cycle(&store, "x").await;
        let mode = |p: &str| {
            fs::metadata(dir.path().join("some/where").join(p)).unwrap().permissions().mode()
                & 0o777
        };
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            assert_eq!(mode(file), 0o600, "{file}");
        }
        assert_eq!(mode("locks.db.distlock"), 0o700);
        assert_eq!(mode("../where"), 0o700);
        let sockets = || fs::read_dir(db.with_file_name("locks.db.distlock")).unwrap().count();
        assert_eq!(sockets(), 1);
        drop(store);
        assert_eq!(sockets(), 0);
    });
}

fn strange() {
    let dir = Dir::new();
    run(async {
        for path in ["", ":memory:", "file:x?mode=memory"] {
            assert_eq!(refused(path).await.kind(), Kind::Usage, "{path}");
        }
        assert_eq!(refused(dir.path()).await.kind(), Kind::Usage);
        assert_eq!(refused("/proc/self/locks.db").await.kind(), Kind::Refused);
        let text = dir.path().join("notes.txt");
        fs::write(&text, "not a database, but long enough to look like one? ".repeat(50)).unwrap();
        assert_eq!(refused(&text).await.kind(), Kind::Layout);
        assert_eq!(refused(text.join("below.db")).await.kind(), Kind::Usage);
        let long = dir.path().join("d".repeat(250)).join("e".repeat(250));
        assert_eq!(refused(long.join("locks.db")).await.kind(), Kind::Usage);
        let other = dir.path().join("other.db");
        rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        assert_eq!(refused(&other).await.kind(), Kind::Layout);
    });
}

fn newer() {
    let dir = Dir::new();
    run(async {
        cycle(&open(&dir, &Clock::system()).await, "x").await;
        dir.raw().execute_batch("PRAGMA user_version = 4").unwrap();
        let e = refused(dir.db()).await;
        assert_eq!(e.kind(), Kind::Layout);
        assert!(e.hint().unwrap().contains("upgrade"));
    });
}

fn damaged() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        cycle(&store, "bad").await;
        cycle(&store, "good").await;
        dir.raw().execute("UPDATE locks SET state = '{' WHERE name = 'bad'", []).unwrap();
        let ask = ask("bad");
        let e = store.acquire(&ask, None).await.unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (Kind::Layout, Outcome::NotApplied));
        assert!(e.to_string().contains("\"bad\"") && e.hint().is_some(), "{e}");
        cycle(&store, "good").await;
    });
}

fn namespace() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        cycle(&store, "x").await;
        dir.raw().execute("UPDATE meta SET shift = '86400 0'", []).unwrap();
        assert_eq!(store.acquire(&ask("x"), None).await.unwrap_err().kind(), Kind::Refused);
        assert_eq!(store.inspect(&Query::Name(lock("x"))).await.unwrap_err().kind(), Kind::Refused);
        assert_eq!(refused(dir.db()).await.kind(), Kind::Refused);
    });
}

fn locked() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        let raw = dir.raw();
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        let (first, second) = (ask("x"), ask("y"));
        let clock = Clock::system();
        let start = clock.now();
        let (a, b) = tokio::join!(store.acquire(&first, None), store.acquire(&second, None));
        let took = clock.now().since(start);
        for e in [a.unwrap_err(), b.unwrap_err()] {
            assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::NotApplied));
            assert!(e.is_transient() && e.hint().is_some());
        }
        assert!(took.as_secs() < 15, "{took:?}");
        raw.execute_batch("COMMIT").unwrap();
        take(&store, &first).await;
    });
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "a/b",
        "a%",
        "a_",
        "{x}",
        "two words",
        "line\nbreak",
        "\"'`",
        "замок",
        "锁",
        " ",
        "é",
    ]
    .map(String::from)
    .to_vec();
    names.push("x".repeat(255));
    names.push("\u{10FFFF}".into());
    names
}

fn awkward() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        for name in names() {
            take(&store, &ask(&name)).await;
        }
        for name in names() {
            assert!(is_busy(&store, &name).await, "{name:?}");
            let seen = store.inspect(&Query::Name(lock(&name))).await.unwrap();
            assert_eq!(seen[0].lock, lock(&name));
        }
        // The same name in another namespace is another lock.
        let mut elsewhere = ask("a");
        elsewhere.lock.space = Namespace::new("shop").unwrap();
        take(&store, &elsewhere).await;
    });
}

fn paging() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        let mut all: Vec<String> = (0..25).map(|i| format!("p%/{i:02}")).collect();
        for name in &all {
            take(&store, &ask(name)).await;
        }
        // Neighbours that a pattern would match, one that is free, one elsewhere.
        for name in ["p", "pX/00", "p%0", "p&"] {
            take(&store, &ask(name)).await;
        }
        cycle(&store, "p%/03b").await;
        let mut elsewhere = ask("p%/zz");
        elsewhere.lock.space = Namespace::new("shop").unwrap();
        take(&store, &elsewhere).await;
        let mut seen: Vec<Name> = Vec::new();
        loop {
            let query = Query::Prefix {
                space: Namespace::default(),
                prefix: "p%/".into(),
                after: seen.last().cloned(),
                limit: 10,
            };
            let page = store.inspect(&query).await.unwrap();
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= 10);
            seen.extend(page.into_iter().map(|l| l.lock.name));
        }
        all.sort();
        assert_eq!(seen.iter().map(|n| n.as_str().to_owned()).collect::<Vec<_>>(), all);
    });
}

fn link() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        take(&store, &ask("x")).await;
        let link = dir.path().join("link.db");
        std::os::unix::fs::symlink(dir.db(), &link).unwrap();
        let same = Sqlite::open(&link, SqliteOptions::default()).await.unwrap();
        assert_eq!(same.info().site, store.info().site);
        assert!(is_busy(&same, "x").await);
    });
}

fn closed() {
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        store.close().await;
        assert_eq!(store.acquire(&ask("x"), None).await.unwrap_err().kind(), Kind::Closed);
        store.close().await;
    });
}

fn promise() {
    let cap = capability(Sync::Full);
    assert_eq!((cap.fence, cap.restart), (Fence::Durable, Survives::Ends));
    let dir = Dir::new();
    run(async {
        let store = open(&dir, &Clock::system()).await;
        assert_eq!(store.info().capability.fence, Fence::Durable);
        // What a reboot takes away cannot be a durable fence.
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let store =
            Sqlite::open(shm.path().join("locks.db"), SqliteOptions::default()).await.unwrap();
        assert_eq!(store.info().capability.fence, Fence::Clocked);
    });
}
