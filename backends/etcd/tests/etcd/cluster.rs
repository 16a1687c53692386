//! Three members: killed, paused, restarted one after the other.

use std::path::Path;

use distlock_core::{Clock, Locks, LossReason};
use distlock_testkit::fellow::Fellow;
use distlock_testkit::history::{self, Rules, What};
use distlock_testkit::servers::{EtcdCluster, etcd_calls};

use crate::child::HISTORY;
use crate::kit::{
    LONG, Named, connect, give_back, line_of, ms, run, soon, take, task, timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_leader_killed_under_load_breaks_nothing", leader_killed),
    ("a_rolling_restart_under_eight_processes_breaks_nothing", rolling),
    ("a_member_that_falls_silent_is_left_for_another", silent_member),
    ("without_a_majority_holds_end_by_their_deadline", majority_gone),
];

fn contenders(cluster: &EtcdCluster, dir: &Path, n: usize) -> Vec<Fellow> {
    let url = format!("etcd://{}", cluster.hosts());
    let start = |i: usize| {
        let history = dir.join(i.to_string()).into_os_string();
        Fellow::start_with("contend", &url, &[(HISTORY, history)])
    };
    (0..n).map(start).collect()
}

/// Each is granted the lock, so many times.
fn all_served(children: &mut [Fellow], times: usize) {
    for child in children.iter_mut() {
        for _ in 0..times {
            assert_eq!(child.line(), "grant");
        }
    }
}

/// Everybody ends, and what they wrote down can have been true.
fn nothing_broken(children: Vec<Fellow>, dir: &Path) {
    children.into_iter().for_each(Fellow::end);
    let events = history::read(dir).unwrap();
    let found = history::check(&events, Rules { fifo: false });
    assert!(found.is_empty(), "{} violations, the first: {}", found.len(), found[0]);
    let grants = events.iter().filter(|e| matches!(e.what, What::Granted { .. })).count();
    eprintln!("{grants} grants, all in order");
}

fn leader_killed() {
    run(async {
        let cluster = EtcdCluster::start().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut children = contenders(&cluster, dir.path(), 4);
        all_served(&mut children, 3);
        for _ in 0..2 {
            let leader = cluster.leader().await.unwrap();
            cluster.nodes()[leader].kill();
            all_served(&mut children, 5);
            cluster.nodes()[leader].again().await.unwrap();
            cluster.settled().await.unwrap();
            all_served(&mut children, 2);
        }
        nothing_broken(children, dir.path());
    });
}

fn rolling() {
    run(async {
        let cluster = EtcdCluster::start().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut children = contenders(&cluster, dir.path(), 8);
        all_served(&mut children, 2);
        for node in cluster.nodes() {
            node.stop();
            all_served(&mut children, 2);
            node.again().await.unwrap();
            cluster.settled().await.unwrap();
        }
        all_served(&mut children, 2);
        nothing_broken(children, dir.path());
    });
}

/// The member a client talks to is stopped in its tracks: a hold is kept, a waiter is woken, and
/// new locks are taken, by way of the others.
fn silent_member() {
    run(async {
        let cluster = EtcdCluster::start().await.unwrap();
        let (locks, other) = (begins_at_first(&cluster).await, begins_at_first(&cluster).await);
        let held = take(&locks, "a", ms(8000)).await;
        let lock = other.lock("a").ttl(ms(8000));
        let waiting = task(async move { lock.acquire().await });
        line_of(&locks, "a", 1).await;
        cluster.nodes()[0].pause();
        let leader = until_led(&cluster).await;
        assert_ne!(leader, 0);
        give_back(soon("a grant", locks.lock("b").ttl(ms(8000)).acquire()).await.unwrap()).await;
        Clock::system().sleep(ms(9000)).await; // longer than the lease: it must have been renewed
        held.check().unwrap();
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
        cluster.nodes()[0].resume();
    });
}

/// A client whose calls go to the first member: each begins at a member of its own choice.
async fn begins_at_first(cluster: &EtcdCluster) -> Locks {
    let url = format!("etcd://{}?timeout=3s", cluster.hosts());
    loop {
        let calls = async || etcd_calls(&cluster.nodes()[0], "Txn").await.unwrap_or(0.0);
        let before = calls().await;
        let locks = connect(&url).await.unwrap();
        if calls().await > before {
            return locks;
        }
    }
}

async fn until_led(cluster: &EtcdCluster) -> usize {
    cluster.leader().await.unwrap()
}

fn majority_gone() {
    run(async {
        let cluster = EtcdCluster::start().await.unwrap();
        let url = format!("etcd://{}?timeout=2s", cluster.hosts());
        let locks = connect(&url).await.unwrap();
        let ttl = ms(5000);
        let held = take(&locks, "a", ttl).await;
        cluster.nodes()[1].pause();
        cluster.nodes()[2].pause();
        let (took, lost) = timed(soon("the loss", held.lost())).await;
        assert!(took < ttl && lost.why == LossReason::Expired, "{took:?} {lost}");
        cluster.nodes()[1].resume();
        cluster.nodes()[2].resume();
        until("it works again", async || {
            locks.lock("b").ttl(LONG).try_acquire().await.is_ok_and(|g| g.is_ok())
        })
        .await;
        let again = soon("a grant", locks.lock("a").ttl(ttl).acquire()).await.unwrap();
        assert!(again.token() > held.token());
        give_back(again).await;
    });
}
