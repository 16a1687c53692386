//! The fast paths: which calls go by a plain statement, as the server counts its functions.

use distlock_core::Locks;
use distlock_testkit::servers::{Postgres, Server};

use crate::kit::{LONG, Named, client, give_back, line_of, run, soon, sql, take_for, task, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_lock_that_one_has_to_oneself_needs_no_function", alone),
    ("after_a_wrong_guess_every_move_is_one_call", guessed),
    ("who_is_told_of_its_turn_confirms_by_one_statement", told),
];

async fn counting() -> Server {
    Postgres::new().set("track_functions", "pl").start().await.unwrap()
}

/// How often two functions were called, once everybody has gone and the server has counted that.
async fn calls(server: &Server) -> (u32, u32) {
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
    until("everybody is gone", async || sql(server, gone).await == "0").await;
    let count = async |name: &str| {
        let calls = format!("SELECT calls FROM pg_stat_user_functions WHERE funcname = '{name}'");
        sql(server, &calls).await.parse().unwrap_or(0)
    };
    (count("acquire").await, count("release").await)
}

async fn cycle(locks: &Locks) {
    give_back(take_for(locks, "a", LONG).await).await;
}

fn alone() {
    run(async {
        let server = counting().await;
        let locks = client(&server, "").await;
        for _ in 0..10 {
            cycle(&locks).await;
        }
        locks.close().await;
        assert_eq!(calls(&server).await, (1, 0));
    });
}

fn guessed() {
    run(async {
        let server = counting().await;
        let (locks, other) = (client(&server, "").await, client(&server, "").await);
        cycle(&locks).await;
        let held = take_for(&other, "a", LONG).await;
        // The guess: that it is free still.
        assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_err());
        give_back(held).await;
        for _ in 0..3 {
            cycle(&locks).await;
        }
        locks.close().await;
        other.close().await;
        // Two first ones, the one that was refused, and three of one call each.
        assert_eq!(calls(&server).await, (6, 3));
    });
}

fn told() {
    run(async {
        let server = counting().await;
        let mut clients = [client(&server, "").await, client(&server, "").await];
        let mut held = take_for(&clients[0], "a", LONG).await;
        for _ in 0..10 {
            let lock = clients[1].lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&clients[0], "a", 1).await;
            give_back(held).await;
            held = soon("its turn", waiting).await.unwrap().unwrap();
            clients.swap(0, 1);
        }
        give_back(held).await;
        for locks in clients {
            locks.close().await;
        }
        // The first, ten who joined the line; and where a machine stood still, one who found out by
        // itself.
        let (acquired, _) = calls(&server).await;
        assert!((11..16).contains(&acquired), "{acquired} calls");
    });
}
