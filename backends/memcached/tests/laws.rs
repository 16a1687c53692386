//! The laws every store must pass, over memcached.
use distlock_core::url::StoreUrl;
use distlock_core::{Error, Locks};
use distlock_memcached::{Memcached, capability, lock_key};
use distlock_testkit::servers::{Server, memcached};
use distlock_testkit::{Made, ProxiedRoute, Suite, suite};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

suite!(
    Suite::by_url(
        capability().clone(),
        |_| Box::pin(async {
            let server = Server::start(memcached()).await?;
            Ok::<_, Error>(Made::with(format!("memcached://{}", server.addr()), server))
        }),
        |url| {
            let url = StoreUrl::parse(url);
            Box::pin(async move { Memcached::connect(&url?).await.map(Locks::from_store) })
        }
    )
    .lose(|site, lock| Box::pin(async move {
        let mut stream = TcpStream::connect(site.server().addr()).await.expect("the server");
        let line = format!("md {}\r\n", lock_key(lock));
        stream.write_all(line.as_bytes()).await.expect("a command");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HD\r\n", "the item goes");
    }))
    .leaves(
        |site| Box::pin(async move {
            let mut stream = TcpStream::connect(site.server().addr()).await.expect("the server");
            stream.write_all(b"lru_crawler metadump hash\r\n").await.expect("a command");
            let mut dump = Vec::new();
            while !dump.ends_with(b"END\r\n") {
                assert!(stream.read_buf(&mut dump).await.expect("an answer") > 0, "closed");
            }
            let items = String::from_utf8(dump).expect("text");
            let key = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
            items.lines().filter(|l| *l != "END").map(|l| (key(l), !l.contains("exp=-1"))).collect()
        }),
        &["%3Al%3A", "%3Af%3A"]
    )
    .road(|site| Box::pin(async move {
        // It is read, and then deleted by what was read.
        ProxiedRoute::past_its_server(site).await.map(ProxiedRoute::undo_needs_answers)
    }))
    .restart(|site| Box::pin(async move {
        site.server().restart().await.expect("it starts again");
    }))
);
