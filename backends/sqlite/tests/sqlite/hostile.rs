//! What operators and machines do to a file that is in use.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::Due;
use distlock_core::lease::Wake;
use distlock_core::state::Reply;
use distlock_core::{Clock, Kind, LossReason, ReqId, engine};
use distlock_sqlite::{Sqlite, SqliteOptions};
use distlock_testkit::Stopwatch;
use distlock_testkit::fellow::Fellow;

use crate::kit::{Dir, Moves, Named, SOON, TTL, ask, cycle, give, join, open, run, sink, take};

pub(crate) const TRIALS: &[Named] = &[
    ("s07_a_holder_hears_that_the_database_was_removed", removed),
    ("a_removed_shm_file_does_not_split_the_store", shm_removed),
    ("a_database_with_two_names_is_refused", hard_link),
    ("a_removed_socket_comes_back_with_the_next_heartbeat", socket_removed),
    ("a_removed_socket_directory_comes_back", sockets_removed),
    ("many_waiters_of_a_stopped_process_are_passed_over_together", stopped),
    ("an_empty_datagram_ends_nothing", empty_letter),
    ("a_child_program_inherits_no_descriptor", inherits),
    ("paths_are_taken_literally", literal),
    ("without_descriptors_there_is_an_error_and_a_recovery", no_descriptors),
];

fn due(ask: &distlock_core::backend::Ask) -> Vec<Due> {
    vec![Due { key: ask.key(), ttl: TTL }]
}

fn removed() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        let held = ask("x");
        let token = take(&a, &held).await;
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            fs::remove_file(dir.path().join(file)).unwrap();
        }
        let b = open(&dir, &Clock::system()).await;
        let other = ask("x");
        assert!(take(&b, &other).await > token);
        // It may take one call to notice; it must not be told that it still holds.
        let renewal = a.renew(&due(&held)).await.remove(0);
        assert!(!matches!(renewal, Ok(Reply::Renewed { .. })), "{renewal:?}");
        let renewal = a.renew(&due(&held)).await.remove(0);
        assert!(matches!(renewal, Ok(Reply::Lost(LossReason::Gone))), "{renewal:?}");
        // And both stores are one again.
        let answer = a.acquire(&ask("x"), None).await;
        assert!(matches!(answer, Ok(Reply::Busy { .. }) | Err(_)), "{answer:?}");
        let answer = a.acquire(&ask("x"), None).await.unwrap();
        assert!(matches!(answer, Reply::Busy { .. }), "{answer:?}");
        give(&b, &other.key()).await;
        cycle(&a, "x").await;
    });
}

fn shm_removed() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        cycle(&a, "x").await;
        // The locks between processes are on this file: two of them are two stores.
        fs::remove_file(dir.path().join("locks.db-shm")).unwrap();
        let mut other = Fellow::start("hold", dir.db());
        assert!(!other.line().is_empty());
        let e = a.acquire(&ask("held"), None).await.expect_err("the child holds it");
        assert!(e.kind() == Kind::Store && e.hint().is_some(), "{e}");
        other.kill();
    });
}

fn hard_link() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        cycle(&a, "x").await;
        let second = dir.path().join("second.db");
        fs::hard_link(dir.db(), &second).unwrap();
        let e = Sqlite::open(&second, SqliteOptions::default()).await.map(|_| ()).unwrap_err();
        assert_eq!(e.kind(), Kind::Refused, "{e}");
        assert!(e.hint().is_some());
    });
}

fn socket_of(dir: &Dir) -> std::path::PathBuf {
    let mut all = fs::read_dir(dir.path().join("locks.db.distlock")).unwrap();
    all.next().unwrap().unwrap().path()
}

fn socket_removed() {
    let dir = Dir::new();
    run(async {
        let b = open(&dir, &Clock::system()).await;
        let wakes = sink(&b);
        let socket = socket_of(&dir);
        let a = open(&dir, &Clock::system()).await;
        let (first, second) = (ask("x"), ask("x"));
        take(&a, &first).await;
        join(&b, &second).await;
        fs::remove_file(&socket).unwrap();
        b.heartbeat(&[(second.key(), TTL)]).await.unwrap();
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Everybody), "some may have been missed");
        give(&a, &first.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(second.req)));
        take(&b, &second).await;
        // Nothing is left behind in the end.
        drop((a, b));
        assert_eq!(fs::read_dir(dir.path().join("locks.db.distlock")).unwrap().count(), 0);
    });
}

fn sockets_removed() {
    let dir = Dir::new();
    run(async {
        let (a, b) = (open(&dir, &Clock::system()).await, open(&dir, &Clock::system()).await);
        let wakes = sink(&b);
        let (first, second) = (ask("x"), ask("x"));
        take(&a, &first).await;
        join(&b, &second).await;
        fs::remove_dir_all(dir.path().join("locks.db.distlock")).unwrap();
        b.heartbeat(&[(second.key(), TTL)]).await.unwrap();
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Everybody), "some may have been missed");
        give(&a, &first.key()).await;
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(second.req)));
    });
}

