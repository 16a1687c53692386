//! Wake-ups that are lost, and acquires dropped on slow and new connections. Lost and late answers
//! are laws, which every store is held to.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_core::Clock;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Redis, Server};

use crate::kit::{
    Named, all_free, client, client_at, give_back, keys, ms, run, soon, take, take_for, task,
    until, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("s18_a_wake_up_that_is_lost_costs_less_than_a_wait_lease", s18_lost_wake),
    ("an_acquire_dropped_at_any_moment_leaves_nothing", any_moment),
];

/// A TTL that nothing here outlives: what becomes free under it was given back.
const LONG: Duration = ms(600_000);

async fn scene(query: &str) -> (Server, Proxy) {
    let server = Redis::new().start().await.unwrap();
    // The scripts are known there: a first call by hash would be answered that it is not.
    let warm = client(&server, query).await;
    let held = take(&warm, "first").await;
    assert!(Clock::system().timeout(ms(50), warm.lock("first").acquire()).await.is_none());
    until("the cancel's script has run", async || {
        keys(&server).await.iter().any(|(k, _)| k.ends_with(":z") || k.ends_with(":c"))
    })
    .await;
    give_back(held).await;
    warm.close().await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

fn s18_lost_wake() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("quarantine=off{algorithm}");
            let (server, proxy) = scene(&query).await;
            let (locks, look) =
                (client_at(proxy.addr(), &query).await, client(&server, &query).await);
            let held = take(&look, "a").await;
            let told = Arc::new(tokio::sync::Notify::new());
            let tells = told.clone();
            let lock = locks.lock("a").on_wait(move |_| tells.notify_one());
            let waiting = task(async move { give_back(lock.acquire().await.unwrap()).await });
            soon("it knows that it waits", told.notified()).await;
            proxy.drop_replies();
            give_back(held).await;
            proxy.heal();
            within(ms(6000), "its turn", waiting).await.unwrap();
        }
    });
}

/// Drops a future after so many polls; whether it had ended before.
async fn dropped_after<T>(polls: usize, f: impl Future<Output = T>) -> Option<T> {
    let mut f = pin!(f);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match f.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn any_moment() {
    run(async {
        for algorithm in ["", "&algorithm=plain"] {
            let query = format!("quarantine=off&max_ttl=1h{algorithm}");
            let (server, proxy) = scene(&query).await;
            let look = client(&server, &query).await;
            proxy.delay(ms(4));
            // On a connection that is there, and on one that is still to be made.
            for fresh in [false, true] {
                for waits in [false, true] {
                    let mut polls = 1;
                    loop {
                        let locks = client_at(proxy.addr(), &query).await;
                        if fresh {
                            proxy.reset();
                        }
                        let held =
                            if waits { Some(take_for(&look, "a", LONG).await) } else { None };
                        let lock = locks.lock("a").ttl(LONG);
                        let ended = {
                            let asking = dropped_after(polls, lock.acquire());
                            let freeing = async {
                                if let Some(held) = held {
                                    Clock::system().sleep(ms(3 * polls as u64)).await;
                                    give_back(held).await;
                                }
                            };
                            soon("the moment", async { tokio::join!(asking, freeing) }).await.0
                        };
                        let done = ended.is_some();
                        if let Some(Ok(guard)) = ended {
                            give_back(guard).await;
                        }
                        all_free(&look, "a").await;
                        locks.close().await;
                        // A straggler must not bring it back.
                        assert!(look.show("a").await.unwrap().is_none());
                        if done {
                            break;
                        }
                        polls += 1;
                    }
                    assert!(polls > 1, "it was dropped at least once");
                }
            }
            assert!(keys(&server).await.iter().all(|(_, left)| *left > 0));
        }
    });
}
