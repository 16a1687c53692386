//! Three servers that die, come back and lose each other under load.

use std::future::Future;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{Clock, LossReason};
use distlock_testkit::history::{Rules, check, read};
use distlock_testkit::servers::Ensemble;

use crate::child;
use crate::kit::{
    LONG, Named, Site, crowd, crowd_of, give_back, ms, run, soon, take, task, until, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_rolling_restart_under_eight_processes", rolling_restart),
    ("the_leader_killed_under_eight_processes", leader_killed),
    ("a_follower_cut_off_loses_its_clients_locks_in_time", follower_cut_off),
    ("a_session_moves_to_another_server", session_moves),
    ("without_most_servers_nothing_is_granted_and_it_says_so", majority_gone),
];

/// Three Java machines are enough for two cores.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Eight processes contend while something happens; what they saw must have been one lock.
fn contended(what: impl AsyncFnOnce(&Ensemble)) {
    let _one = one_at_a_time();
    run(async {
        let ensemble = Ensemble::start().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("history")).unwrap();
        let url = Site::new().url(ensemble.hosts());
        let mut children: Vec<_> = (0..8).map(|n| child::start(&url, dir.path(), n)).collect();
        let grants = || grants(dir.path());
        until("all are at work", async || grants() > 20).await;
        what(&ensemble).await;
        let before = grants();
        until("they go on", async || grants() > before + 20).await;
        std::fs::write(dir.path().join("stop"), "").unwrap();
        for child in &mut children {
            let ended = async || child.try_wait().unwrap();
            within(Duration::from_secs(60), "a process ends", wait(ended)).await;
            assert!(child.try_wait().unwrap().unwrap().success());
        }
        let events = read(&dir.path().join("history")).unwrap();
        let wrong = check(&events, Rules { fifo: true });
        assert!(wrong.is_empty(), "{wrong:?}");
        println!("{} grants in order", grants());
    });
}

async fn wait<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        match ask().await {
            Some(value) => return value,
            None => Clock::system().sleep(ms(20)).await,
        }
    }
}

fn grants(dir: &Path) -> usize {
    let events = read(&dir.join("history")).unwrap_or_default();
    let granted = |e: &distlock_testkit::history::Event| {
        matches!(e.what, distlock_testkit::history::What::Granted { .. })
    };
    events.into_iter().filter(granted).count()
}

fn rolling_restart() {
    contended(async |ensemble| {
        for server in ensemble.servers() {
            server.stop();
            server.again().await.unwrap();
            ensemble.leader().await.unwrap();
        }
    });
}

fn leader_killed() {
    contended(async |ensemble| {
        for _ in 0..2 {
            let leader = ensemble.leader().await.unwrap();
            ensemble.servers()[leader].kill();
            ensemble.leader().await.unwrap();
            ensemble.servers()[leader].again().await.unwrap();
        }
    });
}

/// A follower that has lost the leader goes on answering for a while. Its client must not believe
/// in its locks for longer than the leader keeps its session.
fn follower_cut_off() {
    let _one = one_at_a_time();
    run(async {
        let ensemble = Ensemble::start().await.unwrap();
        let leader = ensemble.leader().await.unwrap();
        let follower = (leader + 1) % 3;
        let site = Site::new();
        let locks = site.client(ensemble.servers()[follower].addr()).await;
        let others = site.client(ensemble.servers()[leader].addr()).await;
        let held = take(&locks, "a", ms(6000)).await;
        let lock = others.lock("a").ttl(LONG);
        let next = task(async move { lock.acquire().await });
        crowd_of(&others, "a", 2).await;
        ensemble.cut_off(follower);
        let lost = async { soon("it is lost", held.lost()).await };
        let taken = async { soon("it passes on", next).await.unwrap().unwrap() };
        let (lost, next) = first_lost(lost, taken).await;
        assert!(matches!(lost.why, LossReason::Expired | LossReason::Disconnected), "{lost:?}");
        assert!(next.token() > held.token());
        ensemble.heal();
        // The same client, once its server is back.
        give_back(next).await;
        let again =
            async || locks.lock("a").ttl(ms(6000)).try_acquire().await.is_ok_and(|a| a.is_ok());
        until("the same client acquires again", again).await;
    });
}

/// Both, where the first must be done before the second is.
async fn first_lost<A, B>(lost: impl Future<Output = A>, taken: impl Future<Output = B>) -> (A, B) {
    let mut taken = std::pin::pin!(taken);
    let lost = tokio::select! {
        biased;
        lost = lost => lost,
        _ = &mut taken => panic!("two held it"),
    };
    (lost, taken.await)
}

fn session_moves() {
    let _one = one_at_a_time();
    run(async {
        let ensemble = Ensemble::start().await.unwrap();
        let site = Site::new();
        let locks = site.strict(ensemble.hosts()).await;
        let held = take(&locks, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let next = task(async move { lock.acquire().await });
        crowd_of(&locks, "a", 2).await;
        let token = held.token();
        // Wherever it is, it has to move at least once.
        for server in ensemble.servers() {
            server.stop();
            until("it answers elsewhere", async || crowd(&locks, "a").await == 2).await;
            held.check().unwrap();
            server.again().await.unwrap();
        }
        give_back(held).await;
        let next = soon("its turn", next).await.unwrap().unwrap();
        assert!(next.token() > token);
    });
}

fn majority_gone() {
    let _one = one_at_a_time();
    run(async {
        let ensemble = Ensemble::start().await.unwrap();
        let site = Site::new();
        let locks = site.client(ensemble.hosts()).await;
        let held = take(&locks, "a", ms(4000)).await;
        let [one, two, _] = ensemble.servers() else { panic!("three") };
        one.kill();
        two.kill();
        assert_eq!(soon("it is lost", held.lost()).await.why, LossReason::Expired);
        let (took, answer) = crate::kit::timed(locks.lock("b").ttl(ms(4000)).try_acquire()).await;
        let e = answer.map(drop).expect_err("most servers are gone");
        assert!(e.hint().is_some() && took < Duration::from_secs(20), "{took:?} {e:?}");
        let (one, two) = tokio::join!(one.again(), two.again());
        one.and(two).unwrap();
        let again =
            async || locks.lock("b").ttl(ms(4000)).try_acquire().await.is_ok_and(|a| a.is_ok());
        until("the same client acquires again", again).await;
    });
}
