//! A request that arrives late, after its own repetition was answered.

use distlock_testkit::late::{LOCK, Late};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Mariadb, Server};

use crate::kit::{LONG, Named, client, client_at, give_back, run, start, take};

pub(crate) const TRIALS: &[Named] = &[
    ("a_late_request_whose_repetition_was_released_comes_to_nothing", released),
    ("a_late_request_whose_repetition_was_busy_comes_to_nothing", busy),
];

async fn scene() -> (Server, Late) {
    let server = start(Mariadb::new()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let locks = client_at(proxy.addr(), "timeout=60s").await;
    for _ in 0..2 {
        give_back(take(&locks, LOCK, LONG).await).await;
    }
    let others = client(&server, "").await;
    (server, Late { proxy, locks, others })
}

fn released() {
    run(async { scene().await.1.was_released().await });
}

fn busy() {
    run(async { scene().await.1.was_busy().await });
}
