//! The laws every store must pass, over TLS and with the quarantine on: the server is durable, so
//! that it costs nothing.
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_redis::{Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Certs, Redis, Server, Wire};
use distlock_testkit::{Made, ProxiedRoute, Suite};

/// Where a server's log is in memory. It is synced after every write, and a dozen servers that wait
/// for one disk are a law about the disk.
const MEMORY: &str = "/dev/shm";

fn main() -> ExitCode {
    if Path::new(MEMORY).is_dir() && std::env::temp_dir() != Path::new(MEMORY) {
        let this = std::env::current_exe().expect("this program's path");
        let again =
            Command::new(this).args(std::env::args_os().skip(1)).env("TMPDIR", MEMORY).exec();
        panic!("this program does not start again: {again}");
    }
    distlock_testkit::run(
        Suite::by_url(
            capability(
                Kind::Single,
                &RedisOptions { max_ttl: Duration::from_secs(3600), ..RedisOptions::default() },
            ),
            |_| {
                Box::pin(async {
                    let certs = Certs::new()?;
                    let server = Redis::new().durable().tls(&certs).start().await?;
                    let ca = certs.ca();
                    let url = format!("rediss://{}?max_ttl=1h&ca={}", server.addr(), ca.display());
                    Ok(Made::with(url, (server, certs)))
                })
            },
            |url| {
                let url = StoreUrl::parse(url);
                Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
            },
        )
        .leaves(
            |site| {
                Box::pin(async move {
                    let (server, _) = site.kept::<(Server, Certs)>().expect("its server");
                    let wire = Wire::to_socket(Redis::socket(server)).await;
                    wire.expect("a connection").leftovers().await.expect("its keys")
                })
            },
            &["dl:{", "}:z", "dl:epoch"],
        )
        .road(|site| {
            Box::pin(async move {
                let (server, _) = site.kept::<(Server, Certs)>().expect("its server");
                ProxiedRoute::past(site.url(), &[server.addr()]).await
            })
        }),
    )
}
