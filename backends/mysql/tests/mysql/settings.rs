//! What a server is set to: it changes nothing, or is refused with words.

use distlock_core::capability::{Fence, Survives};
use distlock_core::{Clock, Kind};
use distlock_mysql::with_row_lock;
use distlock_testkit::servers::Mariadb;
use sqlx::{Connection, MySqlConnection};

use crate::kit::{
    LONG, Named, ask, client, connect, doorbells, give_back, line_of, ms, run, soon, start, take,
    task, until, url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("defaults_of_the_server_change_nothing", defaults),
    ("a_commit_that_begins_the_next_transaction_is_not_ours", chained),
    ("a_grant_is_durable_only_where_every_setting_says_so", durable),
    ("a_limit_on_silent_transactions_ends_no_row_lock", idle),
    ("a_limit_on_statements_ends_no_doorbell", limited),
    ("a_server_that_logs_statements_is_refused_with_words", logged),
    ("names_that_a_collation_takes_for_one_are_two_locks", collations),
    ("what_schema_prints_can_be_run_again_while_locks_are_held", printed),
];

const ALGORITHMS: [&str; 3] = ["algorithm=line", "algorithm=version", "algorithm=row-lock"];

fn defaults() {
    run(async {
        let server = start(
            Mariadb::new()
                .arg("autocommit", "0")
                .arg("transaction-isolation", "SERIALIZABLE")
                .arg("sql-mode", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,SIMULTANEOUS_ASSIGNMENT,ORACLE")
                .arg("innodb-lock-wait-timeout", "1")
                .arg("innodb-rollback-on-timeout", "1")
                .arg("wait-timeout", "2")
                .arg("character-set-server", "latin1")
                .init("SET GLOBAL sql_safe_updates = 1")
                .init("SET GLOBAL sql_select_limit = 1"),
        )
        .await;
        for query in ALGORITHMS {
            let all = [client(&server, query).await, client(&server, query).await];
            let busy: Vec<_> = (0..6)
                .map(|i: usize| {
                    let locks = all[i % 2].clone();
                    task(async move {
                        for _ in 0..5 {
                            give_back(locks.lock("hot").ttl(LONG).acquire().await.unwrap()).await;
                        }
                    })
                })
                .collect();
            for one in busy {
                soon("its turns", one).await.unwrap();
            }
            let held = [take(&all[0], "a", ms(20_000)).await, take(&all[0], "b", ms(20_000)).await];
            let waiting: Vec<_> = all
                .iter()
                .map(|locks| locks.lock("a").ttl(LONG))
                .map(|lock| task(async move { give_back(lock.acquire().await.unwrap()).await }))
                .collect();
            if query != "algorithm=row-lock" {
                line_of(&all[0], "a", 2).await;
            }
            Clock::system().sleep(ms(3000)).await;
            assert!(held.iter().all(|h| h.check().is_ok()), "{query}");
            assert!(waiting.iter().all(|w| !w.is_finished()), "{query}");
            assert_eq!(all[1].list("").await.unwrap().len(), 2, "{query}");
            for one in held {
                give_back(one).await;
            }
            for one in waiting {
                soon("its turn", one).await.unwrap();
            }
        }
    });
}

/// Where a power cut could take a grant back the fence is not durable, and a note names the setting.
fn durable() {
    run(async {
        let how = Mariadb::new().durable();
        let server = start(how.arg("server-id", "1").arg("log-bin", "log")).await;
        let cases = [
            ("sync_binlog = 1", Fence::Durable, ""),
            ("sync_binlog = 0", Fence::Clocked, "sync_binlog"),
            ("sync_binlog = 1000", Fence::Clocked, "sync_binlog"),
            ("sync_binlog = 1", Fence::Durable, ""),
            ("innodb_flush_log_at_trx_commit = 2", Fence::Clocked, "innodb_flush_log"),
        ];
        for (setting, fence, named) in cases {
            ask(&server, &format!("SET GLOBAL {setting}"));
            for query in ALGORITHMS {
                let locks = client(&server, query).await;
                let told = locks.capability();
                assert_eq!(told.fence, fence, "{setting} {query}");
                let note = told.notes.iter().any(|n| n.contains(named));
                assert!(note, "{setting} {query}: {:?}", told.notes);
                let survives = told.restart == Survives::TwoHolders;
                let lease = query != "algorithm=row-lock";
                assert_eq!(survives, lease && fence != Fence::Durable, "{setting} {query}");
            }
        }
        let how = Mariadb::new().arg("innodb-flush-log-at-trx-commit", "1");
        let server = start(how.arg("innodb-doublewrite", "0")).await;
        let locks = client(&server, "").await;
        assert_eq!(locks.capability().fence, Fence::Clocked);
        for named in ["innodb_flush_method", "innodb_doublewrite"] {
            assert!(locks.capability().notes.iter().any(|n| n.contains(named)), "{named}");
        }
    });
}

fn chained() {
    run(async {
        for kind in ["CHAIN", "RELEASE"] {
            let server = start(Mariadb::new().arg("completion-type", kind)).await;
            for query in ALGORITHMS {
                let query = format!("{query}&timeout=10s");
                let (one, other) = (client(&server, &query).await, client(&server, &query).await);
                for _ in 0..3 {
                    for locks in [&one, &other] {
                        give_back(take(locks, "a", LONG).await).await;
                    }
                }
                let held = take(&one, "a", LONG).await;
                let lock = other.lock("a").ttl(LONG);
                let waiting = task(async move { lock.acquire().await });
                give_back(held).await;
                give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
                give_back(take(&one, "a", LONG).await).await;
            }
        }
    });
}

fn idle() {
    run(async {
        let server = start(Mariadb::new().arg("idle-transaction-timeout", "1")).await;
        let locks = client(&server, "algorithm=row-lock").await;
        let held = take(&locks, "a", ms(60_000)).await;
        Clock::system().sleep(ms(3000)).await;
        give_back(held).await;
    });
}

fn limited() {
    run(async {
        let server = start(Mariadb::new().arg("max-statement-time", "1")).await;
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let held = take(&one, "a", LONG).await;
        let lock = other.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        let bells = || doorbells(&server);
        until("two doorbells", async || bells().len() == 2).await;
        let before = bells();
        Clock::system().sleep(ms(3000)).await;
        // One that is just between two naps is not seen; one that was hung again has another number.
        until("the same doorbells", async || bells() == before).await;
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

fn logged() {
    run(async {
        let how = Mariadb::new().arg("server-id", "1").arg("log-bin", "log");
        let server = start(how.clone().arg("binlog-format", "STATEMENT")).await;
        let e = soon("an answer", connect(&url(server.addr(), ""))).await.expect_err("refused");
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.hint().is_some_and(|h| h.contains("binlog_format")), "{e:?}");
        let server = start(how.arg("binlog-format", "MIXED")).await;
        for query in ALGORITHMS {
            give_back(take(&client(&server, query).await, "a", LONG).await).await;
        }
    });
}

/// By case, by accent, by form, by a space at the end.
const ALIKE: [&str; 9] = ["a", "A", "a ", "a  ", "ä", "a\u{308}", "\u{e4} ", "ａ", "a\u{200b}"];

fn collations() {
    run(async {
        for (set, collation) in [("utf8mb4", "utf8mb4_unicode_ci"), ("latin1", "latin1_swedish_ci")]
        {
            let how = Mariadb::new().arg("character-set-server", set);
            let server = start(how.arg("collation-server", collation)).await;
            ask(&server, &format!("ALTER DATABASE test CHARACTER SET {set} COLLATE {collation}"));
            for query in ALGORITHMS {
                let locks = client(&server, query).await;
                let mut held = Vec::new();
                for name in ALIKE {
                    let got = locks.lock(name).ttl(LONG).try_acquire().await.unwrap();
                    held.push(got.unwrap_or_else(|busy| panic!("{query} {name:?}: {busy}")));
                }
                assert_eq!(locks.list("a").await.unwrap().len(), 5, "{query}");
                assert_eq!(locks.list("a ").await.unwrap().len(), 2, "{query}");
                for (name, guard) in ALIKE.into_iter().zip(held) {
                    assert!(locks.lock(name).try_acquire().await.unwrap().is_err());
                    give_back(guard).await;
                }
            }
            let mut conns = Vec::new();
            for _ in ALIKE {
                conns.push(MySqlConnection::connect(&url(server.addr(), "")).await.unwrap());
            }
            let mut held = Vec::new();
            for (name, conn) in ALIKE.into_iter().zip(&mut conns) {
                let mut tx = conn.begin().await.unwrap();
                with_row_lock(&mut tx, "distlock_", name).await.unwrap();
                held.push(tx);
            }
        }
    });
}

fn printed() {
    run(async {
        let server = start(Mariadb::new()).await;
        let text = distlock_mysql::schema("distlock_").unwrap();
        ask(&server, &text);
        for query in ALGORITHMS {
            let locks = client(&server, query).await;
            let held = take(&locks, "a", LONG).await;
            let lock = locks.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            ask(&server, &text);
            assert!(held.check().is_ok());
            give_back(held).await;
            give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        }
        // What a newer version made is left alone.
        ask(&server, "UPDATE distlock_meta SET layout = 2, floor = 7");
        ask(&server, &text);
        assert_eq!(ask(&server, "SELECT layout, floor FROM distlock_meta"), "2\t7");
    });
}
