use std::time::Duration;

use distlock_core::session::{Locked, SessionStore};
use distlock_core::{Clock, Patience};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("s02_dropped_at_every_poll_of_a_free_lock_leaves_nothing", drop_free),
        trial("s02_dropped_at_every_poll_of_a_busy_lock_leaves_nothing", drop_busy),
        trial("s20_a_cancelled_waiter_leaves_no_ticket_and_delays_nobody", s20),
        trial("s20_a_cancelled_head_tells_the_next_though_the_holder_dies", s20_dead),
        trial("s20_patience_that_runs_out_says_where_one_stood", patience),
        trial("an_abandoned_wait_never_makes_a_try_fail", abandoned),
    ]
}

fn drop_free() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        let mut last = 0;
        for n in 0.. {
            // A min_hold of an undelivered grant must not keep the lock either.
            let mut want = ask("x", Patience::Forever);
            want.min_hold = Duration::from_secs(3600);
            if n > 3 {
                want.min_hold = Duration::ZERO;
            }
            match polls(n, a.lock(&want, &|_| ())).await {
                None => {
                    let token = until_free(&b, "x").await;
                    assert!(token > last);
                    last = token;
                    // It may have stood in line behind the try of the other for a moment.
                    until_in_line(dir.path(), "x", 0);
                }
                Some(Ok(Locked::Held { .. })) => {
                    // A worker that is quick answers within the poll that asks.
                    assert!(n >= 1, "not without being asked");
                    break;
                }
                Some(_) => panic!("neither held nor pending"),
            }
        }
    });
}

fn drop_busy() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        for n in 1.. {
            let (conn, _) = lock(&b, "x").await;
            let want = ask("x", Patience::For(Duration::from_secs(3600)));
            // The first poll asks, the next hear one's place, the last hears of the grant.
            let waiting = polls(n, a.lock(&want, &|_| ()));
            let release = async {
                if n > 1 {
                    until_in_line(dir.path(), "x", 1);
                    tokio::task::yield_now().await;
                }
                assert_eq!(b.unlock(conn).await.unwrap(), RELEASED);
            };
            match tokio::join!(waiting, release).0 {
                None => {
                    until_free(&b, "x").await;
                    until_in_line(dir.path(), "x", 0);
                }
                Some(Ok(Locked::Held { .. })) => {
                    // Its place is no news any more when the grant comes first.
                    assert!(n > 1, "asked, heard of the grant");
                    break;
                }
                Some(_) => panic!("neither held nor pending"),
            }
        }
    });
}

fn s20() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let mut took = Vec::new();
        for _ in 0..5 {
            let mut holder = Agent::new(dir.path());
            holder.ask("lock x");
            // First in line, so that its thread is inside flock when it is given up.
            let want = ask("x", Patience::Forever);
            let mut first = Box::pin(store.lock(&want, &|_| ()));
            assert!(polls(1, first.as_mut()).await.is_none());
            until_in_line(dir.path(), "x", 1);
            let mut second = Agent::new(dir.path());
            second.say("lock x");
            until_in_line(dir.path(), "x", 2);
            drop(first);
            until_in_line(dir.path(), "x", 1);
            let start = std::time::Instant::now();
            assert_eq!(holder.ask("unlock"), "free");
            second.token();
            took.push(start.elapsed());
            assert!(attempt(&store, "x").await.is_err());
            second.ask("unlock");
        }
        not_by_the_look(took);
    });
}

/// Whoever is next looks once a second by itself, half a second away on average: most of them were
/// told, however busy the machine was for one or the other.
fn not_by_the_look(mut took: Vec<Duration>) {
    took.sort();
    eprintln!("next in after {took:?}");
    assert!(took[took.len() / 2] < Duration::from_millis(300), "{took:?}");
}

/// Neither a dead holder nor a thread of the dead tells anybody: only the giving up itself can.
fn s20_dead() {
    let dir = tempdir().unwrap();
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut agents: Vec<_> = (0..3).map(|_| Agent::new(dir.path())).collect();
        let [holder, first, second] = &mut agents[..] else { unreachable!() };
        holder.ask("lock x");
        first.say("begin x");
        until_in_line(dir.path(), "x", 1);
        second.say("lock x");
        until_in_line(dir.path(), "x", 2);
        assert_eq!(first.ask("cancel"), "cancelled");
        first.kill();
        let start = std::time::Instant::now();
        holder.kill();
        second.token();
        took.push(start.elapsed());
        second.ask("unlock");
    }
    not_by_the_look(took);
}

fn patience() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let (a, b) = (open_at(dir.path(), &clock), open_at(dir.path(), &clock));
        let (conn, token) = lock(&a, "x").await;
        let first = ask("x", Patience::For(Duration::from_secs(60)));
        let second = ask("x", Patience::For(Duration::from_secs(30)));
        let one = b.lock(&first, &|_| ());
        let two = async {
            until_in_line(dir.path(), "x", 1);
            with(&b, &second).await.err().expect("busy")
        };
        let driver = async {
            while in_line(dir.path(), "x") < 2 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(31));
            while in_line(dir.path(), "x") > 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
        };
        let (one, two, ()) = tokio::join!(one, two, driver);
        assert_eq!(two.ahead, Some(1));
        assert_eq!(two.holder.unwrap().token.get(), token);
        assert!(matches!(one, Ok(Locked::Held { .. })));
    });
}

fn abandoned() {
    let dir = tempdir().unwrap();
    run(async {
        let (a, b) = (open(dir.path()), open(dir.path()));
        for round in 0..50 {
            let (conn, _) = lock(&a, "x").await;
            let want = ask("x", Patience::Forever);
            let mut waiting = Box::pin(b.lock(&want, &|_| ()));
            assert!(polls(1, waiting.as_mut()).await.is_none());
            until_in_line(dir.path(), "x", 1);
            drop(waiting);
            until_in_line(dir.path(), "x", 0);
            assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
            // The thread of b gets the lock about now, and has no use for it.
            let got = attempt(&a, "x").await;
            let (conn, _) = got.unwrap_or_else(|s| panic!("round {round}: {s}"));
            assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
        }
    });
}
