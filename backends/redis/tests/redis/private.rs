//! TLS: who may be believed, and what is said when one is not.

use std::net::SocketAddr;

use distlock_core::Kind;
use distlock_testkit::servers::{Certs, Redis, Server};
use tokio::net::{TcpListener, TcpStream};

use crate::errors::refused;
use crate::kit::{Named, connect, give_back, line_of, ms, run, soon, take, task, waiter};

pub(crate) const TRIALS: &[Named] = &[
    ("tls_is_refused_in_words_when_it_cannot_be_trusted", untrusted),
    ("tls_and_plain_text_do_not_meet", mismatch),
    ("tls_with_certificates_of_clients", clients),
];

async fn server(certs: &Certs) -> Server {
    Redis::new().tls(certs).start().await.unwrap()
}

fn url(addr: SocketAddr, query: &str) -> String {
    format!("rediss://{addr}?quarantine=off&timeout=2s{query}")
}

fn ca(certs: &Certs) -> String {
    format!("&ca={}", certs.ca().display())
}

/// The same server at an address that its certificate does not name.
async fn elsewhere(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    task(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            task(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    addr
}

fn untrusted() {
    run(async {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let server = server(&certs).await;
        let elsewhere = elsewhere(server.addr()).await;
        for url in
            [url(server.addr(), ""), url(server.addr(), &ca(&strange)), url(elsewhere, &ca(&certs))]
        {
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Refused, "{url} {e:?}");
            assert!(e.to_string().contains("TLS"), "{e}");
        }
        for by in [server.addr().to_string(), format!("localhost:{}", server.addr().port())] {
            let url = format!("rediss://{by}?quarantine=off{}", ca(&certs));
            let locks = connect(&url).await.unwrap();
            let held = take(&locks, "a").await;
            let waits = waiter(&locks, "a", ms(10_000));
            line_of(&locks, "a", 1).await;
            give_back(held).await;
            soon("a turn", waits).await.unwrap();
        }
        // A file that is none.
        let e = refused(&url(server.addr(), "&ca=/dev/null")).await;
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        let e = refused(&url(server.addr(), "&ca=/no/such/file")).await;
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
    });
}

fn mismatch() {
    run(async {
        let certs = Certs::new().unwrap();
        let private = server(&certs).await;
        let e = refused(&format!("redis://{}?timeout=2s", private.addr())).await;
        assert!(matches!(e.kind(), Kind::Refused | Kind::Unreachable), "{e:?}");
        assert!(e.hint().unwrap().contains("rediss://"), "{e:?}");
        let open = Redis::new().start().await.unwrap();
        let e = refused(&url(open.addr(), &ca(&certs))).await;
        assert!(matches!(e.kind(), Kind::Refused | Kind::Unreachable), "{e:?}");
        assert!(e.hint().unwrap().contains("redis://"), "{e:?}");
    });
}

fn clients() {
    run(async {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let server = Redis::new().tls(&certs).tls_clients(&certs).start().await.unwrap();
        let me = |of: &Certs| {
            let (cert, key) = (of.client_cert(), of.client_key());
            format!("{}&cert={}&key={}", ca(&certs), cert.display(), key.display())
        };
        for query in [ca(&certs), me(&strange)] {
            let e = refused(&url(server.addr(), &query)).await;
            assert!(matches!(e.kind(), Kind::Refused | Kind::Unreachable), "{e:?}");
            assert!(e.hint().unwrap().contains("cert"), "{e:?}");
        }
        let locks = connect(&url(server.addr(), &me(&certs))).await.unwrap();
        give_back(take(&locks, "a").await).await;
    });
}