fn stopped() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        let wakes = sink(&a);
        let held = ask("x");
        take(&a, &held).await;
        // A session whose socket is full, as that of a stopped process soon is.
        let session = ReqId::random().to_string();
        let socket = dir.path().join(format!("locks.db.distlock/{session}.sock"));
        let _silent = UnixDatagram::bind(&socket).unwrap();
        let out = UnixDatagram::unbound().unwrap();
        out.set_nonblocking(true).unwrap();
        while out.send_to(b"[]", &socket).is_ok() {}
        let b = open(&dir, &Clock::system()).await;
        for _ in 0..300 {
            join(&b, &ask("x")).await;
        }
        let raw = dir.raw();
        // As if the other process had written its waiters, with its address.
        let own = socket_name(&dir, &session);
        raw.execute("UPDATE locks SET version = version + 1", []).unwrap();
        let sql = "UPDATE waiters SET claim = replace(claim, ?1, ?2),
                   version = (SELECT version FROM locks) WHERE instr(claim, ?1)";
        assert_eq!(raw.execute(sql, [&own, &session]).unwrap(), 300);
        let alive = ask("x");
        join(&a, &alive).await;
        let watch = Stopwatch::start();
        give(&a, &held.key()).await;
        loop {
            match wakes.recv_timeout(SOON).expect("the live waiter is told") {
                Wake::Turn(req) => break assert_eq!(req, alive.req),
                Wake::Event(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let took = watch.took();
        // Five milliseconds and a commit for each would be far above it.
        assert!(took < Duration::from_secs(1), "{took:?} for three hundred silent waiters");
    });
}

/// The address that most waiters were written with: the newest socket that is not `not`.
fn socket_name(dir: &Dir, not: &str) -> String {
    let raw = dir.raw();
    let claims = "SELECT group_concat(claim) FROM waiters";
    let claims: String = raw.query_row(claims, [], |r| r.get(0)).unwrap();
    let names = fs::read_dir(dir.path().join("locks.db.distlock")).unwrap();
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    let names = names.filter_map(|n| n.strip_suffix(".sock").map(str::to_owned));
    names.filter(|n| n != not).max_by_key(|n| claims.matches(n.as_str()).count()).unwrap()
}

fn empty_letter() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        let wakes = sink(&a);
        let out = UnixDatagram::unbound().unwrap();
        out.send_to(b"", socket_of(&dir)).unwrap();
        out.send_to(b"not ours", socket_of(&dir)).expect("somebody still reads");
        assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Everybody));
    });
}

fn inherits() {
    let dir = Dir::new();
    run(async {
        let a = open(&dir, &Clock::system()).await;
        take(&a, &ask("x")).await;
        // The library's own connection too.
        let held = ask("y");
        take(&a, &held).await;
        let out = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        let mine: Vec<_> =
            out.lines().filter(|l| l.contains("locks.db") || l.contains("socket:")).collect();
        assert!(mine.is_empty(), "{mine:?}");
    });
}

fn literal() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new();
    run(async {
        for name in [&b"a b.db"[..], b"a?mode=memory", b"a%20b.db", b"a#b", b"\xff\xfe.db"] {
            let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
            let a = Sqlite::open(&path, SqliteOptions::default()).await.unwrap();
            let b = Sqlite::open(&path, SqliteOptions::default()).await.unwrap();
            let wakes = sink(&b);
            let (first, second) = (ask("x"), ask("x"));
            take(&a, &first).await;
            join(&b, &second).await;
            give(&a, &first.key()).await;
            assert_eq!(wakes.recv_timeout(SOON), Ok(Wake::Turn(second.req)), "{path:?}");
            assert!(path.exists());
        }
    });
}

fn no_descriptors() {
    let dir = Dir::new();
    assert_eq!(Fellow::start("exhaust", dir.db()).line(), "as it should be");
}

/// In a child: the library's own connection is first needed when there is no descriptor left.
pub(crate) async fn exhaust(store: Sqlite) -> String {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let store = Arc::new(store);
    let held = ask("x");
    take(&store, &held).await;
    let renew = |store: Arc<Sqlite>, due: Vec<Due>| {
        engine::block_on(async move { store.renew(&due).await.remove(0) })
    };
    engine::block_on(async {});
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let mut all = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        all.push(file);
    }
    match renew(store.clone(), due(&held)) {
        Err(e) if e.is_transient() && e.hint().is_some_and(|h| h.contains("ulimit")) => {}
        other => return format!("{other:?}"),
    }
    let answer = store.acquire(&ask("x"), None).await;
    if !matches!(answer, Ok(Reply::Busy { .. })) {
        return format!("{answer:?}");
    }
    drop(all);
    match renew(store.clone(), due(&held)) {
        Ok(Reply::Renewed { .. }) => "as it should be".to_owned(),
        other => format!("{other:?}"),
    }
}

/// In a child: takes new locks until the disk is full, and goes on when told that there is room.
pub(crate) async fn fill(store: Sqlite, mut say: impl FnMut(String), hear: impl Fn()) {
    let held = ask("x");
    let first = take(&store, &held).await;
    let mut n = 0;
    let e = loop {
        if let Err(e) = store.acquire(&ask(&format!("{n} {}", "n".repeat(200))), None).await {
            break e;
        }
        n += 1;
    };
    say(format!("{n} locks, then transient {}: {e:?}, hint {:?}", e.is_transient(), e.hint()));
    let renewal = store.renew(&due(&held)).await.remove(0);
    say(format!("renewal while full: {renewal:?}"));
    hear();
    let renewal = store.renew(&due(&held)).await.remove(0);
    give(&store, &held.key()).await;
    let later = cycle(&store, "x").await;
    say(format!("with room: {renewal:?}, tokens rise {}", later > first));
}
