//! Locks that a session of the server holds: `?algorithm=advisory` and `row-lock`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distlock_core::{Clock, Force, Forced, Kind, LossReason, Outcome, Released};
use distlock_testkit::fellow::Fellow;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Postgres, Server};
use distlock_testkit::the_end_is_told_at_once;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::errors::refused_in_time;
use crate::kit::{
    LONG, Named, all_free, client, client_at, connect, give_back, line_of, ms, run, soon, sql,
    take_for, task, until, url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s33_a_session_of_a_dropped_acquire_never_rests_with_a_lock", s33),
    ("s20_a_dropped_wait_leaves_the_servers_line_at_once", s20),
    ("s33_a_wait_that_times_out_at_the_grant_leaves_nothing", s33_timed),
    ("s22_an_acquire_without_answers_leaves_no_session_with_a_lock", s22),
    ("s11_a_release_without_an_answer_frees_all_the_same", s11),
    ("s17_a_wait_that_nobody_answers_is_given_up", s17),
    ("s34_sessions_behind_a_pooler_in_transaction_mode_are_refused", s34),
    ("s34_an_unlock_that_answers_false_is_a_loss", s34_unlock),
    ("a_grant_that_cannot_be_proved_is_an_error", unproved),
    ("s35_a_session_that_is_ended_is_a_loss", s35),
    ("a_session_that_was_ended_unseen_was_lost_at_the_release", unseen),
    ("sessions_rest_and_are_used_again", reused),
    ("two_hundred_waiters_stay_within_their_sessions", bounded),
    ("a_close_waits_for_a_waiter_that_is_late_to_let_go", late_to_let_go),
    ("a_killed_server_ends_session_locks_and_loses_no_token", killed),
    ("the_end_of_the_server_is_told_at_once_and_not_at_a_renewal", told_at_once),
    ("the_end_of_the_server_is_told_though_the_first_look_came_before_it", looked_early),
    ("a_watch_that_is_ended_alone_ends_no_lock_and_comes_back", ended_alone),
    ("session_locks_of_eight_processes_outlive_a_restart", eight),
    ("a_killed_process_leaves_the_servers_line", dead_waiter),
    ("breaking_ends_the_holders_session", broken_off),
    ("wrong_options_say_what_is_allowed", wrong),
    ("rows_of_sessions_are_swept", swept),
];

const ALGORITHMS: [&str; 2] = ["algorithm=advisory", "algorithm=row-lock"];

/// How many advisory locks there are: none when no session has anything.
async fn signs(server: &Server) -> String {
    sql(server, "SELECT count(*) FROM distlock.signs").await
}

async fn nothing_is_left(server: &Server) {
    until("no session has anything", async || {
        signs(server).await == "0"
            && sql(
                server,
                "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' \
                AND pid <> pg_backend_pid()",
            )
            .await
                == "0"
    })
    .await;
}

fn s33() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            proxy.delay(ms(1));
            for pause in 0..30 {
                let held = soon("it is free", look.lock("a").ttl(LONG).acquire()).await.unwrap();
                let clock = Clock::system();
                let asking = clock.timeout(ms(pause), locks.lock("a").ttl(LONG).acquire());
                let freeing = async {
                    Clock::system().sleep(ms(pause / 2)).await;
                    give_back(held).await;
                };
                let (got, ()) = tokio::join!(asking, freeing);
                if let Some(Ok(guard)) = got {
                    give_back(guard).await;
                }
                nothing_is_left(&server).await;
                assert_eq!(sql(&server, "SELECT count(*) FROM distlock.waiting").await, "0");
            }
        }
    });
}

fn s20() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let (locks, look) = (client(&server, query).await, client(&server, query).await);
            let held = take_for(&look, "a", LONG).await;
            for _ in 0..5 {
                let lock = locks.lock("a").ttl(LONG);
                let waiting = task(async move { lock.acquire().await.map(drop) });
                line_of(&look, "a", 1).await;
                waiting.abort();
                // The lock stays held: nothing else would end the wait.
                line_of(&look, "a", 0).await;
                assert_eq!(sql(&server, "SELECT count(*) FROM distlock.waiting").await, "0");
            }
            give_back(held).await;
            nothing_is_left(&server).await;
        }
    });
}

