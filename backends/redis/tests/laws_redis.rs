//! The laws every store must pass, over one redis server.
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_redis::{Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Redis, Server, Wire, redis};
use distlock_testkit::{Made, ProxiedRoute, Suite, suite};

suite!(
    Suite::by_url(
        capability(
            Kind::Single,
            &RedisOptions {
                quarantine: false,
                max_ttl: Duration::from_secs(3600),
                ..RedisOptions::default()
            }
        ),
        |_| Box::pin(async {
            let server = Server::start(redis()).await?;
            // With no more rights than the page asks for.
            let page = include_str!("../../../docs/stores/redis.md");
            Redis::account(server.addr(), page).await?;
            let url = format!("redis://app:secret@{}?quarantine=off&max_ttl=1h", server.addr());
            Ok(Made::with(url, server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
        }
    )
    .leaves(
        |site| Box::pin(async move {
            let mut wire = Wire::to(site.server().addr()).await.expect("a connection");
            wire.leftovers().await.expect("its keys")
        }),
        &["dl:{", "}:z", "dl:epoch"]
    )
    .road(|site| Box::pin(ProxiedRoute::past_its_server(site)))
);
