//! Connections that end, clocks that are wrong, addresses that change.

use std::time::Duration;

use distlock_core::backend::Force;
use distlock_core::{Clock, Locks};
use distlock_testkit::fellow::Fellow;
use distlock_testkit::servers::{Mariadb, Server, WallClock};

use crate::kit::{
    BOTH, LONG, Named, ask, client, connections, doorbells, give_back, line_of, ms, run, soon,
    start, take, task, timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s35_connections_that_are_idle_too_long_or_killed_cost_no_lock", s35_killed),
    ("s36_a_clock_five_minutes_off_changes_nothing", s36_clock),
    ("s36_a_clock_that_jumps_by_five_minutes_moves_no_row_lock", s36_rows),
    ("a_server_clock_that_is_stepped_back_never_lowers_a_token", stepped),
    ("a_killed_doorbell_is_hung_again_and_waiters_are_served", bell),
    ("a_doorbell_that_sleeps_keeps_no_table_from_others", no_table),
    ("who_waits_is_known_to_live_though_its_connection_was_ended", known_to_live),
    ("rings_close_together_do_not_hold_each_other_up", rings),
    ("who_is_rung_confirms_by_one_statement", confirms),
    ("a_waiter_whose_process_is_gone_is_passed_over_at_once", gone),
    ("a_revoked_holder_is_told_by_the_bell", revoked),
    ("a_line_without_doorbells_moves_on", no_bells),
    ("a_row_that_somebody_keeps_locked_costs_no_other_lock", kept_row),
    ("news_are_told_once_and_cleared_away", news),
    ("a_closed_store_leaves_no_connection", closed),
];

/// What was logged of the connection that confirmed a turn: that, and no transaction after it. A
/// heartbeat that comes in between is one, and says nothing: then it is tried again.
fn confirms() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (here, there) = (client(&server, "").await, client(&server, "").await);
        let mut after = String::new();
        for name in ["a", "b", "c"] {
            after = after_the_confirmation(&server, &here, &there, name).await;
            if after == "0" {
                break;
            }
        }
        assert_eq!(after, "0", "it did not match");
    });
}

/// How many transactions the connection that confirmed a turn made after that.
async fn after_the_confirmation(
    server: &Server,
    here: &Locks,
    there: &Locks,
    name: &str,
) -> String {
    let held = take(here, name, LONG).await;
    let lock = there.lock(name).ttl(LONG);
    let waiting = task(async move { lock.acquire().await.unwrap() });
    line_of(here, name, 1).await;
    let log = "mysql.general_log";
    ask(
        server,
        &format!("TRUNCATE {log}; SET GLOBAL log_output='TABLE'; SET GLOBAL general_log=1"),
    );
    give_back(held).await;
    let next = soon("its turn", waiting).await.unwrap();
    ask(server, "SET GLOBAL general_log=0");
    let confirmed = "command_type='Execute' AND argument LIKE 'UPDATE %rest=NULL%'";
    let last = format!("SELECT MAX(event_time) FROM {log} WHERE {confirmed}");
    assert_ne!(ask(server, &last), "NULL", "no turn was confirmed by one statement");
    let after = format!(
        "SELECT COUNT(*) FROM {log} WHERE argument LIKE '%FOR UPDATE%' AND event_time>({last}) \
         AND thread_id IN (SELECT thread_id FROM {log} WHERE {confirmed})"
    );
    let after = ask(server, &after);
    give_back(next).await;
    after
}

fn s35_killed() {
    run(async {
        let server = start(Mariadb::new().arg("wait-timeout", "2")).await;
        for query in BOTH {
            let locks = client(&server, query).await;
            let held = take(&locks, "a", LONG).await;
            // The doorbell is never idle: it sleeps in a statement.
            until("the server ends what is idle", async || connections(&server).len() <= 1).await;
            assert!(held.check().is_ok());
            assert!(locks.lock("a").try_acquire().await.unwrap().is_err());
            for id in connections(&server) {
                // One that has just ended by itself is no error here.
                let _ = Mariadb::ask(&server, &format!("KILL {id}"));
            }
            give_back(held).await;
            give_back(take(&locks, "a", LONG).await).await;
        }
    });
}

