//! The laws every store must pass, over one etcd.
use std::process::ExitCode;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_etcd::Etcd;
use distlock_testkit::servers::{Server, etcd, etcdctl};
use distlock_testkit::{Made, ProxiedRoute, Suite};

mod machine;

fn main() -> ExitCode {
    machine::in_memory();
    distlock_testkit::run(
        Suite::by_url(
            machine::capability_here(),
            |_| {
                Box::pin(async {
                    let server = Server::start(etcd()?).await?;
                    Ok(Made::with(format!("etcd://{}", server.addr()), server))
                })
            },
            |url| {
                let url = StoreUrl::parse(url);
                Box::pin(async move { Ok(Locks::from_store(Etcd::connect(url?).await?)) })
            },
        )
        .lose(|site, lock| {
            Box::pin(async move {
                let prefix = format!("/distlock/{}/", lock.name);
                let gone = etcdctl(site.server(), &["del", "--prefix", &prefix]).await;
                assert_eq!(gone.expect("an answer").trim(), "1");
            })
        })
        .restart(|site| {
            Box::pin(async move { site.server().restart().await.expect("it starts again") })
        })
        .road(|site| Box::pin(ProxiedRoute::past_its_server(site))),
    )
}
