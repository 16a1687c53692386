//! A cluster that is well: locks on all its nodes, and clients that wake each other.

use std::time::Duration;

use distlock_core::{Clock, Error};
use distlock_testkit::servers::{Cluster, raw};
use futures_util::future::try_join_all;

use crate::kit::*;

pub(crate) const TRIALS: Trials =
    &[("cluster_locks_are_everywhere_listed_renewed_and_handed_over", || play(well()))];

const MANY: usize = 1000;
const TTL: Duration = Duration::from_secs(8);

async fn well() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let url = cluster_url(&cluster, "quarantine=off");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    woken(&cluster).await?;
    let all = (0..MANY).map(|i| {
        let lock = a.lock(format!("many-{i:04}")).ttl(TTL);
        async move { Ok::<_, Error>(lock.try_acquire().await?.expect("a free lock")) }
    });
    let guards = try_join_all(all).await?;
    for node in cluster.nodes() {
        let keys = raw(node.addr(), &["DBSIZE"]).await.expect("an answer").int();
        assert!(keys.is_some_and(|n| n > MANY as i64 / 5), "{keys:?} locks at one node");
    }
    let listed = b.list("many-").await?;
    let names: Vec<String> = (0..MANY).map(|i| format!("many-{i:04}")).collect();
    assert!(listed.iter().map(|l| l.lock.name.as_str()).eq(&names), "{} listed", listed.len());
    let end = now().plus(TTL + Duration::from_secs(2));
    while now() < end {
        assert!(guards.iter().all(|g| g.check().is_ok()), "one was not renewed");
        Clock::system().sleep(Duration::from_millis(50)).await;
    }
    a.close().await;
    assert!(b.list("").await?.is_empty());
    Ok(())
}

/// A waiter hears of its turn by a message, wherever it connected first: long before it would ask
/// by itself.
async fn woken(cluster: &Cluster) -> Result<(), Error> {
    let entered = |i: usize| format!("redis+cluster://{}?quarantine=off", cluster.addrs()[i]);
    for node in 0..3 {
        let name = name_at(cluster, node, "woken").await?;
        let ((a, b), ttl) =
            ((connect(&entered(0)).await?, connect(&entered(1)).await?), Duration::from_secs(30));
        let mut held = take(&a, &name, ttl).await?;
        for (from, to) in [(&a, &b), (&b, &a), (&a, &b)] {
            let waiting = {
                let lock = to.lock(&name).ttl(ttl);
                task(async move { lock.await })
            };
            line_of(from, &name, 1).await;
            give_back(held).await?;
            held = within(Duration::from_millis(2500), "its turn", waiting)
                .await
                .expect("no panic")?;
        }
        give_back(held).await?;
    }
    Ok(())
}
