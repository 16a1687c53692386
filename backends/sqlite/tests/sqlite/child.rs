//! The other process: what it does is said in its environment.

use std::path::Path;
use std::time::Duration;

use distlock_core::lease::{LeaseStore, Wake};
use distlock_core::{Clock, Owner, ReqId};
use distlock_sqlite::{Sqlite, SqliteOptions};
use distlock_testkit::fellow::{self, hear, say};

use crate::kit::{Moves, ask, cycle, give, run, sink, take};

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let Some((role, path)) = fellow::part() else { return false };
    let path = Path::new(&path);
    let open = || async { Sqlite::open(path, SqliteOptions::default()).await.unwrap() };
    match role.as_str() {
        // Opens when told, counts once under a lock.
        "open" => {
            say("ready");
            hear();
            run(async {
                let store = open().await;
                say(cycle(&store, &format!("own {}", ReqId::random())).await);
                store.close().await;
            });
        }
        // Grants without end, told one by one.
        "grants" => run(async {
            let store = open().await;
            loop {
                say(cycle(&store, "stream").await);
            }
        }),
        // Renews beside a crowd.
        "crowd" => run(async { say(crate::load::hammer(path).await) }),
        "exhaust" => run(async { say(crate::hostile::exhaust(open().await).await) }),
        "fill" => run(async { crate::hostile::fill(open().await, say, || drop(hear())).await }),
        // Takes one lock and keeps it.
        "hold" => run(async {
            let store = open().await;
            say(take(&store, &ask("held")).await);
            hear();
        }),
        // Joins the line of the given names and then only listens.
        "wait" => run(async {
            let store = open().await;
            let wakes = sink(&store);
            for _ in 0..3 {
                // So long that its end cannot be taken for a death that was noticed.
                let wait = Some(Duration::from_secs(3600));
                let answer = store.acquire(&ask("queue"), wait).await.unwrap();
                assert!(matches!(answer, distlock_core::state::Reply::Waiting { .. }));
            }
            say("waiting");
            for wake in wakes {
                say(format!("{wake:?}"));
            }
        }),
        // Takes turns with its parent; says when each grant was confirmed.
        "turns" => run(async {
            let store = open().await;
            let clock = Clock::system();
            let wakes = sink(&store);
            say("ready");
            while hear() == "join" {
                let mut ask = ask("turns");
                ask.owner = Owner::new();
                crate::kit::join(&store, &ask).await;
                say("waiting");
                while wakes.recv().unwrap() != Wake::Turn(ask.req) {}
                take(&store, &ask).await;
                say(clock.now().as_nanos());
                give(&store, &ask.key()).await;
            }
            store.close().await;
        }),
        other => panic!("no such role: {other}"),
    }
    true
}
