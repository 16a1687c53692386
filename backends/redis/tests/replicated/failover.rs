//! A primary fails, and everything goes on at another.

use std::time::Duration;

use distlock_core::{Error, Kind, Locks};
use distlock_testkit::servers::{Cluster, Redis, Sentinels, raw};

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("sentinel_holders_and_waiters_outlive_a_failover", || play(sentinel())),
    ("sentinel_an_isolated_primary_refuses_and_is_left", || play(isolated())),
    ("cluster_a_replica_takes_over_after_the_quarantine", || play(cluster())),
];

const TTL: Duration = Duration::from_secs(20);

async fn sentinel() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let url = sentinel_url(&set, "quarantine=off");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    let held = take(&a, "kept", TTL).await?;
    let token = held.token();
    let waiting = {
        let lock = b.lock("kept").ttl(TTL);
        task(async move { lock.await })
    };
    line_of(&a, "kept", 1).await;
    let primary = set.primary().await?;
    let copied = set.ask(primary, &["WAIT", "2", "5000"]).await.expect("an answer");
    assert_eq!(copied.int(), Some(2));
    primary.kill();
    let next = set.failed_over(primary.addr()).await?.addr();
    assert_ne!(next, primary.addr());
    // New locks are to be had again, by both clients.
    for (locks, name) in [(&a, "new-a"), (&b, "new-b")] {
        give_back(take_in_the_end(locks, name, TTL).await).await?;
    }
    // The lock that was replicated goes on: renewed at the new primary, with its token.
    let end = || now().plus(held.remaining());
    let before = end().plus(Duration::from_secs(1));
    until("a renewal at the new primary", async || end() > before).await;
    assert!(held.check().is_ok() && held.token() == token);
    let shown = b.show("kept").await?.expect("it is held");
    assert_eq!((shown.holds[0].holder.token, shown.waiters.len()), (token, 1));
    not_believed(&set, &b).await?;
    give_back(held).await?;
    let served = soon("the waiter's turn", waiting).await.expect("no panic")?;
    assert!(served.token() > token);
    give_back(served).await
}

/// A sentinel that missed the failover names another primary, and is not believed.
async fn not_believed(set: &Sentinels, right: &Locks) -> Result<(), Error> {
    let (_other, stale) = stale_sentinel().await?;
    let url = sentinel_url(set, "quarantine=off").replace("://", &format!("://{},", stale.addr()));
    for n in 0..8 {
        let name = format!("believed-{n}");
        let guard = take(&connect(&url).await?, &name, TTL).await?;
        assert!(right.show(&name).await?.is_some(), "taken at what an old sentinel names");
        give_back(guard).await?;
    }
    Ok(())
}

async fn isolated() -> Result<(), Error> {
    let set = Sentinels::with("nopass", |redis| redis.min_replicas(1, 1)).await?;
    let a = connect(&sentinel_url(&set, "quarantine=off")).await?;
    give_back(take_in_the_end(&a, "n", TTL).await).await?;
    let old = set.primary().await?;
    set.isolate_primary().await?;
    let refused = a.lock("n").ttl(TTL).try_acquire().await.expect_err("no replica has it");
    assert!(refused.kind() == Kind::Refused && refused.is_transient(), "{refused:?}");
    assert!(refused.to_string().contains("too few replicas"), "{refused}");
    assert!(refused.hint().is_some_and(|h| h.contains("min-replicas-to-write")), "{refused:?}");
    set.failed_over(old.addr()).await?;
    // It lives and answers, and is left all the same.
    give_back(take_in_the_end(&a, "n", TTL).await).await?;
    assert!(old.is_running());
    Ok(())
}

async fn cluster() -> Result<(), Error> {
    let cluster = Cluster::with(1, Redis::durable).await?;
    let url = cluster_url(&cluster, "max_ttl=5s");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    let ttl = Duration::from_secs(5);
    let (name, other) =
        (name_at(&cluster, 0, "moves").await?, name_at(&cluster, 1, "stays").await?);
    let elsewhere = take(&a, &other, ttl).await?;
    let before = take(&a, &name, ttl).await?;
    let token = before.token();
    give_back(before).await?;
    let slot = slot_of(&cluster, &name).await?;
    cluster.kill(0).await?;
    cluster.failed_over(slot, 0).await?;
    let mut words = None;
    until("words", async || {
        let answer = b.lock(&name).ttl(ttl).try_acquire().await;
        words = answer.ok().and_then(Result::err).map(|busy| busy.to_string());
        words.is_some()
    })
    .await;
    let words = words.expect("words");
    assert!(words.contains("a replica was promoted"), "{words}");
    let start = now();
    let next = soon("a grant", b.lock(&name).ttl(ttl).acquire()).await?;
    // It counts from when the first of the clients found out.
    assert!(now().since(start) > Duration::from_secs(1), "the quarantine was not waited out");
    assert!(next.token() > token);
    give_back(next).await?;
    // The other client learns of it too, and the other slots never noticed.
    give_back(take_in_the_end(&a, &name, ttl).await).await?;
    led_there(&cluster, &a).await?;
    assert!(elsewhere.check().is_ok(), "{elsewhere:?}");
    give_back(elsewhere).await
}

/// Whoever is led to a promoted replica by its former primary is kept waiting there as well.
async fn led_there(cluster: &Cluster, a: &Locks) -> Result<(), Error> {
    let (name, ttl) = (name_at(cluster, 2, "led").await?, Duration::from_secs(5));
    give_back(take(a, &name, ttl).await?).await?;
    let asked = raw(cluster.nodes()[5].addr(), &["CLUSTER", "FAILOVER"]).await;
    assert_eq!(asked.expect("an answer").to_string(), "OK");
    cluster.failed_over(slot_of(cluster, &name).await?, 2).await?;
    let busy = a.lock(&name).ttl(ttl).try_acquire().await?.expect_err("a quarantine");
    assert!(busy.to_string().contains("a replica was promoted"), "{busy}");
    Ok(())
}
