//! The server is killed in the midst of grants: none is lost, none is given twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distlock_core::{Clock, Kind};
use distlock_testkit::fellow::Fellow;
use distlock_testkit::servers::Postgres;

use crate::kit::{LONG, Named, client, give_back, ms, run, soon, sql, take_for, task, until, url};

pub(crate) const TRIALS: &[Named] = &[
    ("a_server_killed_in_the_midst_of_grants_loses_and_doubles_none", killed),
    ("a_release_that_the_server_forgot_is_made_up_for", forgotten),
    ("a_restart_under_eight_processes_loses_no_order_and_everyone_ends", eight),
];

fn killed() {
    run(async {
        for query in ["timeout=2s", "timeout=2s&algorithm=version"] {
            let server = Postgres::new().durable().start().await.unwrap();
            let locks = client(&server, query).await;
            let held = take_for(&locks, "held", LONG).await;
            let (mut seen, granted) = (BTreeSet::new(), Arc::new(AtomicUsize::new(0)));
            for round in 1..5 {
                // Four tasks take and give back while the server dies under them.
                let busy: Vec<_> = (0..4)
                    .map(|_| {
                        let (locks, granted) = (locks.clone(), granted.clone());
                        task(async move {
                            let mut tokens = Vec::new();
                            loop {
                                match locks.lock("a").ttl(ms(4000)).try_acquire_for(ms(3000)).await
                                {
                                    Ok(Ok(guard)) => {
                                        tokens.push(guard.token());
                                        granted.fetch_add(1, Ordering::Relaxed);
                                        let _ = guard.release().await;
                                    }
                                    Ok(Err(_)) => {}
                                    Err(e) => {
                                        assert_ne!(e.kind(), Kind::Layout, "{e:?}");
                                        return tokens;
                                    }
                                }
                            }
                        })
                    })
                    .collect();
                until("some grants", async || granted.load(Ordering::Relaxed) > 5 * round).await;
                // In the midst of something, a little later each time.
                Clock::system().sleep(ms(37 * round as u64)).await;
                server.kill();
                for one in busy {
                    for token in soon("its end", one).await.unwrap() {
                        assert!(seen.insert(token), "{token} twice");
                    }
                }
                server.again().await.unwrap();
                // What was held is held, for the same one; what is given out now is new.
                until("it answers", async || locks.show("held").await.is_ok()).await;
                assert!(held.check().is_ok());
                assert!(locks.lock("held").try_acquire().await.unwrap().is_err());
                let next = soon("a grant", locks.lock("a").ttl(ms(4000)).acquire()).await.unwrap();
                assert!(seen.last().is_none_or(|last| next.token() > *last), "tokens rise");
                seen.insert(next.token());
                give_back(next).await;
            }
            assert!(seen.len() > 8, "the server was killed in the midst of something");
            give_back(held).await;
        }
    });
}

/// A release that hands over does not wait for the disk. The server dies before the next one's
/// confirmation brings it there: the hold is back, nobody else was granted anything, and whoever
/// released it finds it and gives it back, long before its lease would end.
fn forgotten() {
    const UNSYNCED: &str = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()";
    run(async {
        // What nobody waits for stays away from the disk for as long as it may.
        let lazy = Postgres::new().durable().set("wal_writer_delay", "10s");
        let server = lazy.set("bgwriter_lru_maxpages", "0").start().await.unwrap();
        let locks = client(&server, "timeout=2s").await;
        for round in 0..8 {
            let name = format!("a{round}");
            let held = take_for(&locks, &name, LONG).await;
            let token = held.token();
            // Somebody stands in line who cannot be told of its turn and never confirms it.
            let join = format!(
                "SELECT kind FROM distlock.acquire('', '{name}', '\\x0707', 'other', 0, 600000000, 0, \
                 0, '', 1, '', 10000000)"
            );
            assert_eq!(sql(&server, &join).await, "2");
            give_back(held).await;
            if sql(&server, UNSYNCED).await != "t" {
                continue; // just then the server synced what it had
            }
            server.kill();
            server.again().await.unwrap();
            let lock = || locks.lock(&name).ttl(LONG).try_acquire();
            until("it is free", async || match lock().await {
                Ok(Ok(next)) => {
                    assert!(next.token() > token);
                    true
                }
                _ => false,
            })
            .await;
            return;
        }
        panic!("the server forgot nothing");
    });
}

fn eight() {
    run(async {
        let server = Postgres::new().durable().start().await.unwrap();
        let at = url(server.addr(), "timeout=10s");
        client(&server, "").await.close().await;
        let mut all: Vec<Fellow> = (0..8).map(|_| Fellow::start("count", &at)).collect();
        let mut tokens = Vec::new();
        // A few turns each, then the server goes away and comes back, and all come to their end.
        for _ in 0..3 {
            for child in &mut all {
                tokens.push(child.line().parse::<u64>().expect("a token"));
            }
        }
        server.kill();
        server.again().await.unwrap();
        for child in &mut all {
            loop {
                match child.line().as_str() {
                    "done" => break,
                    token => tokens.push(token.parse().unwrap_or_else(|_| panic!("{token:?}"))),
                }
            }
        }
        let distinct: BTreeSet<u64> = tokens.iter().copied().collect();
        assert_eq!(distinct.len(), tokens.len(), "a token twice");
    });
}
