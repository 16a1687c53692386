//! The laws every store must pass, as a login that may do no more with the path than the store's page
//! says: make nodes, and look. The path is somebody else's.

mod shared;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::url::StoreUrl;
use distlock_core::{Error, Kind, engine};
use distlock_testkit::servers::{Server, zookeeper};
use distlock_testkit::{Made, Suite, run};
use distlock_zookeeper::capability;
use tokio::sync::Mutex;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

static SERVER: Mutex<Option<Arc<Server>>> = Mutex::const_new(None);
static SITE: AtomicU32 = AtomicU32::new(0);

/// A path for this login, which may not remove or write it, nor change who may.
async fn path(server: &Server) -> Result<String, Error> {
    let trouble = |e| Error::new(Kind::Store, "no path for the user").because(e);
    let login = Client::connector().with_auth("digest", b"app:hunter2");
    let client = login.connect(&server.addr().to_string()).await.map_err(trouble)?;
    let rights = [Acl::new(Permission::CREATE | Permission::READ, AuthId::authed())];
    let made = CreateMode::Persistent.with_acls(Acls::new(&rights));
    let path = format!("/user-{}", SITE.fetch_add(1, Ordering::Relaxed));
    let _ = client.create(&path, &[], &made).await.map_err(trouble)?;
    Ok(path)
}

fn main() -> ExitCode {
    let suite = Suite::in_process(
        capability().clone(),
        |_| {
            Box::pin(async {
                let mut running = SERVER.lock().await;
                if running.is_none() {
                    // On the library's thread, which outlives the law that came first.
                    let start = engine::unblock(|| engine::block_on(Server::start(zookeeper())));
                    *running = Some(Arc::new(start.await?));
                }
                let server = running.clone().expect("started");
                let (addr, path) = (server.addr(), path(&server).await?);
                let options = "tick=200ms&acl=creator";
                let url = format!("zookeeper://app:hunter2@{addr}{path}?{options}");
                Ok(Made::with(url, server))
            })
        },
        |url| Box::pin(shared::connect(StoreUrl::parse(url))),
    );
    let code = run(suite);
    // By hand: what a static holds is not dropped, and the server would outlive the test.
    drop(SERVER.blocking_lock().take());
    code
}