fn s33_timed() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let (locks, look) = (client(&server, query).await, client(&server, query).await);
            let mut seen = BTreeSet::new();
            for pause in 0..40 {
                let held = soon("it is free", look.lock("a").ttl(LONG).acquire()).await.unwrap();
                assert!(seen.insert(held.token()));
                let asking = locks.lock("a").ttl(LONG).try_acquire_for(ms(10 + pause));
                let freeing = async {
                    Clock::system().sleep(ms(20)).await;
                    give_back(held).await;
                };
                let (got, ()) = tokio::join!(asking, freeing);
                if let Ok(guard) = got.unwrap() {
                    assert!(seen.insert(guard.token()));
                    give_back(guard).await;
                }
                nothing_is_left(&server).await;
            }
            // They were at rest, not ended, and nothing was on them.
            let resting =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
            assert!(sql(&server, resting).await.parse::<u32>().unwrap() >= 4);
        }
    });
}

/// What was asked for takes effect, and nobody hears of it.
fn s22() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let query = format!("{query}&timeout=3s");
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            // At the first statement of a session that rested, and of a new one.
            for rested in [true, false] {
                if rested {
                    give_back(take_for(&locks, "a", LONG).await).await;
                }
                proxy.drop_replies();
                let lock = locks.lock("a").ttl(LONG);
                let e = soon("an error", lock.try_acquire()).await.expect_err("no answer");
                assert!(e.is_transient(), "{e:?}");
                assert!(!rested || e.outcome() == Outcome::Unknown, "{e:?}");
                nothing_is_left(&server).await;
                give_back(take_for(&look, "a", LONG).await).await;
                proxy.heal();
                until("an answer", async || locks.show("a").await.is_ok()).await;
            }
            give_back(soon("a grant", locks.lock("a").ttl(LONG).acquire()).await.unwrap()).await;
        }
    });
}

fn s11() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let query = format!("{query}&timeout=3s");
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            let mut held = take_for(&locks, "a", LONG).await;
            proxy.drop_replies();
            // Unknown, or the connection it hung on was given up: never that it was lost.
            let answer = soon("an answer", held.give_back()).await;
            assert!(!matches!(answer, Ok(Released::WasLost)), "{answer:?}");
            assert!(held.check().is_err());
            nothing_is_left(&server).await;
            give_back(take_for(&look, "a", LONG).await).await;
            proxy.heal();
            until("an answer", async || locks.show("a").await.is_ok()).await;
            give_back(take_for(&locks, "a", LONG).await).await;
        }
    });
}

/// The way to the server is gone and nothing says so: a waiter with all the patience in the world
/// is told, and when it is whole again nobody waits in its name.
fn s17() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let query = format!("{query}&timeout=3s");
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            let held = take_for(&look, "a", LONG).await;
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&look, "a", 1).await;
            proxy.cut_both();
            let e = soon("an error", waiting).await.unwrap().expect_err("nobody answers");
            assert!(e.is_transient() && e.outcome() == Outcome::Unknown, "{e:?}");
            proxy.heal();
            line_of(&look, "a", 0).await;
            // Ended at the server alone: its client is told as well.
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&look, "a", 1).await;
            sql(&server, "SELECT pg_terminate_backend(pid) FROM distlock.waiting").await;
            let e = soon("an error", waiting).await.unwrap().expect_err("its session was ended");
            assert!(e.is_transient(), "{e:?}");
            give_back(held).await;
            nothing_is_left(&server).await;
        }
    });
}

fn s34() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let pooler = Server::start(Postgres::pooler(&server, "transaction")).await.unwrap();
        let session = Server::start(Postgres::pooler(&server, "session")).await.unwrap();
        for query in ALGORITHMS {
            let at = url(pooler.addr(), &format!("timeout=3s&{query}"));
            let e = refused_in_time(&at).await;
            assert_eq!(e.kind(), Kind::Refused, "{e:?}");
            assert!(e.hint().is_some_and(|h| h.contains("pooler")), "{e:?}");
            let (locks, direct) =
                (client_at(session.addr(), query).await, client(&server, query).await);
            let held = take_for(&direct, "a", LONG).await;
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&direct, "a", 1).await;
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
    });
}

