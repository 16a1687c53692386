//! The server is killed under its clients: no key stays for ever. That clients are killed is a law.

use distlock_testkit::Child;
use distlock_testkit::servers::{Redis, Server};

use crate::kit::{Named, client, give_back, keys, ms, run, soon, take_for};

pub(crate) const TRIALS: &[Named] =
    &[("no_key_without_an_end_after_the_server_is_killed", server_killed)];

async fn all_end(server: &Server) -> usize {
    let all = keys(server).await;
    let endless: Vec<_> = all.iter().filter(|(_, left)| *left <= 0).collect();
    assert!(endless.is_empty(), "{endless:?}");
    all.len()
}

fn server_killed() {
    run(async {
        for query in ["max_ttl=500ms", "max_ttl=500ms&algorithm=plain"] {
            let server = Redis::new().durable().start().await.unwrap();
            let url = format!("redis://{}?{query}", server.addr());
            for round in 0..5 {
                let args = [("url", url.as_str())];
                let mut two = [Child::start("churn", &args), Child::start("churn", &args)];
                for n in 0..10 + 9 * round {
                    two[n % 2].hear("did").await;
                }
                server.kill();
                server.again().await.unwrap();
                assert!(all_end(&server).await > 0, "durable");
                // They go on after that.
                for n in 0..20 {
                    two[n % 2].hear("did").await;
                }
                for child in &mut two {
                    child.kill().await;
                }
                all_end(&server).await;
            }
            let locks = client(&server, query).await;
            let guard = soon("a grant", locks.lock("c0").ttl(ms(500)).acquire()).await.unwrap();
            give_back(guard).await;
            give_back(take_for(&locks, "new", ms(500)).await).await;
        }
    });
}
