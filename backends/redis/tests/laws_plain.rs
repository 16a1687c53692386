//! The laws every store must pass, over the plain recipe on one server.
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_redis::{Algorithm, Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Redis, Server, Wire, redis};
use distlock_testkit::{Made, ProxiedRoute, Suite, suite};

suite!(
    Suite::by_url(
        capability(
            Kind::Single,
            &RedisOptions {
                algorithm: Algorithm::Plain,
                quarantine: false,
                max_ttl: Duration::from_secs(3600),
                ..RedisOptions::default()
            }
        ),
        |_| Box::pin(async {
            let server = Server::start(redis()).await?;
            // With no more rights than the page asks for.
            let page = include_str!("../../../docs/stores/redis-plain.md");
            Redis::account(server.addr(), page).await?;
            let query = "algorithm=plain&quarantine=off&max_ttl=1h";
            let url = format!("redis://app:secret@{}?{query}", server.addr());
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
        &["c0", "}:c", "}:f", "}:i", "dl:epoch"]
    )
    .road(|site| Box::pin(ProxiedRoute::past_its_server(site)))
);
