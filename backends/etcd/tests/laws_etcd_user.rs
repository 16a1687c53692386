//! The laws every store must pass, as a user of etcd who may do no more than the store's page says.
//!
//! All laws share one server; each has a namespace of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks, Namespace, Store, engine};
use distlock_etcd::Etcd;
use distlock_testkit::servers::{Server, etcd, etcdctl};
use distlock_testkit::{Made, Suite, run};
use tokio::sync::Mutex;

mod machine;

static SERVER: Mutex<Option<Arc<Server>>> = Mutex::const_new(None);
static SPACE: AtomicU32 = AtomicU32::new(0);

fn main() -> ExitCode {
    machine::in_memory();
    let code = run(suite());
    // By hand: what a static holds is not dropped, and the server would outlive the test.
    drop(SERVER.blocking_lock().take());
    code
}

/// A server that lets in root and one who has the role of the page.
async fn start() -> Result<Server, Error> {
    let server = Server::start(etcd()?).await?;
    // Some versions have it from the start.
    let _ = etcdctl(&server, &["role", "add", "root"]).await;
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "/distlock/"],
        &["user", "add", "app:hunter2"],
        &["user", "grant-role", "app", "locks"],
        &["auth", "enable"],
    ] {
        let _ = etcdctl(&server, args).await?;
    }
    Ok(server)
}

fn suite() -> Suite {
    // In one process: what others do differs by nothing but who they are.
    Suite::in_process(
        machine::capability_here(),
        |_| {
            Box::pin(async {
                let mut running = SERVER.lock().await;
                if running.is_none() {
                    let start = engine::unblock(|| engine::block_on(start()));
                    *running = Some(Arc::new(start.await?));
                }
                let server = running.clone().expect("started");
                let space = format!("law{}", SPACE.fetch_add(1, Ordering::Relaxed));
                let url = format!("etcd://app:hunter2@{}?namespace={space}", server.addr());
                Ok(Made::with(url, server).inside(Namespace::new(space)?))
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
}
