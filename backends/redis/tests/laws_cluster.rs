//! The laws every store must pass, over a cluster of three primaries.
//!
//! A cluster takes seconds to start and has only one database, so all laws share one cluster and
//! each has a namespace of its own.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks, Namespace, engine};
use distlock_redis::{Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Cluster, Redis, Wire, raw};
use distlock_testkit::{Made, ProxiedRoute, Suite, run};
use tokio::sync::Mutex;

static SERVERS: Mutex<Option<Arc<Cluster>>> = Mutex::const_new(None);
static SITE: AtomicU32 = AtomicU32::new(0);
static ROAD: AtomicU16 = AtomicU16::new(1);

fn main() -> ExitCode {
    let code = run(suite());
    // By hand: what a static holds is not dropped, and the servers would outlive the test.
    drop(SERVERS.blocking_lock().take());
    code
}

/// On a thread of its own, because waiting for servers to agree is not `Send`.
fn start() -> Result<Cluster, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(Cluster::with(0, |redis| {
        // Clients are told ports and no hosts, as by clusters behind an address translation: they
        // find the others where they found the first, and a law can stand between.
        redis.arg("cluster-preferred-endpoint-type", "unknown-endpoint")
    }))
}

fn suite() -> Suite {
    let options = RedisOptions {
        quarantine: false,
        max_ttl: Duration::from_secs(3600),
        ..RedisOptions::default()
    };
    Suite::by_url(
        capability(Kind::Cluster, &options),
        |_| {
            Box::pin(async {
                let mut running = SERVERS.lock().await;
                if running.is_none() {
                    *running = Some(Arc::new(engine::unblock(start).await?));
                }
                let servers = running.clone().expect("started");
                // With no more rights than the page asks for.
                let page = include_str!("../../../docs/stores/redis-cluster.md");
                for at in servers.addrs() {
                    Redis::account(at, page).await?;
                }
                let space = format!("site-{}", SITE.fetch_add(1, Ordering::Relaxed));
                let at: Vec<String> = servers.addrs().iter().map(ToString::to_string).collect();
                let at = at.join(",");
                let url = format!(
                    "redis+cluster://app:secret@{at}?quarantine=off&max_ttl=1h&namespace={space}"
                );
                Ok(Made::with(url, servers).inside(Namespace::new(space)?))
            })
        },
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move {
                let mut url = url?;
                let space = url.take("namespace").unwrap_or_default();
                Locks::options().namespace(space).open(open(url).await?)
            })
        },
    )
    .leaves(
        |site| {
            Box::pin(async move {
                let cluster: &Arc<Cluster> = site.kept().expect("what was made");
                let ours = format!("dl:{{{}:", site.full("any").space);
                let mut all = Vec::new();
                for node in cluster.addrs() {
                    let mut wire = Wire::to(node).await.expect("a connection");
                    all.extend(wire.leftovers().await.expect("its keys"));
                }
                all.retain(|(key, _)| key.starts_with(&ours));
                all
            })
        },
        &["dl:{", "}:z"],
    )
    .road(|site| {
        Box::pin(async move {
            let cluster: &Arc<Cluster> = site.kept().expect("what was made");
            // Another host for each, because the ports are the same.
            let [high, low] = ROAD.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            let host = IpAddr::from([127, 1, high, low]);
            ProxiedRoute::at_host(host, site.url(), &cluster.addrs()).await
        })
    })
    .lose(|site, lock| {
        Box::pin(async move {
            let cluster: &Arc<Cluster> = site.kept().expect("what was made");
            let key = format!("dl:{{{}:{}}}", lock.space, lock.name);
            let slot = cluster.slot(&key).await.expect("a slot");
            let node = cluster.serving(slot).await.expect("a node");
            let gone = raw(cluster.nodes()[node].addr(), &["DEL", &key]).await;
            assert_eq!(gone.expect("an answer").int(), Some(1));
        })
    })
}