/// The clients' wall clock and the server's are five minutes apart, either way.
fn s36_clock() {
    run(async {
        for back in [false, true] {
            let clock = WallClock::new().unwrap();
            let server = start(Mariadb::new().clock(&clock)).await;
            let five = Duration::from_secs(300);
            if back {
                clock.back(five);
            } else {
                clock.forward(five);
            }
            for query in ["", "algorithm=version"] {
                let (one, other) = (client(&server, query).await, client(&server, query).await);
                let held = take(&one, "a", ms(6000)).await;
                assert!(held.remaining() <= ms(6000) && held.remaining() > ms(1));
                let lock = other.lock("a").ttl(ms(6000));
                let waiting = task(async move { lock.acquire().await });
                line_of(&one, "a", 1).await;
                // Kept by renewal for longer than its TTL, and not a moment in others' hands.
                Clock::system().sleep(ms(7000)).await;
                assert!(held.check().is_ok() && !waiting.is_finished());
                let token = held.token();
                give_back(held).await;
                let turn = soon("its turn", waiting).await.unwrap().unwrap();
                assert!(turn.token() > token);
                // One that nobody keeps is over with its TTL, on the server's clock.
                let ticket = turn.detach().unwrap();
                let next = soon("its end", one.lock("a").ttl(ms(6000)).acquire()).await.unwrap();
                assert!(next.token() > ticket.token);
                give_back(next).await;
            }
        }
    });
}

/// As above, where a connection is the lock: the server counts its silence, not its wall clock.
fn s36_rows() {
    run(async {
        for back in [false, true] {
            let clock = WallClock::new().unwrap();
            let server = start(Mariadb::new().clock(&clock)).await;
            // A statement counts how long it waits on that clock, too: there must be time for one
            // that waits for longer than it was told to.
            let query = "algorithm=row-lock&timeout=20s";
            let (one, other) = (client(&server, query).await, client(&server, query).await);
            let mut last = None;
            for _ in 0..2 {
                let held = take(&one, "a", ms(6000)).await;
                assert!(Some(held.token()) > last);
                let lock = other.lock("a").ttl(ms(6000));
                let waiting = task(async move { lock.acquire().await });
                let five = Duration::from_secs(300);
                if back {
                    clock.back(five);
                } else {
                    clock.forward(five);
                }
                // Kept for longer than its TTL, and not a moment in others' hands.
                Clock::system().sleep(ms(7000)).await;
                assert!(held.check().is_ok() && !waiting.is_finished());
                let token = held.token();
                give_back(held).await;
                let turn = soon("its turn", waiting).await.unwrap().unwrap();
                assert!(turn.token() > token);
                last = Some(turn.token());
                give_back(turn).await;
            }
        }
    });
}

fn stepped() {
    run(async {
        let clock = WallClock::new().unwrap();
        let server = start(Mariadb::new().clock(&clock)).await;
        for query in BOTH {
            let locks = client(&server, query).await;
            let mut last = None;
            for _ in 0..5 {
                let held = take(&locks, "a", LONG).await;
                assert!(Some(held.token()) > last, "{:?} after {last:?}", held.token());
                last = Some(held.token());
                give_back(held).await;
                clock.back(Duration::from_secs(60));
            }
        }
    });
}

fn bell() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        for round in 0..3 {
            let held = take(&one, "a", LONG).await;
            let lock = other.lock("a").ttl(ms(60_000));
            let waiting = task(async move { lock.acquire().await });
            line_of(&one, "a", 1).await;
            until("a doorbell", async || !doorbells(&server).is_empty()).await;
            for id in doorbells(&server) {
                ask(&server, &format!("KILL {id}"));
            }
            if round == 1 {
                until("it is hung again", async || !doorbells(&server).is_empty()).await;
            }
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
    });
}

/// A backup locks all tables, an operator changes one: neither waits for a doorbell to wake.
fn no_table() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let held = take(&one, "a", LONG).await;
        let lock = other.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&one, "a", 1).await;
        until("two doorbells", async || doorbells(&server).len() == 2).await;
        // What was rung is cleared away after a second's rest: then who waits sleeps for long.
        let long = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                    WHERE INFO LIKE '%, 20)%AS rung%' AND ID <> CONNECTION_ID()";
        until("a long sleep", async || ask(&server, long) != "0").await;
        for statement in [
            "FLUSH TABLES WITH READ LOCK; UNLOCK TABLES",
            "ALTER TABLE distlock_news COMMENT 'news'",
        ] {
            let statement = format!("SET lock_wait_timeout=5; {statement}");
            let answer = Mariadb::ask(&server, &statement);
            assert!(answer.is_ok(), "{answer:?}");
        }
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

