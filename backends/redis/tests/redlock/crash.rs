//! Clients that are killed.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use distlock_core::Clock;

use super::{Nodes, ask, connect, task, until};

/// Tells this program to be the client that is killed.
pub(crate) const CHILD: &str = "DISTLOCK_REDLOCK_CHILD";
const TTL: Duration = Duration::from_secs(1);

/// Takes, waits, gives back and gives up, until it is killed.
pub(crate) fn hammer(url: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let locks = connect(url).await.expect("a client");
        for i in 0..8u64 {
            let locks = locks.clone();
            task(async move {
                loop {
                    let lock = locks.lock(format!("x{}", i % 2)).ttl(TTL);
                    let lock = lock.min_hold(Duration::from_millis(i % 3));
                    let patience = Duration::from_millis(1 + i * 3);
                    if let Ok(Ok(guard)) = lock.try_acquire_for(patience).await {
                        let _ = guard.release().await;
                    }
                }
            });
        }
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

/// Killed in the middle of its work, again and again: every key that is left ends by itself, and
/// the locks are free within a TTL.
pub(crate) async fn a_kill_leaves_no_key_without_an_end() {
    for algorithm in ["script", "plain"] {
        let nodes = Nodes::start(3).await.unwrap();
        let options = format!("quarantine=off&max_ttl=1h&node_timeout=1s&algorithm={algorithm}");
        let url = nodes.url(&options);
        for round in 0..6u64 {
            let mut child = Command::new(std::env::current_exe().expect("this program"))
                .env(CHILD, &url)
                .stdin(Stdio::null())
                .spawn()
                .expect("a child");
            let stats = async || ask(nodes.0[0].addr(), &["INFO", "stats"]).await.to_string();
            let commands = |info: String| {
                let line = info.lines().find_map(|l| l.strip_prefix("total_commands_processed:"));
                line.and_then(|n| n.trim().parse::<u64>().ok()).expect("a number")
            };
            let before = commands(stats().await);
            until("it works", async || commands(stats().await) > before + 500 + 37 * round).await;
            child.kill().expect("killed");
            child.wait().expect("reaped");
            for server in &nodes.0 {
                for key in ask(server.addr(), &["KEYS", "*"]).await.list() {
                    let left = ask(server.addr(), &["PTTL", &key.to_string()]).await.int();
                    // It may have ended meanwhile; -1 is a key that never ends.
                    assert!(left.is_some_and(|l| l != -1), "{key} at {}", server.addr());
                }
            }
        }
        let locks = nodes.client(&options).await;
        for name in ["x0", "x1"] {
            let before = Clock::system().now();
            let got = locks.lock(name).ttl(TTL).try_acquire_for(Duration::from_secs(10)).await;
            drop(got.unwrap().unwrap_or_else(|busy| panic!("{algorithm}: {busy}")));
            let took = Clock::system().now().since(before);
            assert!(took < TTL * 3, "{algorithm}: free after {took:?}");
        }
    }
}