/// A look at the locks that also gives those of the session back, behind its back.
const TRICK: &str = "CREATE FUNCTION distlock.trick() RETURNS bigint LANGUAGE plpgsql VOLATILE AS \
    $$ BEGIN PERFORM pg_advisory_unlock_all(); RETURN 0; END $$; \
    CREATE OR REPLACE VIEW distlock.signs AS \
    SELECT pid, (classid::bigint << 32) | objid::bigint AS sign, granted, waitstart \
    FROM pg_locks WHERE locktype = 'advisory' \
    UNION ALL SELECT 0, distlock.trick(), false, NULL::timestamptz";

fn s34_unlock() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, ALGORITHMS[0]).await;
        sql(&server, TRICK).await;
        let held = take_for(&locks, "a", LONG).await;
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
    });
}

fn unproved() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, ALGORITHMS[0]).await;
        // The lock goes while the token is counted.
        sql(
            &server,
            "CREATE OR REPLACE FUNCTION distlock.now_us() RETURNS bigint LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_advisory_unlock_all(); RETURN 1; END $$",
        )
        .await;
        let e = locks.lock("a").ttl(LONG).try_acquire().await.expect_err("not proved");
        assert!(e.kind() == Kind::Refused && e.hint().is_some(), "{e:?}");
    });
}

async fn end_holder(server: &Server) {
    let ended = sql(server, "SELECT pg_terminate_backend(pid, 5000) FROM distlock.held").await;
    assert_eq!(ended, "t");
}

fn s35() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let (locks, other) = (client(&server, query).await, client(&server, query).await);
            let held = take_for(&locks, "a", ms(6000)).await;
            let lock = other.lock("a").ttl(LONG).label("the next");
            let waiting = task(async move { lock.acquire().await });
            line_of(&other, "a", 1).await;
            let shown = other.show("a").await.unwrap().unwrap();
            assert_eq!(shown.holds[0].holder.token, held.token());
            assert_eq!(shown.waiters[0].label.as_str(), "the next");
            // Committed, whatever becomes of the session.
            let token = sql(&server, "SELECT token FROM distlock.held").await;
            assert_eq!(token, held.token().to_string());
            end_holder(&server).await;
            // The next one has it at once, with a higher token, though the other was rolled back.
            let next = soon("its turn", waiting).await.unwrap().unwrap();
            assert!(next.token() > held.token());
            assert_eq!(soon("word of it", held.lost()).await.why, LossReason::Gone);
            assert!(held.check().is_err());
            assert_eq!(held.release().await.unwrap(), Released::WasLost);
            assert!(next.check().is_ok());
            give_back(next).await;
            nothing_is_left(&server).await;
        }
    });
}

fn unseen() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let held = take_for(&locks, "a", LONG).await;
            end_holder(&server).await;
            assert_eq!(soon("an answer", held.release()).await.unwrap(), Released::WasLost);
            give_back(take_for(&locks, "a", LONG).await).await;
        }
    });
}

fn reused() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let pid = async |name: &str| {
                give_back(take_for(&locks, name, LONG).await).await;
                sql(&server, &format!("SELECT pid FROM distlock.held WHERE name = '{name}'")).await
            };
            let (a, b) = (pid("a").await, pid("b").await);
            assert_eq!(a, b);
            // Ended while it rested: nobody notices.
            assert_eq!(sql(&server, &format!("SELECT pg_terminate_backend({a}, 5000)")).await, "t");
            assert_ne!(pid("c").await, a);
        }
    });
}

/// Its task is polled no more when its client begins to close, and lets go a little later.
fn late_to_let_go() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let (waits, holds) = (client(&server, query).await, client(&server, query).await);
            let held = soon("it is free", holds.lock("a").ttl(LONG).acquire()).await.unwrap();
            let mut waiting = Box::pin(waits.lock("a").ttl(LONG).acquire());
            tokio::select! {
                biased;
                granted = &mut waiting => panic!("it is held: {granted:?}"),
                () = line_of(&holds, "a", 1) => {}
            }
            let lets_go = async {
                Clock::system().sleep(ms(100)).await;
                drop(waiting);
            };
            let ((), closed) = tokio::join!(lets_go, waits.close());
            assert_eq!(closed.left, 0);
            let shown = holds.show("a").await.unwrap().expect("it is held");
            assert!(shown.waiters.is_empty(), "{query}: {:?}", shown.waiters);
            give_back(held).await;
        }
    });
}

