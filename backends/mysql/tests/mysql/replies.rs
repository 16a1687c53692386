//! A client that falls silent in the middle of a transaction. Lost and late answers are laws, which
//! every store is held to.

use distlock_core::{Clock, Released};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Mariadb, Server};

use crate::kit::{LONG, Named, client, client_at, line_of, ms, run, start, take, task, until};

pub(crate) const TRIALS: &[Named] =
    &[("a_client_that_falls_silent_in_a_transaction_keeps_nobody_out", silent_transaction)];

async fn scene() -> (Server, Proxy) {
    let server = start(Mariadb::new()).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    (server, proxy)
}

/// Its answers are cut between the two halves of a transaction, so that it keeps the row locked and
/// says nothing more; the server ends that by itself.
fn silent_transaction() {
    run(async {
        let (server, proxy) = scene().await;
        let long = "timeout=60s";
        let (locks, look) = (client_at(proxy.addr(), long).await, client(&server, "").await);
        let held = take(&look, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await.map(drop) });
        line_of(&look, "a", 1).await;
        proxy.cut(Way::Replies);
        // Cancelled: its transaction begins, and its answer does not come.
        waiting.abort();
        until("the row is locked", async || {
            // This table shows what it showed before to whoever asks within a tenth of a second.
            Clock::system().sleep(ms(200)).await;
            let locked =
                "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_rows_locked>0";
            crate::kit::ask(&server, locked) != "0"
        })
        .await;
        let mut held = held;
        until("it is given back", async || {
            held.give_back().await.is_ok_and(|r| r == Released::Released)
        })
        .await;
    });
}
