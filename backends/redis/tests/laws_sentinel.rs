//! The laws every store must pass, over a primary with replicas that sentinels watch.
//!
//! Six servers take seconds to start, so all laws share one set; each has a database of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks, engine};
use distlock_redis::{Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Redis, Reply, Sentinels, Wire};
use distlock_testkit::{Made, ProxiedRoute, StoreUnderTest, Suite, run};
use tokio::sync::Mutex;

static SERVERS: Mutex<Option<Arc<Sentinels>>> = Mutex::const_new(None);
static DATABASE: AtomicU32 = AtomicU32::new(0);
static ROAD: AtomicU32 = AtomicU32::new(0);

/// A law's share of the servers.
struct Share {
    servers: Arc<Sentinels>,
    db: u32,
}

fn main() -> ExitCode {
    let code = run(suite());
    // By hand: what a static holds is not dropped, and the servers would outlive the test.
    drop(SERVERS.blocking_lock().take());
    code
}

/// On a thread of its own, because waiting for servers to agree is not `Send`.
fn start() -> Result<Sentinels, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let many = |redis: Redis| redis.arg("databases", "1000");
    runtime.expect("a runtime").block_on(Sentinels::with("nopass", many))
}

/// A connection to the primary, in the database of a site.
async fn share(site: &StoreUnderTest) -> Wire {
    let Share { servers, db } = site.kept().expect("what was made");
    let primary = servers.primary().await.expect("a primary").addr();
    let mut wire = Wire::to(primary).await.expect("a connection");
    wire.call(&["SELECT", &db.to_string()]).await.and_then(Reply::ok).expect("OK");
    wire
}

fn suite() -> Suite {
    let options = RedisOptions {
        quarantine: false,
        max_ttl: Duration::from_secs(3600),
        ..RedisOptions::default()
    };
    Suite::by_url(
        capability(Kind::Sentinel, &options),
        |_| {
            Box::pin(async {
                let mut running = SERVERS.lock().await;
                if running.is_none() {
                    *running = Some(Arc::new(engine::unblock(start).await?));
                }
                let servers = running.clone().expect("started");
                // With no more rights than the page asks for, and a database of its own.
                let page = include_str!("../../../docs/stores/redis.md");
                let page = page.replace("+eval ", "+eval +select ");
                for node in servers.nodes() {
                    Redis::account(node.addr(), &page).await?;
                }
                let db = DATABASE.fetch_add(1, Ordering::Relaxed);
                let at: Vec<String> = servers.addrs().iter().map(ToString::to_string).collect();
                let (at, name) = (at.join(","), Sentinels::SERVICE);
                let url = format!(
                    "redis+sentinel://app:secret@{at}/{name}/{db}?quarantine=off&max_ttl=1h"
                );
                Ok(Made::with(url, Share { servers, db }))
            })
        },
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        },
    )
    .leaves(
        |site| Box::pin(async move { share(site).await.leftovers().await.expect("its keys") }),
        &["dl:{", "}:z", "dl:epoch"],
    )
    .road(|site| {
        Box::pin(async move {
            let Share { servers, .. } = site.kept().expect("what was made");
            let primary = servers.primary().await?.addr();
            // The sentinels watch the same primary under another name, at the proxy's address.
            let name = format!("road-{}", ROAD.fetch_add(1, Ordering::Relaxed));
            let road = ProxiedRoute::past(&primary.to_string(), &[primary]).await?;
            servers.watch(&name, road.url().parse().expect("an address")).await?;
            let url = site.url().replace(Sentinels::SERVICE, &name);
            Ok(road.named(url))
        })
    })
    .lose(|site, lock| {
        Box::pin(async move {
            let gone = share(site)
                .await
                .call(&["DEL", &format!("dl:{{{}:{}}}", lock.space, lock.name)])
                .await;
            assert_eq!(gone.expect("an answer").int(), Some(1));
        })
    })
}