/// The connection that says that a process lives was ended while it rested: whoever then stands in line
/// is not taken for dead.
fn known_to_live() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let held = take(&one, "a", LONG).await;
        let own = take(&other, "b", LONG).await;
        let via = "SELECT JSON_VALUE(CONVERT(claim USING utf8mb4), '$.via') FROM distlock_lock \
                   WHERE name = 'b'";
        let sign = format!("SELECT IFNULL(IS_USED_LOCK('dl:s:{}'), 0)", ask(&server, via).trim());
        // Given back by the library's thread, on that connection; and so is the first sweep.
        drop(own);
        until("a sign of life", async || ask(&server, &sign) != "0").await;
        let swept = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND <> 'Sleep' \
                     AND INFO NOT LIKE '% AS rung%' AND ID <> CONNECTION_ID()";
        until("it rests", async || ask(&server, swept) == "0").await;
        ask(&server, &format!("KILL {}", ask(&server, &sign)));
        until("it is gone", async || ask(&server, &sign) == "0").await;
        let lock = other.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&one, "a", 1).await;
        assert_ne!(ask(&server, &sign), "0", "who waits is taken for dead");
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

/// Many ring two doorbells at once, as when several locks are handed over to one process. A doorbell that
/// slept in `SLEEP` made one ring in ten wait for two seconds, and all others with it.
fn rings() {
    run(async {
        let server = start(Mariadb::new()).await;
        let holder = client(&server, "").await;
        let held = take(&holder, "a", LONG).await;
        let bells = || doorbells(&server);
        until("a doorbell", async || bells().len() == 1).await;
        let first = bells();
        // Who waits has the connection that its doorbell sleeps beside.
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let waiting = [&one, &other].map(|client| {
            let lock = client.lock("a").ttl(ms(60_000));
            task(async move { give_back(lock.acquire().await.unwrap()).await })
        });
        line_of(&holder, "a", 2).await;
        until("three doorbells", async || bells().len() == 3).await;
        let rung: Vec<_> = bells().into_iter().filter(|id| !first.contains(id)).collect();
        let ring = |id: &String| {
            format!(
                "SET @at = SYSDATE(6); KILL QUERY {id}; \
                 SET @slow = @slow + (TIMESTAMPDIFF(MICROSECOND, @at, SYSDATE(6)) > 1900000);"
            )
        };
        let once: String = rung.iter().map(ring).collect();
        let many = format!("SET @slow = 0; {} SELECT @slow", once.repeat(400));
        let slow: u32 = std::thread::scope(|scope| {
            let ringer = || scope.spawn(|| ask(&server, &many).parse::<u32>().unwrap());
            let ringers: Vec<_> = (0..4).map(|_| ringer()).collect();
            ringers.into_iter().map(|r| r.join().unwrap()).sum()
        });
        // One machine that stands still makes all four slow at once; the fault made one in ten so.
        assert!(slow <= 8, "{slow} rings took two seconds");
        give_back(held).await;
        for turn in waiting {
            soon("its turn", turn).await.unwrap();
        }
    });
}

/// Two dead and one alive in line: the dead are passed over without waiting for their claims.
fn gone() {
    run(async {
        let server = start(Mariadb::new()).await;
        let one = client(&server, "").await;
        let held = take(&one, "a", LONG).await;
        let mut dead = Vec::new();
        for n in 0..2 {
            let url = crate::kit::url(server.addr(), "");
            dead.push(Fellow::start("wait", &url));
            line_of(&one, "a", n + 1).await;
        }
        let other = client(&server, "").await;
        let lock = other.lock("a").ttl(ms(60_000));
        let waiting = task(async move { lock.acquire().await });
        line_of(&one, "a", 3).await;
        drop(dead);
        let alive = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'";
        let before = ask(&server, alive);
        assert!(!before.is_empty());
        give_back(held).await;
        let turn = soon("its turn", waiting).await.unwrap().unwrap();
        // They keep their places: a process that does not hear may only be slow.
        let seen = one.show("a").await.unwrap().unwrap();
        assert_eq!((seen.holds.len(), seen.holds[0].holder.token), (1, turn.token()));
        give_back(turn).await;
    });
}

fn revoked() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let held = take(&one, "a", LONG).await;
        // Renewed in minutes only: what tells it sooner is the bell.
        until("a doorbell", async || !doorbells(&server).is_empty()).await;
        let _ = other.force("a", None, Force::Revoke).await.unwrap();
        soon("it is told", held.lost()).await;
    });
}

