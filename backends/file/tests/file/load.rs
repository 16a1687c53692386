//! Many at once: exclusion, and the cost of waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::session::SessionStore;
use distlock_file::FileStore;
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("eight_processes_count_in_a_plain_file", eight),
        trial("a_thousand_waiting_tasks_cost_next_to_nothing", thousand),
    ]
}

/// Adds one to the number in a file, so many times, each under the lock.
pub async fn count(store: &FileStore, name: &str, times: &str, file: &str) -> String {
    let mut last = 0;
    for _ in 0..times.parse().unwrap() {
        let (conn, token) = lock(store, name).await;
        assert!(token > last);
        last = token;
        let n: u64 = std::fs::read_to_string(file).unwrap().parse().unwrap();
        std::fs::write(file, (n + 1).to_string()).unwrap();
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
    }
    "done".to_owned()
}

fn eight() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let locks = dir.path().join("locks");
    let mut agents: Vec<_> = (0..8).map(|_| Agent::new(&locks)).collect();
    agents.iter_mut().for_each(|a| assert_eq!(a.ask("open"), "opened"));
    let start = Instant::now();
    agents.iter_mut().for_each(|a| a.say(&format!("count x 100 {}", file.display())));
    agents.iter_mut().for_each(|a| assert_eq!(a.hear(), "done"));
    eprintln!("8 processes x 100: {:?}", start.elapsed());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "800");
}

/// Lets n tasks wait; answers what they cost: bytes each, and nanoseconds of processor in 3 s.
pub async fn crowd(store: &mut FileStore, name: &str, n: usize) -> String {
    let path = store.info().site.strip_prefix("file:").unwrap().to_owned();
    let store = Arc::new(std::mem::replace(store, open(path.as_ref())));
    let local = tokio::task::LocalSet::new();
    // Warm: the first brings the thread and its buffers.
    let spawn = |n: usize| {
        for _ in 0..n {
            let (store, name) = (store.clone(), name.to_owned());
            local.spawn_local(async move { lock(&store, &name).await });
        }
    };
    let dir = std::path::Path::new(&path);
    let settled = async |n: usize| {
        while in_line(dir, name) < n {
            tokio::task::yield_now().await;
        }
    };
    spawn(1);
    local.run_until(settled(1)).await;
    let before = resident();
    spawn(n - 1);
    local.run_until(settled(n)).await;
    // One more call has gone round behind the last of them.
    let each = resident().saturating_sub(before) / (n - 1);
    local.run_until(async { drop(attempt(&store, name).await) }).await;
    let start = busy();
    local.run_until(tokio::time::sleep(Duration::from_secs(3))).await;
    format!("{each} {}", busy() - start)
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn busy() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).ok();
    let times = tasks.filter_map(|t| of(t.unwrap().path()));
    times.map(|t| t.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn thousand() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (_conn, _) = lock(&store, "x").await;
        let mut agent = Agent::new(dir.path());
        let cost = agent.ask("crowd x 1000");
        let (bytes, nanos) = cost.split_once(' ').unwrap();
        let (bytes, nanos): (u64, u64) = (bytes.parse().unwrap(), nanos.parse().unwrap());
        let percent = nanos as f64 / 3e9 * 100.0;
        eprintln!("1000 waiting: {bytes} bytes each, {percent:.3} % of a core");
        assert!(bytes < 4096 && percent < 1.0, "{bytes} bytes each, {percent} %");
        agent.kill();
        assert!(attempt(&store, "y").await.is_ok());
    });
}

/// Takes and gives a lock so many times; answers when each hold began and ended.
pub async fn ping(store: &FileStore, name: &str, times: &str) -> String {
    let mut spans = Vec::new();
    for _ in 0..times.parse().unwrap() {
        let (conn, _) = lock(store, name).await;
        let begun = store.info().clock.now().as_nanos();
        // Long enough that the other one waits inside flock again.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let ended = store.info().clock.now().as_nanos();
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        spans.push(format!("{begun} {ended}"));
    }
    spans.join(" ")
}
