//! Many waiters: one wake-up a release.

use distlock_testkit::servers::{Server, four_letters, zookeeper};

use crate::kit::{LONG, Named, Site, crowd_of, give_back, run, soon, take, task};

pub(crate) const TRIALS: &[Named] =
    &[("a_thousand_waiters_are_woken_one_at_a_time", one_at_a_time)];

const WAITERS: usize = 1000;

/// How many watches have fired at the server: because a node was deleted, and because it changed.
async fn fired(server: &Server) -> (u64, u64) {
    let all = four_letters(server.addr(), "mntr").await.unwrap();
    let read = |name: &str| {
        let line = all.lines().find(|l| l.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name}"))
            .split_whitespace()
            .last()
            .unwrap()
            .parse()
            .unwrap()
    };
    (read("zk_sum_node_deleted_watch_count"), read("zk_sum_node_changed_watch_count"))
}

fn one_at_a_time() {
    run(async {
        let server = Server::start(zookeeper()).await.unwrap();
        let site = Site::new();
        // Two clients, so that a watch of one does not stand for a watch of the other.
        let clients = [site.strict(server.addr()).await, site.strict(server.addr()).await];
        let held = take(&clients[0], "a", LONG).await;
        let mut waiting = Vec::new();
        for i in 0..WAITERS {
            let lock = clients[i % 2].lock("a").ttl(LONG);
            waiting.push(task(async move { give_back(lock.acquire().await.unwrap()).await }));
        }
        crowd_of(&clients[0], "a", WAITERS + 1).await;
        let (deleted, changed) = fired(&server).await;
        give_back(held).await;
        for waiter in waiting {
            soon("its turn", waiter).await.unwrap();
        }
        let (deleted, changed) = {
            let now = fired(&server).await;
            (now.0 - deleted, now.1 - changed)
        };
        println!("{} releases: {deleted} watches fired, and {changed} by changes", WAITERS + 1);
        // The last one's release wakes nobody. The first holder, held long, may watch itself.
        let most = WAITERS as u64 + 10;
        assert!((WAITERS as u64 - 10..=most).contains(&deleted), "{deleted}");
        assert_eq!(changed, 0, "nobody is woken by what changes nothing");
    });
}
