//! The laws every store must pass, over TLS and with the quarantine on: the server is durable, so
//! that it costs nothing.
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_redis::{Kind, RedisOptions, capability, open};
use distlock_testkit::servers::{Certs, Redis};
use distlock_testkit::{Made, Suite, suite};

suite!(Suite::by_url(
    capability(Kind::Single, &RedisOptions::new().max_ttl(Duration::from_secs(3600))),
    |_| Box::pin(async {
        let certs = Certs::new()?;
        let server = Redis::new().durable().tls(&certs).start().await?;
        let url = format!("rediss://{}?max_ttl=1h&ca={}", server.addr(), certs.ca().display());
        Ok(Made::with(url, (server, certs)))
    }),
    |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    }
));