/// Five processes whose doorbells cannot be had: somebody else has taken their names and may not be
/// killed. Each has its turn four times. Each turn is found by looking, not by the heartbeat, which would take seconds.
fn no_bells() {
    run(async {
        let server = start(Mariadb::new().user("app", "pw", "ALL")).await;
        let url = format!("mysql://app:pw@{}/{}", server.addr(), Mariadb::DATABASE);
        let first = crate::kit::connect(&url).await.unwrap();
        ask(&server, "REVOKE SUPER, CONNECTION ADMIN ON *.* FROM 'app'@'%'");
        let mut thieves = Vec::new();
        let mut waiting = Vec::new();
        let held = take(&first, "a", LONG).await;
        for n in 1..=5 {
            let locks = crate::kit::connect(&url).await.unwrap();
            let other = format!("other {n}");
            give_back(take(&locks, &other, LONG).await).await;
            let held = take(&locks, &other, LONG).await;
            let via = format!(
                "SELECT JSON_VALUE(CONVERT(claim USING utf8mb4), '$.via') FROM distlock_lock \
                 WHERE name = '{other}'"
            );
            let sign = format!("dl:b:{}", ask(&server, &via).trim());
            let bell = format!("SELECT IFNULL(IS_USED_LOCK('{sign}'), 0)");
            until("a doorbell", async || ask(&server, &bell).trim() != "0").await;
            let to = format!("mysql://root@{}/{}", server.addr(), Mariadb::DATABASE);
            let mut thief =
                <sqlx::MySqlConnection as sqlx::Connection>::connect(&to).await.unwrap();
            let id = ask(&server, &bell);
            let steal = format!("SELECT GET_LOCK('{sign}', 20)");
            let stolen = task(async move {
                let got = sqlx::raw_sql(sqlx::AssertSqlSafe(steal)).execute(&mut thief).await;
                (got.map(drop), thief)
            });
            let wants = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                         WHERE INFO LIKE 'SELECT GET_LOCK(%, 20)'";
            until("the thief waits", async || ask(&server, wants).trim() != "0").await;
            ask(&server, &format!("KILL {}", id.trim()));
            let (got, thief) = soon("the name is taken", stolen).await.unwrap();
            got.unwrap();
            thieves.push(thief);
            give_back(held).await;
            let lock = locks.lock("a").ttl(LONG);
            waiting.push(task(async move {
                for _ in 0..4 {
                    give_back(lock.clone().acquire().await.unwrap()).await;
                }
            }));
            line_of(&first, "a", n).await;
        }
        let turns = async {
            give_back(held).await;
            for one in waiting {
                soon("its turn", one).await.unwrap();
            }
        };
        // By heartbeats alone it would be more than thirty seconds.
        let (took, ()) = timed(turns).await;
        assert!(took < ms(20_000), "twenty turns took {took:?}");
    });
}

/// Somebody's transaction keeps the row of one lock: others of the same process are renewed.
fn kept_row() {
    run(async {
        let server = start(Mariadb::new()).await;
        let locks = client(&server, "").await;
        let held: Vec<_> = [
            take(&locks, "a", ms(10_000)).await,
            take(&locks, "b", ms(10_000)).await,
            take(&locks, "c", ms(10_000)).await,
        ]
        .into();
        let to = crate::kit::url(server.addr(), "");
        let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(&to).await.unwrap();
        let keep = "START TRANSACTION; \
                    SELECT * FROM distlock_lock WHERE space = '' AND name = 'b' FOR UPDATE";
        sqlx::raw_sql(keep).execute(&mut other).await.unwrap();
        Clock::system().sleep(ms(15_000)).await;
        assert!(held[1].check().is_err(), "nobody could renew it");
        assert!(held[0].check().is_ok() && held[2].check().is_ok());
    });
}

/// Twenty turns of each of two processes, more than are cleared away at once; then what is left
/// goes after a moment's rest, and with the end of the process.
fn news() {
    run(async {
        let server = start(Mariadb::new()).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let count = "SELECT COUNT(*) FROM distlock_news";
        let mut held = take(&one, "a", LONG).await;
        for round in 0..40 {
            let lock = if round % 2 == 0 { &other } else { &one }.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&one, "a", 1).await;
            give_back(held).await;
            held = soon("its turn", waiting).await.unwrap().unwrap();
        }
        // What it has heard of twenty turns, and of being waited for twenty times.
        let left: u32 = ask(&server, count).trim().parse().unwrap();
        assert!(left < 60, "{left} are kept");
        until("nothing is left", async || ask(&server, count).trim() == "0").await;
        let lock = other.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&one, "a", 1).await;
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        one.close().await;
        other.close().await;
        assert_eq!(ask(&server, count).trim(), "0");
    });
}

fn closed() {
    run(async {
        let server = start(Mariadb::new()).await;
        let locks = client(&server, "").await;
        let held = take(&locks, "a", LONG).await;
        until("a doorbell", async || connections(&server).len() >= 2).await;
        give_back(held).await;
        locks.close().await;
        let gone = until("nothing is left", async || connections(&server).is_empty());
        let (took, ()) = crate::kit::timed(gone).await;
        assert!(took < ms(3000), "a doorbell slept on for {took:?}");
    });
}
