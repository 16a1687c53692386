use std::num::NonZeroU32;

use distlock_core::info::Query;
use distlock_core::session::{Alive, SessionStore};
use distlock_core::{Force, Kind, LossReason, Mode, Namespace, Patience, Released};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_lock_excludes_names_its_holder_and_comes_free", excludes),
        trial("awkward_and_long_names_are_locks_of_their_own", awkward),
        trial("a_page_of_names_follows_the_last_one", pages),
        trial("looking_never_makes_a_try_fail", looking),
        trial("s07_a_deleted_lock_file_is_told_to_its_holder", s07),
        trial("a_conn_that_is_dropped_frees_its_lock", dropped),
        trial("force_is_refused_and_names_the_process", force),
        trial("other_modes_are_refused", modes),
        trial("closing_gives_everything_back", close),
    ]
}

fn excludes() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        let (conn, token) = lock(&a, "orders").await;
        for store in [&a, &b] {
            let busy = attempt(store, "orders").await.err().expect("busy");
            let holder = busy.holder.unwrap();
            assert_eq!((holder.token.get(), holder.label.as_str()), (token, "a test"));
            assert_eq!((busy.ahead, busy.left, holder.left), (None, None, None));
        }
        assert!(Agent::new(dir.path()).ask("try orders").starts_with("busy held by a test"));
        assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
        let (_conn, next) = attempt(&b, "orders").await.unwrap();
        assert!(next > token);
    });
}

fn awkward() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let long = "锁".repeat(85);
        let twin = "锁".repeat(84) + "abc";
        let names = [
            "orders",
            "orders/42",
            ".",
            "..",
            "a b",
            "line\nbreak",
            "{x}",
            "\"'`",
            "100%",
            "~",
            "a.lock",
            "a.q",
            &long,
            &twin,
        ];
        let mut held = Vec::new();
        for n in names {
            held.push(attempt(&store, n).await.unwrap_or_else(|s| panic!("{n:?}: {s}")));
            assert!(attempt(&store, n).await.is_err(), "{n:?}");
        }
        for space in [".", "..", "_", "sessions", "layout"] {
            let mut ask = ask("orders", Patience::Never);
            ask.lock.space = Namespace::new(space).unwrap();
            held.push(with(&store, &ask).await.unwrap());
        }
        let all = Query::Prefix {
            space: Namespace::default(),
            prefix: String::new(),
            after: None,
            limit: 100,
        };
        let mut listed: Vec<_> = store.inspect(&all).await.unwrap();
        let mut want = names.to_vec();
        want.sort_unstable();
        let got: Vec<_> = listed.iter().map(|l| l.lock.name.as_str().to_owned()).collect();
        assert_eq!(got, want);
        assert_eq!(listed.remove(0).holds.len(), 1);
    });
}

fn pages() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let mut held = Vec::new();
        for n in ["b", "a/3", "a/1", "a/2", "a"] {
            held.push(lock(&store, n).await);
        }
        // One that is free is not listed.
        let (free, _) = lock(&store, "a/0").await;
        assert_eq!(store.unlock(free).await.unwrap(), RELEASED);
        let page = async |after: Option<&str>| -> Vec<String> {
            let query = Query::Prefix {
                space: Namespace::default(),
                prefix: "a/".into(),
                after: after.map(|a| a.parse().unwrap()),
                limit: 2,
            };
            let page = store.inspect(&query).await.unwrap();
            page.into_iter().map(|l| l.lock.name.to_string()).collect()
        };
        assert_eq!(page(None).await, ["a/1", "a/2"]);
        assert_eq!(page(Some("a/2")).await, ["a/3"]);
    });
}

fn looking() {
    let dir = tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            run(async {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    a.inspect(&Query::Name(name("x"))).await.unwrap();
                }
            });
        });
        run(async {
            for _ in 0..2000 {
                let (conn, _) = attempt(&b, "x").await.expect("nobody else wants it");
                assert_eq!(b.unlock(conn).await.unwrap(), RELEASED);
            }
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn s07() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        let (mut conn, token) = lock(&a, "x").await;
        assert!(matches!(a.alive(&mut conn).await, Alive::Yes { waiters: 0 }));
        std::fs::remove_file(dir.path().join("_/x.lock")).unwrap();
        assert!(matches!(a.alive(&mut conn).await, Alive::No(LossReason::Gone)));
        // The next holder has another file: the old one stays told, also beside it.
        let (mut other, next) = attempt(&b, "x").await.unwrap();
        assert!(next > token);
        assert!(matches!(a.alive(&mut conn).await, Alive::No(LossReason::Gone)));
        assert_eq!(a.unlock(conn).await.unwrap(), Released::WasLost);
        assert!(matches!(b.alive(&mut other).await, Alive::Yes { .. }));
        assert!(attempt(&a, "x").await.is_err());
    });
}

fn dropped() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        let (conn, token) = lock(&a, "x").await;
        drop(conn);
        let (conn, next) = lock(&b, "x").await;
        assert!(next > token);
        drop(b);
        until_free(&a, "x").await;
        drop(conn);
    });
}

fn force() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let mut agent = Agent::new(dir.path());
        agent.ask("lock x");
        let e = store.force(&name("x"), None, Force::Now).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.hint().unwrap().contains(&format!("process {}", agent.id())), "{e:?}");
        assert!(!distlock_file::CAPABILITY.force);
    });
}

fn modes() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        for mode in [Mode::Shared, Mode::Permit(NonZeroU32::MIN)] {
            let mut ask = ask("x", Patience::Never);
            ask.mode = mode;
            let e = store.lock(&ask, &|_| ()).await.err().unwrap();
            assert_eq!(e.kind(), Kind::Unsupported);
        }
    });
}

fn close() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        let (mut conn, _) = lock(&a, "x").await;
        let (_held, _) = lock(&b, "y").await;
        let want = ask("y", Patience::Forever);
        let waiting = a.lock(&want, &|_| ());
        let closing = async {
            until_in_line(dir.path(), "y", 1);
            a.close().await;
        };
        let (answer, ()) = tokio::join!(waiting, closing);
        assert_eq!(answer.err().unwrap().kind(), Kind::Closed);
        assert_eq!(in_line(dir.path(), "y"), 0);
        attempt(&b, "x").await.expect("given back");
        assert!(matches!(a.alive(&mut conn).await, Alive::No(_)));
        let e = a.lock(&ask("z", Patience::Never), &|_| ()).await.err().unwrap();
        assert_eq!(e.kind(), Kind::Closed);
        // Of its session nothing is left; the other's sign of life is.
        let live = std::fs::read_dir(dir.path().join("sessions")).unwrap().count();
        assert_eq!(live, 1);
    });
}
