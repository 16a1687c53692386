//! What goes wrong is said clearly, soon, and with what to do next.

use distlock_core::{Error, Kind};
use distlock_testkit::servers::{Certs, EtcdCluster, Port, Server, etcd_tls, etcdctl};

use crate::kit::{LONG, Named, connect, give_back, ms, run, server, soon, take, until};

pub(crate) const TRIALS: &[Named] = &[
    ("wrong_urls_say_what_is_allowed", wrong_urls),
    ("a_wrong_address_is_an_error_soon", wrong_address),
    ("a_cluster_without_a_majority_is_an_error_soon", half_dead),
    ("a_wrong_or_missing_login_is_an_error", wrong_login),
    ("a_login_is_made_again_when_the_cluster_has_forgotten_it", login_again),
    ("tls_serves_and_wrong_tls_is_an_error", tls),
    ("a_newer_layout_is_refused", layout),
];

async fn refused(url: &str) -> Error {
    let e = soon(url, connect(url)).await.err().unwrap_or_else(|| panic!("{url} was taken"));
    assert!(e.hint().is_some(), "{url}: {e:?}");
    e
}

fn wrong_urls() {
    run(async {
        let wrong = [
            "etcd:",
            "etcd://",
            "etcd://h/path",
            "etcd://h?nonsense=1",
            "etcd://h?timeout=1h",
            "etcd://user@h",
            "etcd://h?ca=x",
            "etcds://h?ca=/no/such/file",
            "etcds://h?cert=x",
        ];
        for url in wrong {
            let e = refused(url).await;
            assert_eq!(e.kind(), Kind::Usage, "{url}: {e:?}");
        }
    });
}

fn wrong_address() {
    run(async {
        let port = Port::claim().unwrap();
        let e = refused(&format!("etcd://{}", port.addr())).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        // What is no etcd at all.
        let other = server().await;
        let e = refused(&format!("etcds://{}?timeout=1s", other.addr())).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        // One of two is enough.
        let locks = connect(&format!("etcd://{},{}", port.addr(), other.addr())).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
    });
}

fn half_dead() {
    run(async {
        let cluster = EtcdCluster::start().await.unwrap();
        let url = format!("etcd://{}?timeout=2s", cluster.hosts());
        let locks = connect(&url).await.unwrap();
        cluster.nodes()[0].kill();
        cluster.nodes()[1].pause();
        let e = refused(&url).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        let e = soon("an answer", locks.lock("a").ttl(LONG).try_acquire()).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        cluster.nodes()[1].resume();
        until("it works again", async || {
            locks.lock("a").ttl(LONG).try_acquire().await.is_ok_and(|g| g.is_ok())
        })
        .await;
    });
}

/// Root, and one who may only use our prefix.
pub(crate) async fn with_logins(server: &Server) {
    // Some versions have it from the start.
    let _ = etcdctl(server, &["role", "add", "root"]).await;
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:hunter2"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "/distlock/"],
        &["user", "grant-role", "app", "locks"],
        &["role", "add", "none"],
        &["user", "add", "stranger:hunter2"],
        &["user", "grant-role", "stranger", "none"],
        &["auth", "enable"],
    ] {
        let _ = etcdctl(server, args).await.unwrap();
    }
}

fn wrong_login() {
    run(async {
        let server = server().await;
        with_logins(&server).await;
        let addr = server.addr();
        for login in ["", "app:wrong@", "nobody:hunter2@", "stranger:hunter2@"] {
            let e = refused(&format!("etcd://{login}{addr}")).await;
            assert_eq!(e.kind(), Kind::Credentials, "{login}: {e:?}");
            assert!(!format!("{e:?} {e}").contains("hunter2"), "{e:?}");
        }
        let locks = connect(&format!("etcd://app:hunter2@{addr}")).await.unwrap();
        let held = take(&locks, "a", ms(4000)).await;
        assert!(locks.lock("a").try_acquire().await.unwrap().is_err());
        give_back(held).await;
    });
}

fn login_again() {
    run(async {
        let server = server().await;
        with_logins(&server).await;
        let url = format!("etcd://app:hunter2@{}", server.addr());
        let (locks, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        let held = take(&locks, "a", LONG).await;
        // Its tokens are in its memory only.
        server.restart().await.unwrap();
        assert!(other.lock("a").ttl(LONG).try_acquire().await.unwrap().is_err());
        held.check().unwrap();
        let waiting = other.lock("a").ttl(LONG);
        let waiting = crate::kit::task(async move { waiting.acquire().await.unwrap() });
        crate::kit::line_of(&locks, "a", 1).await;
        // Streams, too, are let in again.
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap()).await;
    });
}

fn tls() {
    run(async {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let server = Server::start(etcd_tls(&certs, false).unwrap()).await.unwrap();
        let (addr, ca) = (server.addr(), certs.ca());
        let good = format!("etcds://{addr}?ca={}", ca.display());
        let locks = soon("it is up", async {
            loop {
                if let Ok(locks) = connect(&good).await {
                    break locks;
                }
            }
        })
        .await;
        give_back(take(&locks, "a", LONG).await).await;
        for url in [
            format!("etcd://{addr}?timeout=2s"),
            format!("etcds://{addr}?timeout=2s"),
            format!("etcds://{addr}?timeout=2s&ca={}", strange.ca().display()),
        ] {
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Unreachable, "{url}: {e:?}");
            assert!(e.hint().is_some_and(|h| h.contains("etcds") || h.contains("ca=")), "{e:?}");
        }
        // Only those with a certificate of the authority.
        let closed = Server::start(etcd_tls(&certs, true).unwrap()).await.unwrap();
        let addr = closed.addr();
        let mine = |c: &Certs| {
            let (cert, key) = (c.client_cert(), c.client_key());
            let (ca, cert, key) = (ca.display(), cert.display(), key.display());
            format!("etcds://{addr}?timeout=2s&ca={ca}&cert={cert}&key={key}")
        };
        until("it is up", async || connect(&mine(&certs)).await.is_ok()).await;
        for url in [mine(&strange), format!("etcds://{addr}?timeout=2s&ca={}", ca.display())] {
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Unreachable, "{url}: {e:?}");
        }
    });
}

fn layout() {
    run(async {
        let server = server().await;
        etcdctl(&server, &["put", "/distlock/:layout", "2"]).await.unwrap();
        let e = refused(&format!("etcd://{}", server.addr())).await;
        assert_eq!(e.kind(), Kind::Layout, "{e:?}");
    });
}
