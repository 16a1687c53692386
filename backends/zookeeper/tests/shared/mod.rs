//! What the two suites share.

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

/// The suite of servers that are started once.
macro_rules! laws {
    ($word:literal, $servers:ty, $start:expr, $hosts:expr) => {
        use std::process::ExitCode;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use distlock_core::engine;
        use distlock_core::url::StoreUrl;
        use distlock_testkit::{Made, Suite, run};
        use distlock_zookeeper::capability;
        use tokio::sync::Mutex;

        static SERVERS: Mutex<Option<Arc<$servers>>> = Mutex::const_new(None);
        static SITE: AtomicU32 = AtomicU32::new(0);

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
                        let hosts = $hosts(&servers);
                        let url = format!("zookeeper://{hosts}/{}-{site}?tick=200ms", $word);
                        Ok(Made::with(url, servers))
                    })
                },
                |url| {
                    let url = StoreUrl::parse(url);
                    Box::pin(shared::connect(url))
                },
            )
            .lose(|site, lock| Box::pin(shared::wipe(site.url(), lock)));
            let code = run(suite);
            // By hand: what a static holds is not dropped, and the servers would outlive the test.
            drop(SERVERS.blocking_lock().take());
            code
        }
    };
}
pub(crate) use laws;
