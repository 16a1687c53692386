//! Many at once.

use std::sync::Arc;

use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Locks};
use distlock_mysql::Mysql;
use distlock_testkit::Stopwatch;
use distlock_testkit::servers::Mariadb;

use crate::kit::{
    LONG, Named, client, connections, give_back, line_of, ms, run, soon, start, take, task, url,
};

pub(crate) const TRIALS: &[Named] = &[
    ("two_hundred_waiters_use_few_connections", two_hundred),
    ("sixteen_contenders_see_no_deadlock_and_no_lock_wait", sixteen),
];

fn two_hundred() {
    run(async {
        let server = start(Mariadb::new()).await;
        let locks = client(&server, "").await;
        let held = [take(&locks, "a", LONG).await, take(&locks, "b", LONG).await];
        let mut waiting = Vec::new();
        for n in 0..200 {
            let lock = locks.lock(if n % 2 == 0 { "a" } else { "b" }).ttl(LONG);
            waiting.push(task(async move { give_back(lock.acquire().await.unwrap()).await }));
        }
        line_of(&locks, "a", 100).await;
        line_of(&locks, "b", 100).await;
        // Calls, upkeep and the wake-ups; and three more for calls while many wait to be sent.
        assert!(connections(&server).len() <= 6, "{:?}", connections(&server));
        for held in held {
            give_back(held).await;
        }
        for one in waiting {
            soon("its turn", one).await.unwrap();
        }
        assert!(connections(&server).len() <= 6, "{:?}", connections(&server));
    });
}

/// How long they contend; `DISTLOCK_CONTEND=60` is the figure of the page.
fn span() -> std::time::Duration {
    let seconds = std::env::var("DISTLOCK_CONTEND").ok().and_then(|s| s.parse().ok());
    std::time::Duration::from_secs(seconds.unwrap_or(10))
}

fn sixteen() {
    run(async {
        let server = start(Mariadb::new().durable()).await;
        let clock = Clock::system();
        let mut stores = Vec::new();
        for _ in 0..16 {
            let url = StoreUrl::parse(&url(server.addr(), "")).unwrap();
            stores.push(Mysql::open(url).await.unwrap());
        }
        // All are there before the first begins.
        let (watch, end) = (Stopwatch::start(), clock.now().plus(span()));
        let mut all = Vec::new();
        for store in stores {
            let seen = store.collisions();
            let locks = Arc::new(Locks::from_store(store));
            let clock = clock.clone();
            let contender = task(async move {
                let mut grants = 0_u64;
                while clock.now() < end {
                    let guard = locks.lock("hot").ttl(ms(8000)).acquire().await.unwrap();
                    grants += 1;
                    give_back(guard).await;
                }
                grants
            });
            all.push((contender, seen));
        }
        let (mut grants, mut collisions) = (Vec::new(), (0, 0));
        for (contender, seen) in all {
            grants.push(soon_after(contender).await);
            let (deadlocks, waits) = (seen.deadlocks(), seen.lock_waits());
            collisions = (collisions.0 + deadlocks, collisions.1 + waits);
        }
        let (least, most) = (grants.iter().min().unwrap(), grants.iter().max().unwrap());
        println!(
            "16 contenders, {:?}: {} grants, each {least} to {most}",
            span(),
            grants.iter().sum::<u64>()
        );
        let stood = clock.now().since(end.minus(span())).saturating_sub(watch.took());
        // A machine that stands still with a row locked makes others wait for it.
        let waits = if stood < ms(200) { collisions.1 } else { 0 };
        assert_eq!((collisions.0, waits), (0, 0), "deadlocks and lock waits: {collisions:?}");
        assert!(*least > 0 && most - least <= most / 2 + 4, "somebody starved: {grants:?}");
    });
}

async fn soon_after<T>(contender: tokio::task::JoinHandle<T>) -> T {
    crate::kit::within(span() + crate::kit::SOON, "a contender ends", contender).await.unwrap()
}
