//! The server dies in the midst of grants: none is lost or doubled.

use distlock_testkit::fellow::Fellow;
use distlock_testkit::servers::{Mariadb, Server};

use crate::kit::{LONG, Named, client, give_back, ms, run, soon, start, take, task, url};

pub(crate) const TRIALS: &[Named] = &[
    ("a_server_killed_in_the_midst_of_grants_loses_and_doubles_none", killed),
    ("a_restart_under_eight_processes_keeps_order_and_everybody_ends", restarted),
    ("a_hold_stays_held_when_the_server_is_killed", stays),
];

/// Every hold that was seen: token, and from when to when it was certain.
fn check(lines: Vec<String>) -> usize {
    let mut holds: Vec<(u64, u64, u64)> = Vec::new();
    for line in lines {
        let n: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        holds.push((n[1], n[2], n[0]));
    }
    holds.sort_unstable();
    for pair in holds.windows(2) {
        let ((_, to, token), (from, _, next)) = (pair[0], pair[1]);
        assert!(to <= from, "{token} and {next} were held at once");
        assert!(token < next, "{next} was granted after {token}");
    }
    holds.len()
}

async fn eight(server: &Server, query: &str, hurt: impl AsyncFn(&Server)) -> usize {
    let url = url(server.addr(), query);
    // The tables are made by one of them, and sixteen do it at once in the laws.
    let mut children: Vec<Fellow> = (0..8).map(|_| Fellow::start("tokens", &url)).collect();
    let mut lines = Vec::new();
    for round in 0..3 {
        for child in &mut children {
            for _ in 0..2 + round {
                let line = child.line();
                assert!(!line.is_empty(), "a child ended");
                lines.push(line);
            }
        }
        hurt(server).await;
    }
    for child in &mut children {
        lines.push(child.line());
    }
    for mut child in children {
        lines.extend(child.rest());
    }
    check(lines)
}

fn killed() {
    run(async {
        for query in ["", "algorithm=version"] {
            let server = start(Mariadb::new().durable()).await;
            let grants = eight(&server, query, async |server| {
                server.kill();
                server.again().await.unwrap();
            })
            .await;
            assert!(grants > 60, "{grants}");
        }
    });
}

fn restarted() {
    run(async {
        let server = start(Mariadb::new().durable()).await;
        let grants = eight(&server, "", async |server| server.restart().await.unwrap()).await;
        assert!(grants > 60, "{grants}");
    });
}

fn stays() {
    run(async {
        for query in ["", "algorithm=version"] {
            let server = start(Mariadb::new().durable()).await;
            let (one, other) = (client(&server, query).await, client(&server, query).await);
            let held = take(&one, "a", LONG).await;
            server.kill();
            server.again().await.unwrap();
            assert!(held.check().is_ok());
            let seen = soon("an answer", async {
                loop {
                    if let Ok(seen) = one.show("a").await {
                        return seen.unwrap();
                    }
                }
            })
            .await;
            assert_eq!(seen.holds[0].holder.token, held.token());
            let lock = other.lock("a").ttl(ms(60_000));
            let waiting = task(async move { lock.acquire().await });
            crate::kit::line_of(&one, "a", 1).await;
            let token = held.token();
            give_back(held).await;
            let turn = soon("its turn", waiting).await.unwrap().unwrap();
            assert!(turn.token() > token);
        }
    });
}