fn bounded() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, &format!("{query}&sessions=20")).await;
            let look = client(&server, query).await;
            let held = take_for(&locks, "a", LONG).await;
            let mut waiting = Vec::new();
            for _ in 0..200 {
                let lock = locks.lock("a").ttl(LONG);
                waiting.push(task(async move {
                    let guard = lock.acquire().await?;
                    give_back(guard).await;
                    Ok::<_, distlock_core::Error>(())
                }));
            }
            line_of(&look, "a", 19).await;
            // Its own one, that of the one that looks, and the one that watches the server.
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
            until("twenty and three", async || sql(&server, count).await == "23").await;
            give_back(held).await;
            let (mut served, mut refused) = (0, 0);
            for one in waiting {
                match soon("an answer", one).await.unwrap() {
                    Ok(()) => served += 1,
                    Err(e) => {
                        assert!(e.kind() == Kind::Refused && e.is_transient(), "{e:?}");
                        assert!(e.hint().is_some_and(|h| h.contains("?sessions=")), "{e:?}");
                        refused += 1;
                    }
                }
            }
            assert_eq!((served, refused), (19, 181));
            // And then there is room again.
            give_back(take_for(&locks, "a", LONG).await).await;
        }
    });
}

/// The next renewal would come after minutes, and one of the two has none at all.
fn told_at_once() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            the_end_is_told_at_once(&server, &client(&server, query).await).await;
        }
    });
}

const WATCH: &str =
    "FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'";

/// The connection that watches ends before the others do: they are looked at while they live, and it
/// does not come back before the server is gone.
fn looked_early() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let held = take_for(&locks, "a", LONG).await;
            let other = format!("postgres://postgres@{}/postgres", server.addr());
            let mut other = PgConnection::connect(&other).await.unwrap();
            let ask = async |other: &mut PgConnection, asked: &str| -> String {
                let asked = AssertSqlSafe(asked.to_owned());
                sqlx::query_scalar(asked).fetch_one(other).await.unwrap()
            };
            let looked = "SELECT a.query_start::text FROM pg_stat_activity a \
                JOIN distlock.held h USING (pid)";
            let before = ask(&mut other, looked).await;
            // No new connection comes about from here on.
            let shut = "UPDATE pg_database SET datallowconn = false";
            sqlx::raw_sql(shut).execute(&mut other).await.unwrap();
            let end = format!("SELECT count(pg_terminate_backend(pid))::text {WATCH}");
            until("the watch is ended", async || ask(&mut other, &end).await == "1").await;
            until("it is looked at", async || ask(&mut other, looked).await != before).await;
            assert!(held.check().is_ok(), "{query}");
            server.kill();
            assert_eq!(soon("word of it", held.lost()).await.why, LossReason::Gone, "{query}");
        }
    });
}

fn ended_alone() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, ALGORITHMS[0]).await;
        let held = take_for(&locks, "a", LONG).await;
        let watch = async || sql(&server, &format!("SELECT max(pid) {WATCH}")).await;
        let first = watch().await;
        assert_ne!(first, "");
        sql(&server, &format!("SELECT pg_terminate_backend(pid) {WATCH}")).await;
        until("it comes back", async || !["", first.as_str()].contains(&watch().await.as_str()))
            .await;
        assert!(held.check().is_ok());
        // And it still watches for what is held.
        server.kill();
        soon("word of it", held.lost()).await;
    });
}

fn killed() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().durable().start().await.unwrap();
            let locks = client(&server, &format!("{query}&timeout=2s")).await;
            let (mut seen, granted) = (BTreeSet::new(), Arc::new(AtomicUsize::new(0)));
            for round in 1..4 {
                let held = take_for(&locks, "held", ms(6000)).await;
                let busy: Vec<_> = (0..4)
                    .map(|_| {
                        let (locks, granted) = (locks.clone(), granted.clone());
                        task(async move {
                            let mut tokens = Vec::new();
                            while let Ok(got) =
                                locks.lock("a").ttl(ms(6000)).try_acquire_for(ms(3000)).await
                            {
                                if let Ok(guard) = got {
                                    tokens.push(guard.token());
                                    granted.fetch_add(1, Ordering::Relaxed);
                                    let _ = guard.release().await;
                                }
                            }
                            tokens
                        })
                    })
                    .collect();
                // In the midst of something, a little later each time.
                until("some grants", async || granted.load(Ordering::Relaxed) > 5 * round).await;
                server.kill();
                for one in busy {
                    for token in soon("its end", one).await.unwrap() {
                        assert!(seen.insert(token), "{token} twice");
                    }
                }
                assert_eq!(soon("word of it", held.lost()).await.why, LossReason::Gone);
                server.again().await.unwrap();
                until("it answers", async || locks.show("held").await.is_ok()).await;
                let next = soon("a grant", locks.lock("a").ttl(LONG).acquire()).await.unwrap();
                assert!(seen.last().is_none_or(|last| next.token() > *last), "tokens rise");
                seen.insert(next.token());
                give_back(next).await;
            }
        }
    });
}

