//! Servers, URLs and settings that will not do.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Kind, Outcome, Owner};
use distlock_memcached::Memcached;
use distlock_testkit::servers::{Port, full_memcached, memcached, silent_memcached};
use distlock_testkit::wait::timed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::kit::{LONG, client, connect, start, take};

#[tokio::test]
async fn wrong_urls_say_what_is_right() {
    for wrong in [
        "memcached:",
        "memcached:/tmp/x",
        "memcached://",
        "memcached://h1,h2",
        "memcached://u:hunter2@h",
        "memcached://h/path",
    ] {
        let url = StoreUrl::parse(wrong).unwrap();
        let e = Memcached::connect(&url).await.err().expect(wrong);
        assert_eq!(e.kind(), Kind::Usage, "{wrong}: {e:?}");
        assert!(e.hint().is_some_and(|h| h.contains("memcached://HOST")), "{e:?}");
        assert!(!format!("{e:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn nobody_there_is_said_at_once() {
    let port = Port::claim().unwrap();
    let (took, answer) = timed(connect(port.addr())).await;
    let e = answer.expect_err("nobody is there");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(e.kind() == Kind::Unreachable && e.is_transient(), "{e:?}");
    assert!(
        e.hint().is_some_and(|h| h.contains("-l")) && e.to_string().contains("refused"),
        "{e:?}"
    );
}

/// A server that answers the first words with one text and everything after with another; nothing
/// at all when there is no text.
async fn impostor(first: &'static str, later: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                let mut answer = first;
                while let Ok(1..) = stream.read(&mut chunk).await {
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                    answer = later;
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn something_else_on_that_port_is_found_out() {
    for (answer, kind) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", Kind::Store),
        ("-ERR unknown command\r\n", Kind::Store),
        ("\u{1}\u{2}\u{3}", Kind::Store),
        ("VERSION 1.4.25\r\nEND\r\n", Kind::Unsupported),
        ("CLIENT_ERROR unauthenticated\r\n", Kind::Credentials),
        ("", Kind::Unreachable),
    ] {
        let e = connect(impostor(answer, "").await).await.expect_err("not a memcached");
        assert_eq!(e.kind(), kind, "{answer:?}: {e:?}");
        assert!(e.hint().is_some() && e.outcome() == Outcome::NotApplied, "{e:?}");
    }
}

#[tokio::test]
async fn garbage_in_the_middle_is_an_unknown_outcome() {
    let hello = "VERSION 1.6.18\r\nSTAT cas_enabled yes\r\nEND\r\n";
    let garbage =
        ["what?\r\n", "HD c1 O999\r\n", "VA 2 c1 t1 O1\r\nhixx", "HD c1 O1\r\nHD c1 O1\r\n"];
    for later in garbage {
        let locks = connect(impostor(hello, later).await).await.expect("it looked like one");
        let e = locks.lock("x").try_acquire().await.expect_err(later);
        assert!(e.kind() == Kind::Store && e.outcome() == Outcome::Unknown, "{later:?}: {e:?}");
        assert!(e.hint().is_some_and(|h| h.contains("1.6")), "{e:?}");
    }
}

#[tokio::test]
async fn a_server_without_evictions_is_refused() {
    let server = start(full_memcached()).await;
    let e = connect(server.addr()).await.expect_err("refused");
    assert_eq!(e.kind(), Kind::Refused, "{e:?}");
    assert!(e.hint().is_some_and(|h| h.contains("-M")), "{e:?}");
}

#[tokio::test]
async fn a_server_that_lists_nothing_still_locks() {
    let server = start(silent_memcached()).await;
    let locks = client(server.addr()).await;
    let guard = take(&locks, "x").await;
    assert!(locks.show("x").await.unwrap().is_some());
    let e = locks.list("").await.expect_err("it lists nothing");
    assert!(e.kind() == Kind::Unsupported && e.hint().is_some_and(|h| h.contains("-X")), "{e:?}");
    let _ = guard.release().await.unwrap();
}

/// The longest of everything is far below what a server takes by default. One that takes less (and
/// starts at all: Debian's crashes with an item size below its default) says so, and so do we.
#[tokio::test]
async fn the_largest_value_fits_and_one_too_large_is_a_clear_error() {
    let server = start(memcached()).await;
    let locks = client(server.addr()).await;
    let (name, owner) = ("\u{1}".repeat(255), Owner::named("\"".repeat(64)).unwrap());
    let lock = locks.lock(&name).ttl(LONG).label("\"".repeat(200)).owner(&owner);
    let guard = lock.try_acquire().await.unwrap().expect("it is free");
    assert_eq!(locks.show(&name).await.unwrap().unwrap().lock.name.as_str(), name);
    let _ = guard.release().await.unwrap();

    let hello = "VERSION 1.6.18\r\nSTAT cas_enabled yes\r\nEND\r\n";
    for (line, hint) in
        [("object too large for cache", "-I"), ("out of memory storing object", "-m")]
    {
        let answer = format!("SERVER_ERROR {line}\r\nEN\r\nEN\r\n");
        let locks = connect(impostor(hello, answer.leak()).await).await.unwrap();
        let e = locks.lock("x").try_acquire().await.expect_err(line);
        assert!(e.kind() == Kind::Store && e.to_string().contains(line), "{e:?}");
        assert!(e.hint().is_some_and(|h| h.contains(hint)), "{e:?}");
    }
}
