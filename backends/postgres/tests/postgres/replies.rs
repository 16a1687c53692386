//! Acquires dropped at any moment on a slow road. Lost and late answers are laws, which every store
//! is held to.

use distlock_core::{Clock, Lock};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Postgres, Server};

use crate::kit::{LONG, Named, all_free, client, client_at, give_back, ms, run, soon};

pub(crate) const TRIALS: &[Named] =
    &[("s33_an_acquire_dropped_at_any_moment_leaves_nothing", s33_any_moment)];

const ALGORITHMS: [&str; 2] = ["timeout=3s", "timeout=3s&algorithm=version"];

async fn scene() -> (Server, Proxy) {
    let server = Postgres::new().start().await.unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

/// Asks until there is an answer and the lock is free.
async fn again(lock: &Lock) -> distlock_core::Guard {
    loop {
        if let Ok(Ok(guard)) = lock.clone().try_acquire_for(ms(5000)).await {
            return guard;
        }
    }
}

fn s33_any_moment() {
    run(async {
        for query in ALGORITHMS {
            let (server, proxy) = scene().await;
            let (locks, look) =
                (client_at(proxy.addr(), query).await, client(&server, query).await);
            proxy.delay(ms(2));
            for pause in 0..24 {
                // A straggler of the last round may still come, but its cancel is behind it.
                let held = soon("it is free", again(&look.lock("a").ttl(LONG))).await;
                let lock = locks.lock("a").ttl(LONG);
                let clock = Clock::system();
                let asking = clock.timeout(ms(pause), lock.acquire());
                let freeing = async {
                    Clock::system().sleep(ms(pause / 2)).await;
                    give_back(held).await;
                };
                let (got, ()) = tokio::join!(asking, freeing);
                if let Some(Ok(guard)) = got {
                    give_back(guard).await;
                }
                all_free(&look, "a").await;
            }
        }
    });
}
