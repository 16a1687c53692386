//! Locks of `distributed-lock-redis`, for the benchmark; README.md beside this folder has the protocol.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisDistributedLock, RedisLockProvider};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MAX_CYCLES: u64 = 5_000_000;
/// Its `acquire` does not wait for a lock that is held, so its caller asks again.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Task {
    grants: u64,
    wait: BTreeMap<u32, u64>,
    cycle: BTreeMap<u32, u64>,
}

fn add(histogram: &mut BTreeMap<u32, u64>, time: Duration) {
    let nanos = time.as_nanos().max(1) as f64;
    *histogram.entry((16.0 * nanos.log2()) as u32).or_default() += 1;
}

async fn cycles(lock: Arc<RedisDistributedLock>, end: Instant) -> Result<Task> {
    let mut task = Task::default();
    let mut now = Instant::now();
    while now < end && task.grants < MAX_CYCLES {
        let start = now;
        let handle = loop {
            match lock.try_acquire().await? {
                Some(handle) => break handle,
                // Nobody else holds it for longer than that.
                None if start.elapsed() > Duration::from_secs(60) => return Err("starved".into()),
                None => tokio::time::sleep(RETRY).await,
            }
        };
        add(&mut task.wait, start.elapsed());
        handle.release().await?;
        now = Instant::now();
        add(&mut task.cycle, now - start);
        task.grants += 1;
    }
    Ok(task)
}

async fn run(locks: &[Arc<RedisDistributedLock>], length: Duration) -> Result<Value> {
    let start = Instant::now();
    let spawned = locks.iter().map(|lock| tokio::spawn(cycles(lock.clone(), start + length)));
    let mut all = Task::default();
    let mut grants = Vec::new();
    for task in spawned.collect::<Vec<_>>() {
        let task = task.await??;
        grants.push(task.grants);
        for (into, from) in [(&mut all.wait, task.wait), (&mut all.cycle, task.cycle)] {
            for (bucket, count) in from {
                *into.entry(bucket).or_default() += count;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"seconds": seconds, "grants": grants, "wait": all.wait, "cycle": all.cycle}))
}

/// The crate's version in the lock file.
fn version(package: &str) -> String {
    let mut lines = include_str!("../Cargo.lock").lines();
    let name = format!("name = \"{package}\"");
    let version = lines.find(|line| *line == name).and_then(|_| lines.next());
    let version = version.and_then(|line| line.split('"').nth(1)).unwrap_or_default();
    format!("{package} {version}")
}

async fn play(args: Vec<String>) -> Result<()> {
    let [_, peer, server, tasks, names, warm, length, prefix] = &args[..] else {
        return Err("usage: PEER SERVER TASKS NAMES WARM RUN PREFIX".into());
    };
    let (tasks, names): (usize, usize) = (tasks.parse()?, names.parse()?);
    let (warm, length) =
        (Duration::from_millis(warm.parse()?), Duration::from_millis(length.parse()?));
    std::thread::spawn(move || {
        std::thread::sleep(warm + length + Duration::from_secs(60));
        std::process::exit(3);
    });
    let provider = RedisLockProvider::new(format!("redis://{server}")).await?;
    let locks: Vec<_> = (0..tasks)
        .map(|task| Arc::new(provider.create_lock(&format!("{prefix}-{}", task % names))))
        .collect();
    run(&locks, warm).await?;
    println!("{}", json!({"ready": version(peer)}));
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Ok(());
    }
    std::thread::spawn(|| {
        let mut rest = String::new();
        while std::io::stdin().read_line(&mut rest).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
    println!("{}", run(&locks, length).await?);
    // The thread above ends the program with its input.
    std::future::pending().await
}

fn main() -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(play(std::env::args().collect()))
}
