//! The laws every store must pass, over three etcds that are one cluster.
//!
//! Three servers take seconds to start, so all laws share them; each has a namespace of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks, Namespace, Store, engine};
use distlock_etcd::Etcd;
use distlock_testkit::servers::{EtcdCluster, Server, etcdctl};
use distlock_testkit::{Made, ProxiedRoute, Suite, run};
use tokio::sync::Mutex;

mod machine;

static SERVERS: Mutex<Option<Arc<EtcdCluster>>> = Mutex::const_new(None);
static SPACE: AtomicU32 = AtomicU32::new(0);

fn main() -> ExitCode {
    machine::in_memory();
    let code = run(suite());
    // By hand: what a static holds is not dropped, and the servers would outlive the test.
    drop(SERVERS.blocking_lock().take());
    code
}

/// On a thread of its own, because waiting for servers to agree is not `Send`.
fn start() -> Result<EtcdCluster, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(EtcdCluster::start())
}

fn suite() -> Suite {
    Suite::by_url(
        machine::capability_here(),
        |_| {
            Box::pin(async {
                let mut running = SERVERS.lock().await;
                if running.is_none() {
                    *running = Some(Arc::new(engine::unblock(start).await?));
                }
                let servers = running.clone().expect("started");
                let space = format!("law{}", SPACE.fetch_add(1, Ordering::Relaxed));
                let url = format!("etcd://{}?namespace={space}", servers.hosts());
                Ok(Made::with(url, servers).inside(Namespace::new(space)?))
            })
        },
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move {
                let mut url = url?;
                let space = url.take("namespace").unwrap_or_default();
                let backend = Etcd::connect(url).await?.into_backend();
                Locks::options().namespace(space).open(backend)
            })
        },
    )
    .lose(|site, lock| {
        Box::pin(async move {
            let servers: &Arc<EtcdCluster> = site.kept().expect("what was made");
            let prefix = format!("/distlock/{}:{}/", lock.space, lock.name);
            let gone = etcdctl(&servers.nodes()[0], &["del", "--prefix", &prefix]).await;
            assert_eq!(gone.expect("an answer").trim(), "1");
        })
    })
    .road(|site| {
        Box::pin(async move {
            let servers: &Arc<EtcdCluster> = site.kept().expect("what was made");
            let all: Vec<_> = servers.nodes().iter().map(Server::addr).collect();
            ProxiedRoute::past(site.url(), &all).await
        })
    })
}
