//! A node of a cluster is dead or stands still: only its slots suffer.

use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, Guard, Kind, Locks};
use distlock_testkit::servers::Cluster;

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("cluster_a_dead_node_fails_only_its_slots_and_comes_back_quarantined", || play(dead())),
    ("cluster_a_silent_node_costs_the_others_no_renewal", || play(silent())),
    ("cluster_a_crowd_is_told_that_all_are_silent_as_soon_as_one_alone", || play(all_silent())),
];

const TTL: Duration = Duration::from_secs(6);
/// An answer of a node that is not there must not take as long as a call may.
const QUICK: Duration = Duration::from_secs(1);

async fn some_at(cluster: &Cluster, locks: &Locks, node: usize) -> Result<Vec<Guard>, Error> {
    let mut held = Vec::new();
    for n in 0..5 {
        let name = name_at(cluster, node, &format!("held-{n}")).await?;
        held.push(take_in_the_end(locks, &name, TTL).await);
    }
    Ok(held)
}

async fn dead() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let a = connect(&cluster_url(&cluster, "max_ttl=6s")).await?;
    let doomed = some_at(&cluster, &a, 0).await?;
    let mut alive = some_at(&cluster, &a, 1).await?;
    alive.extend(some_at(&cluster, &a, 2).await?);
    let (gone, stays) = (name_at(&cluster, 0, "new").await?, name_at(&cluster, 1, "new").await?);
    cluster.kill(0).await?;
    let killed = now();
    let (took, answer) = timed(a.lock(&gone).ttl(TTL).try_acquire()).await;
    let e = answer.expect_err("its node is dead");
    assert!(took < QUICK, "after {took:?}: {e:?}");
    assert!(e.kind() == Kind::Unreachable && e.is_transient() && e.hint().is_some(), "{e:?}");
    give_back(take(&a, &stays, TTL).await?).await?;
    for guard in &doomed {
        within(TTL, "word that it is lost", guard.lost()).await;
    }
    // Through several renewals while a third of the nodes is dead.
    outlive(&alive, killed).await;
    cluster.again(0).await?;
    let again = now();
    // It came back empty: what it had granted may still be believed in.
    let mut words = None;
    until("words", async || {
        let answer = a.lock(&gone).ttl(TTL).try_acquire().await;
        words = answer.ok().and_then(Result::err).map(|busy| busy.to_string());
        words.is_some()
    })
    .await;
    let words = words.expect("words");
    assert!(words.contains("started a moment ago without durable data"), "{words}");
    give_back(soon("a grant", a.lock(&gone).ttl(TTL).acquire()).await?).await?;
    outlive(&alive, again).await;
    Ok(())
}

async fn silent() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let a = connect(&cluster_url(&cluster, "quarantine=off")).await?;
    let doomed = some_at(&cluster, &a, 0).await?;
    let mut alive = some_at(&cluster, &a, 1).await?;
    alive.extend(some_at(&cluster, &a, 2).await?);
    let name = name_at(&cluster, 1, "waited").await?;
    let held = take(&a, &name, TTL).await?;
    let waiting = {
        let lock = connect(&cluster_url(&cluster, "quarantine=off")).await?.lock(&name).ttl(TTL);
        task(async move { lock.await })
    };
    line_of(&a, &name, 1).await;
    cluster.nodes()[0].pause();
    let paused = now();
    for guard in &doomed {
        within(TTL, "word that it is lost", guard.lost()).await;
    }
    outlive(&alive, paused).await;
    assert!(held.check().is_ok(), "{held:?}");
    // Neither does one who waits elsewhere lose its place.
    give_back(held).await?;
    give_back(soon("the waiter's turn", waiting).await.expect("no panic")?).await?;
    cluster.nodes()[0].resume();
    Ok(())
}

async fn all_silent() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let a = connect(&cluster_url(&cluster, "quarantine=off&timeout=1s")).await?;
    cluster.nodes().iter().for_each(|node| node.pause());
    let ask = |n: usize| {
        let lock = a.lock(format!("crowd-{n}")).ttl(TTL);
        task(async move { lock.try_acquire().await.is_err() })
    };
    // The first round ends the connections; the second looks for others, and for who knows them.
    for round in ["connected", "not connected"] {
        let told = futures_util::future::join_all((0..30).map(ask));
        let told = within(Duration::from_secs(6), round, told).await;
        assert!(told.into_iter().all(|failed| failed.expect("no panic")), "{round}");
    }
    cluster.nodes().iter().for_each(|node| node.resume());
    Ok(())
}

/// They have been renewed, longer than a TTL after something happened.
async fn outlive(guards: &[Guard], happened: BootInstant) {
    Clock::system().sleep_until(happened.plus(TTL + Duration::from_secs(2))).await;
    for guard in guards {
        assert!(guard.check().is_ok(), "{guard:?}");
    }
}
