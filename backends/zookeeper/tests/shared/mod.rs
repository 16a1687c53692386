//! What the suites share.

#![allow(dead_code, unused_macros, unused_imports)] // not all of them use all of it

use distlock_core::url::StoreUrl;
use distlock_core::{Error, FullName, Locks};
use distlock_zookeeper::{ZooKeeper, node};
use zookeeper_client::{Client, Error as Zk};

pub(crate) async fn connect(url: Result<StoreUrl, Error>) -> Result<Locks, Error> {
    ZooKeeper::connect(&url?).await.map(Locks::from_store)
}

/// Deletes everything of a lock, as an operator would.
pub(crate) async fn wipe(url: &str, lock: &FullName) {
    let url = StoreUrl::parse(url).expect("a URL");
    let hosts: Vec<String> = url.hosts.iter().map(ToString::to_string).collect();
    let client = Client::connect(&hosts.join(",")).await.expect("a client");
    let parent = format!("{}/{}", url.path, node(lock));
    let children = client.list_children(&parent).await.expect("a line");
    assert!(!children.is_empty(), "something to delete in {parent}");
    for child in children {
        match client.delete(&format!("{parent}/{child}"), None).await {
            Ok(()) | Err(Zk::NoNode) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

/// The suite of servers that are started once. `$each` lists them.
macro_rules! laws {
    ($word:literal, $servers:ty, $start:expr, $each:expr) => {
        use std::process::ExitCode;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use distlock_core::engine;
        use distlock_core::url::StoreUrl;
        use distlock_testkit::servers::Server;
        use distlock_testkit::{Made, ProxiedRoute, StoreUnderTest, Suite, run};
        use distlock_zookeeper::capability;
        use tokio::sync::Mutex;

        static SERVERS: Mutex<Option<Arc<$servers>>> = Mutex::const_new(None);
        static SITE: AtomicU32 = AtomicU32::new(0);

        fn servers(site: &StoreUnderTest) -> &[Server] {
            let each: fn(&$servers) -> &[Server] = $each;
            each(site.kept::<Arc<$servers>>().expect("its servers"))
        }

        fn main() -> ExitCode {
            let suite = Suite::by_url(
                capability().clone(),
                |_| {
                    Box::pin(async {
                        let mut running = SERVERS.lock().await;
                        if running.is_none() {
                            // On the library's thread, which outlives the law that came first.
                            let start =
                                engine::unblock(|| engine::block_on(async { $start().await }));
                            *running = Some(Arc::new(start.await?));
                        }
                        let servers = running.clone().expect("started");
                        let site = SITE.fetch_add(1, Ordering::Relaxed);
                        let each: fn(&$servers) -> &[Server] = $each;
                        let hosts: Vec<String> =
                            each(&servers).iter().map(|s| s.addr().to_string()).collect();
                        let hosts = hosts.join(",");
                        let url = format!("zookeeper://{hosts}/{}-{site}?tick=200ms", $word);
                        Ok(Made::with(url, servers))
                    })
                },
                |url| {
                    let url = StoreUrl::parse(url);
                    Box::pin(shared::connect(url))
                },
            )
            .lose(|site, lock| Box::pin(shared::wipe(site.url(), lock)))
            // One after another, as one restarts an ensemble.
            .restart(|site| {
                Box::pin(async move {
                    for server in servers(site) {
                        server.restart().await.expect("it starts again");
                    }
                })
            })
            // A join without an answer is looked for before it can be undone.
            .road(|site| {
                Box::pin(async move {
                    let all: Vec<_> = servers(site).iter().map(Server::addr).collect();
                    ProxiedRoute::past(site.url(), &all).await.map(ProxiedRoute::undo_needs_answers)
                })
            });
            let code = run(suite);
            // By hand: what a static holds is not dropped, and the servers would outlive the test.
            drop(SERVERS.blocking_lock().take());
            code
        }
    };
}
pub(crate) use laws;