fn eight() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().durable().start().await.unwrap();
            let at = url(server.addr(), &format!("timeout=10s&{query}"));
            client(&server, query).await.close().await;
            let mut all: Vec<Fellow> = (0..8).map(|_| Fellow::start("count", &at)).collect();
            let mut tokens = Vec::new();
            for child in &mut all {
                tokens.push(child.line().parse::<u64>().expect("a token"));
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
        }
    });
}

fn dead_waiter() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let held = take_for(&locks, "a", LONG).await;
            let mut child = Fellow::start("grab", url(server.addr(), query));
            assert_eq!(child.line(), "busy");
            line_of(&locks, "a", 1).await;
            drop(child);
            // While the lock is held: the server looks after who waits.
            line_of(&locks, "a", 0).await;
            give_back(held).await;
            give_back(take_for(&locks, "a", LONG).await).await;
        }
    });
}

fn broken_off() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let (locks, other) = (client(&server, query).await, client(&server, query).await);
            let held = take_for(&locks, "a", ms(6000)).await;
            let e = other.force("a", None, Force::Revoke).await.expect_err("not served");
            assert!(e.kind() == Kind::Unsupported && e.hint().is_some(), "{e:?}");
            let wrong = distlock_core::Token::new(held.token().get() - 1).unwrap();
            assert_eq!(other.force("a", Some(wrong), Force::Now).await.unwrap(), Forced::NoMatch);
            assert!(held.check().is_ok());
            let mine = Some(held.token());
            // Somebody who may not is told who may.
            sql(
                &server,
                "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA distlock TO app; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA distlock TO app",
            )
            .await;
            let as_app = format!("postgres://app@{}/postgres?{query}", server.addr());
            let app = connect(&as_app).await.unwrap();
            let e = app.force("a", mine, Force::Now).await.expect_err("not allowed");
            assert!(e.kind() == Kind::Credentials, "{e:?}");
            assert!(e.hint().is_some_and(|h| h.contains("pg_signal_backend")), "{e:?}");
            give_back(take_for(&app, "b", LONG).await).await;
            assert_eq!(other.force("a", mine, Force::Now).await.unwrap(), Forced::Done);
            give_back(take_for(&other, "a", LONG).await).await;
            assert_eq!(soon("word of it", held.lost()).await.why, LossReason::Gone);
            assert_eq!(other.force("a", None, Force::Now).await.unwrap(), Forced::NoMatch);
        }
    });
}

fn wrong() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        for query in ["algorithm=advice", "sessions=0", "sessions=many", "session=3"] {
            let at = url(server.addr(), query);
            let e = connect(&at).await.expect_err("it cannot be");
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{query}: {e:?}");
        }
    });
}

fn swept() {
    run(async {
        for query in ALGORITHMS {
            let server = Postgres::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let kept = take_for(&locks, "kept", LONG).await;
            for i in 0..20 {
                give_back(take_for(&locks, &format!("old-{i}"), LONG).await).await;
            }
            // Two days pass. What is held stays.
            sql(&server, "UPDATE distlock.held SET granted = 1, token = 1").await;
            let other = client(&server, query).await;
            give_back(take_for(&other, "new", LONG).await).await;
            let rows = "SELECT string_agg(name, ' ' ORDER BY name) FROM distlock.held";
            until("they are gone", async || sql(&server, rows).await == "kept new").await;
            if query == ALGORITHMS[1] {
                until("their rows go", async || {
                    sql(&server, "SELECT count(*) FROM distlock.rowlock").await == "2"
                })
                .await;
            }
            give_back(kept).await;
            all_free(&locks, "kept").await;
        }
    });
}
