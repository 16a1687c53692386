//! Whatever is killed at whatever moment, no key stays for ever.

use distlock_testkit::servers::{Redis, Server};

use crate::child::Child;
use crate::kit::{Named, client, give_back, keys, ms, run, soon, take_for, until};

pub(crate) const TRIALS: &[Named] = &[
    ("no_key_without_an_end_after_clients_are_killed", clients_killed),
    ("no_key_without_an_end_after_clients_of_plain_are_killed", plain_clients_killed),
    ("no_key_without_an_end_after_the_server_is_killed", server_killed),
];

async fn all_end(server: &Server) -> usize {
    let all = keys(server).await;
    let endless: Vec<_> = all.iter().filter(|(_, left)| *left <= 0).collect();
    assert!(endless.is_empty(), "{endless:?}");
    all.len()
}

fn clients_killed() {
    run(killed("max_ttl=500ms", 12));
}

fn plain_clients_killed() {
    run(killed("max_ttl=500ms&algorithm=plain", 8));
}

async fn killed(query: &str, rounds: usize) {
    let server = Redis::new().durable().start().await.unwrap();
    let url = format!("redis://{}?{query}", server.addr());
    let mut kinds = std::collections::BTreeSet::new();
    for round in 0..rounds {
        // Two at a time, so that they meet.
        let mut two = [Child::start("churn", &url), Child::start("churn", &url)];
        for n in 0..8 + 7 * round {
            assert!(!two[n % 2].line().is_empty(), "it works");
        }
        two.iter_mut().for_each(Child::kill);
        assert!(all_end(&server).await > 0);
        kinds.extend(keys(&server).await.into_iter().map(|(k, _)| ending(&k)));
    }
    // The look was at everything that a lock can leave.
    let expected: &[&str] = match query.contains("plain") {
        true => &["", ":c", ":f", ":i"],
        false => &["", ":z"],
    };
    for end in expected {
        assert!(kinds.contains(*end), "{end} is missing in {kinds:?}");
    }
    // What the dead held and waited for is over with their TTLs.
    let locks = client(&server, query).await;
    for name in ["c0", "c1", "c2"] {
        let free = async || locks.lock(name).ttl(ms(500)).try_acquire().await.unwrap().is_ok();
        until("it is free", free).await;
    }
}

/// What of a lock a key is.
fn ending(key: &str) -> String {
    key.rsplit_once('}').map_or("", |(_, end)| end).to_owned()
}

fn server_killed() {
    run(async {
        for query in ["max_ttl=500ms", "max_ttl=500ms&algorithm=plain"] {
            let server = Redis::new().durable().start().await.unwrap();
            let url = format!("redis://{}?{query}", server.addr());
            for round in 0..5 {
                let mut two = [Child::start("churn", &url), Child::start("churn", &url)];
                for n in 0..10 + 9 * round {
                    assert!(!two[n % 2].line().is_empty(), "it works");
                }
                server.kill();
                server.again().await.unwrap();
                assert!(all_end(&server).await > 0, "durable");
                // They go on after that.
                for n in 0..20 {
                    assert!(!two[n % 2].line().is_empty(), "it works again");
                }
                two.iter_mut().for_each(Child::kill);
                all_end(&server).await;
            }
            let locks = client(&server, query).await;
            let guard = soon("a grant", locks.lock("c0").ttl(ms(500)).acquire()).await.unwrap();
            give_back(guard).await;
            give_back(take_for(&locks, "new", ms(500)).await).await;
        }
    });
}
