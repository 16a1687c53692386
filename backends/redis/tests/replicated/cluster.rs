//! A cluster that is well: locks on all its nodes, and clients that wake each other.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::{Clock, Error};
use distlock_testkit::servers::{Cluster, raw};
use futures_util::future::try_join_all;

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("cluster_locks_are_everywhere_listed_renewed_and_handed_over", || play(well())),
    ("cluster_a_node_that_forgot_the_others_is_not_believed", || play(forgot())),
    ("cluster_a_crowd_of_redirections_reads_the_map_once", || play(redirected())),
];

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

/// How often a node was sent a command since it started.
async fn calls(at: SocketAddr, command: &str) -> u64 {
    let told = raw(at, &["INFO", "commandstats"]).await.expect("an answer").to_string();
    let line = told.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|l| l.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// How many connections of ours a node has accepted since it started: the test's own say no HELLO.
async fn accepted(at: SocketAddr) -> u64 {
    calls(at, "hello").await
}

/// Many slots move at once, and every lock in them is redirected: the map is read for all of them
/// together, over the connections that there are.
async fn redirected() -> Result<(), Error> {
    const SLOTS: usize = 24;
    let cluster = Cluster::start().await?;
    let locks = connect(&cluster_url(&cluster, "quarantine=off")).await?;
    let mut names = Vec::new();
    for n in 0..SLOTS {
        names.push(name_at(&cluster, 0, &format!("moves-{n}")).await?);
    }
    for name in names
        .iter()
        .cloned()
        .chain([name_at(&cluster, 1, "stays").await?, name_at(&cluster, 2, "stays").await?])
    {
        give_back(take(&locks, &name, TTL).await?).await?;
    }
    for name in &names {
        cluster.migrate(slot_of(&cluster, name).await?, 1).await?;
    }
    let at = cluster.addrs()[2];
    let before = (accepted(at).await, calls(at, "cluster|slots").await);
    for guard in try_join_all(names.iter().map(|name| take(&locks, name, TTL))).await? {
        give_back(guard).await?;
    }
    until("the map is read", async || calls(at, "cluster|slots").await > before.1).await;
    // A reading for each redirection would follow within moments.
    Clock::system().sleep(Duration::from_millis(500)).await;
    let connected = accepted(at).await - before.0;
    let read = calls(at, "cluster|slots").await - before.1;
    // Two where the crowd took longer than the second for which one reading serves all.
    assert!(read <= 2, "the map was read {read} times for {SLOTS} redirections");
    assert_eq!(connected, 0, "connected to again");
    Ok(())
}

/// A node whose slots were taken over, and that is taken out of the cluster, answers CLUSTERDOWN to
/// whoever still asks it, and serves nothing by its own map: the others know better.
async fn forgot() -> Result<(), Error> {
    let cluster = Cluster::with(1, |redis| redis).await?;
    let url = cluster_url(&cluster, "quarantine=off");
    let a = connect(&url).await?;
    let mut names = Vec::new();
    for node in 0..3 {
        names.push(name_at(&cluster, node, "n").await?);
        give_back(take(&a, &names[node], TTL).await?).await?;
    }
    // The map is read over the connections that there are.
    let before = accepted(cluster.addrs()[1]).await;
    for _ in 0..3 {
        a.list("").await?;
    }
    assert_eq!(accepted(cluster.addrs()[1]).await, before, "connected to again");
    // Taken out of the cluster behind our back.
    let (gone, replica) = (cluster.nodes()[0].addr(), cluster.nodes()[3].addr());
    let told = raw(replica, &["CLUSTER", "FAILOVER"]).await.expect("an answer");
    assert_eq!(told.to_string(), "OK");
    cluster.failed_over(slot_of(&cluster, &names[0]).await?, 0).await?;
    until("it follows", async || {
        raw(gone, &["ROLE"]).await.is_ok_and(|role| role.to_string().contains("slave"))
    })
    .await;
    assert_eq!(
        raw(gone, &["CLUSTER", "RESET", "HARD"]).await.expect("an answer").to_string(),
        "OK"
    );
    give_back(take(&a, &names[0], TTL).await?).await?;
    // Nor by who comes now, to it first.
    for n in 0..5 {
        let b = connect(&url).await?;
        let name = name_at(&cluster, 1, &format!("later-{n}")).await?;
        for name in [&name, &names[0]] {
            give_back(take(&b, name, TTL).await?).await?;
        }
    }
    Ok(())
}
