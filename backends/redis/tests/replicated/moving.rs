//! A slot moves to another node while its lock is held and waited for.

use std::time::Duration;

use distlock_core::{Error, Guard, Locks};
use distlock_testkit::servers::{Cluster, raw};
use tokio::task::JoinHandle;

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("cluster_a_slot_moves_under_a_lock_that_is_held_and_waited_for", || play(waited_for())),
    ("cluster_a_waiter_is_told_where_it_listens_now", || play(heard_elsewhere())),
    ("cluster_a_slot_that_stays_half_moved_serves_its_locks", || play(half_moved())),
];

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(6);

async fn wait_for(client: &Locks, name: &str, place: usize) -> JoinHandle<Result<Guard, Error>> {
    let lock = client.lock(name).ttl(TTL).label(format!("waiter {place}"));
    let waiting = task(async move { lock.await });
    line_of(client, name, place).await;
    waiting
}

async fn waited_for() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let url = cluster_url(&cluster, "quarantine=off");
    let a = connect(&url).await?;
    let (name, to) = (name_at(&cluster, 0, "moving").await?, 1);
    let held = take(&a, &name, SHORT).await?;
    let mut tokens = vec![held.token()];
    let mut line = Vec::new();
    for place in 1..=4 {
        line.push(wait_for(&connect(&url).await?, &name, place).await);
    }
    let half = cluster.begin(slot_of(&cluster, &name).await?, to).await?;
    renewed(&held).await;
    half.move_keys().await?;
    // Now everything is at the other node, which serves it only to those who were sent there.
    renewed(&held).await;
    give_back(held).await?;
    let mut line = line.into_iter();
    let mut turn = async || -> Result<Guard, Error> {
        let waiting = line.next().expect("a waiter");
        // By a message, and not by a heartbeat, which comes every three seconds.
        let guard = within(Duration::from_secs(2), "its turn", waiting).await.expect("no panic")?;
        let shown = a.show(&name).await?.expect("it is held");
        assert_eq!(shown.holds[0].holder.token, guard.token());
        tokens.push(guard.token());
        Ok(guard)
    };
    let second = turn().await?;
    half.finish().await?;
    give_back(second).await?;
    for _ in 0..3 {
        give_back(turn().await?).await?;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(a.show(&name).await?.is_none());
    Ok(())
}

/// Its guard's end moves on.
async fn renewed(guard: &Guard) {
    let end = now().plus(guard.remaining());
    until("two renewals", async || now().plus(guard.remaining()) > end.plus(SHORT / 2)).await;
    assert!(guard.check().is_ok(), "{guard:?}");
}

/// Its slot has moved, and then the node where it joined dies.
async fn heard_elsewhere() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let url = cluster_url(&cluster, "quarantine=off");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    let name = name_at(&cluster, 0, "heard").await?;
    let held = take(&a, &name, TTL).await?;
    let lock = b.lock(&name).ttl(TTL);
    let waiting = task(async move { lock.await });
    line_of(&a, &name, 1).await;
    cluster.migrate(slot_of(&cluster, &name).await?, 1).await?;
    let next = cluster.nodes()[1].addr();
    let info = raw(next, &["INFO", "server"]).await.expect("an answer").to_string();
    let run = info.lines().find_map(|l| l.trim().strip_prefix("run_id:")).expect("a run");
    let line = format!("dl:{{:{name}}}:w");
    until("its heartbeat says where it listens", async || {
        let line = raw(next, &["HVALS", &line]).await.expect("an answer").to_string();
        line.contains(&run[..8])
    })
    .await;
    cluster.kill(0).await?;
    give_back(held).await?;
    // Before its next heartbeat, which comes more than three seconds after the last.
    let soon = within(Duration::from_millis(2500), "its turn", waiting).await;
    give_back(soon.expect("no panic")?).await
}

async fn half_moved() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let a = connect(&cluster_url(&cluster, "quarantine=off")).await?;
    let name = name_at(&cluster, 0, "half").await?;
    let half = cluster.begin(slot_of(&cluster, &name).await?, 2).await?;
    // Nothing of it is there yet, so it begins its life at the other node.
    let first = take(&a, &name, TTL).await?;
    let shown = a.show(&name).await?.expect("it is held");
    assert_eq!(shown.holds[0].holder.token, first.token());
    give_back(first).await?;
    let second = take(&a, &name, TTL).await?;
    half.finish().await?;
    assert_eq!(a.list("half").await?.len(), 1);
    give_back(second).await?;
    // Back again, by a client that does not know.
    let held = take(&a, &name, TTL).await?;
    cluster.migrate(slot_of(&cluster, &name).await?, 0).await?;
    give_back(held).await
}
