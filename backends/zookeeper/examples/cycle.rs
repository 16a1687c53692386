//! What a lock costs beside the calls that any lock in ZooKeeper needs, and beside the lock of the
//! client library, all in one run on a private server: `cargo run --release -p distlock-zookeeper
//! --example cycle`.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Locks};
use distlock_testkit::servers::{Server, zookeeper};
use distlock_zookeeper::ZooKeeper;
use futures_util::future::join_all;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

const SOLO: usize = 1000;
const TASKS: usize = 16;
const EACH: usize = 60;

fn micros(mut all: Vec<Duration>) -> u128 {
    all.sort();
    all[all.len() / 2].as_micros()
}

async fn solo(mut cycle: impl AsyncFnMut()) -> u128 {
    let clock = Clock::system();
    let mut all = Vec::new();
    for i in 0..SOLO + SOLO / 10 {
        let began = clock.now();
        cycle().await;
        // The first tenth warms up the Java machine.
        if i >= SOLO / 10 {
            all.push(clock.now().since(began));
        }
    }
    micros(all)
}

async fn together(cycle: impl AsyncFn()) -> f64 {
    let clock = Clock::system();
    let began = clock.now();
    let task = async || {
        for _ in 0..EACH {
            cycle().await;
        }
    };
    join_all((0..TASKS).map(|_| task())).await;
    (TASKS * EACH) as f64 / clock.now().since(began).as_secs_f64()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = Server::start(zookeeper()).await.unwrap();
    let url = StoreUrl::parse(&format!("zookeeper://{}/locks", server.addr())).unwrap();
    let locks = Locks::from_store(ZooKeeper::connect(&url).await.unwrap());
    let raw = Client::connect(&server.addr().to_string()).await.unwrap();
    let acls = Acls::anyone_all();
    raw.create("/raw", b"", &CreateMode::Persistent.with_acls(acls)).await.unwrap();
    let made = CreateMode::Ephemeral.with_acls(acls);
    let data = [b'x'; 200];

    let ours = async || {
        let _ = locks.lock("solo").await.unwrap().release().await.unwrap();
    };
    let calls = async || {
        raw.create("/raw/solo", &data, &made).await.unwrap();
        raw.delete("/raw/solo", None).await.unwrap();
    };
    let theirs = async |name: &str| {
        let prefix = LockPrefix::new_curator(name, "lock-").unwrap();
        let directories = CreateMode::Container.with_acls(acls);
        let options = LockOptions::new(acls).with_ancestor_options(directories).unwrap();
        let held = raw.lock(prefix, &data, options).await.unwrap();
        let path = held.lock_path().to_owned();
        held.delete(&path, None).await.unwrap();
    };
    // In turns, so that a machine that is busy for a while is so for all.
    for _ in 0..3 {
        let (calls, ours) = (solo(calls).await, solo(ours).await);
        let theirs = solo(async || theirs("/raw/theirs").await).await;
        let ratio = ours as f64 / calls as f64;
        println!("solo p50 µs: raw {calls}, ours {ours} ({ratio:.2}), zookeeper-client {theirs}");
    }
    for _ in 0..3 {
        let ours =
            together(async || drop(locks.lock("crowd").await.unwrap().release().await)).await;
        let theirs = together(async || theirs("/raw/crowd").await).await;
        let ratio = ours / theirs;
        println!(
            "{TASKS} tasks, cycles/s: ours {ours:.0}, zookeeper-client {theirs:.0} ({ratio:.2})"
        );
    }
}
