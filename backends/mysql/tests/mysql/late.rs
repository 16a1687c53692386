//! A request that arrives late, after its own repetition was answered.

use distlock_core::{Busy, Error, Guard, Locks};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Mariadb, Server};

use crate::kit::{LONG, Named, client, client_at, give_back, run, soon, start, take, task, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_late_request_whose_repetition_was_released_comes_to_nothing", released),
    ("a_late_request_whose_repetition_was_busy_comes_to_nothing", busy),
];

/// What marks the request that is late.
const LABEL: &str = "the late one";

/// A server, a client behind a proxy that has used the lock `a`, and others.
async fn scene() -> (Server, Proxy, Locks, Locks) {
    let server = start(Mariadb::new()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let locks = client_at(proxy.addr(), "timeout=60s").await;
    // Its statement is prepared: from now on it is sent whole.
    give_back(take(&locks, "a", LONG).await).await;
    give_back(take(&locks, "a", LONG).await).await;
    let others = client(&server, "").await;
    (server, proxy, locks, others)
}

/// Asks for `a`; the connection breaks while the request is on its way, and it is sent again on
/// another.
async fn repeated(proxy: &Proxy, locks: &Locks) -> Result<Result<Guard, Busy>, Error> {
    proxy.cut(Way::Requests);
    let lock = locks.lock("a").ttl(LONG).label(LABEL);
    let asking = task(async move { lock.try_acquire().await });
    until("it is on its way", async || proxy.holds(LABEL.as_bytes())).await;
    proxy.strand();
    soon("an answer", asking).await.unwrap()
}

/// The server gets what was held up on the way.
async fn arrives(proxy: &Proxy, others: &Locks) {
    proxy.arrive();
    until("it has arrived", async || !proxy.holds(LABEL.as_bytes())).await;
    let shown = others.show("a").await.unwrap();
    assert!(shown.is_none(), "a ghost holds the lock: {shown:?}");
}

/// The repetition was granted, given back, and pushed out of the row's memory of releases by others.
fn released() {
    run(async {
        let (_server, proxy, locks, others) = scene().await;
        let held = repeated(&proxy, &locks).await.unwrap().unwrap();
        give_back(held).await;
        for _ in 0..8 {
            give_back(take(&others, "a", LONG).await).await;
        }
        arrives(&proxy, &others).await;
    });
}

/// Somebody else held the lock, and has given it back when the request arrives.
fn busy() {
    run(async {
        let (_server, proxy, locks, others) = scene().await;
        let held = take(&others, "a", LONG).await;
        assert!(repeated(&proxy, &locks).await.unwrap().is_err());
        give_back(held).await;
        arrives(&proxy, &others).await;
    });
}
