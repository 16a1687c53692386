//! The store's moves, asked one by one.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::line::{Joined, Keeping, Lease, LineStore, Proven};
use distlock_core::seam::{Ask, Kept, Released};
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, FullName, Label, Mode, Name, Owner, Patience, ReqId, Why};
use distlock_etcd::{Etcd, EtcdPlace};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Server, etcdctl};

use crate::kit::{LONG, Named, ms, run, server, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_place_that_is_gone_is_neither_proven_nor_kept", gone),
    ("a_lease_counts_from_its_keep_alive_and_not_from_a_put", from_the_keep_alive),
    ("a_lease_counts_from_before_the_question", from_before),
    ("a_cancel_without_an_answer_to_the_join_leaves_a_tombstone", tombstone),
    ("a_lease_with_many_tombstones_goes_with_them_and_with_nothing_else", retired),
];

pub(crate) fn ask(name: &str, ttl: Duration) -> Ask {
    Ask {
        lock: FullName { space: Default::default(), name: Name::new(name).unwrap() },
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl,
        patience: Patience::Forever,
        min_hold: ms(0),
        lock_delay: ms(0),
        label: Label::new("moves"),
        block: NonZeroU32::MIN,
    }
}

pub(crate) async fn store(addr: std::net::SocketAddr) -> Etcd {
    let url = format!("etcd://{addr}?timeout=5s");
    Etcd::connect(StoreUrl::parse(&url).unwrap()).await.unwrap()
}

pub(crate) async fn join(store: &Etcd, ask: &Ask) -> (EtcdPlace, Lease) {
    match store.join(ask).await.unwrap() {
        Joined::In { place, lease, .. } => (place, lease),
        other => panic!("not in line: {}", matches!(other, Joined::Spent)),
    }
}

async fn keep(store: &Etcd, ask: &Ask, place: &EtcdPlace) -> Kept {
    let keeping = Keeping { key: ask.key(), place: place.clone(), ttl: ask.ttl, held: true };
    store.keep(&[keeping]).await.pop().unwrap()
}

async fn graves(server: &Server) -> usize {
    let all =
        etcdctl(server, &["get", "--prefix", "/distlock/:gone/", "--keys-only"]).await.unwrap();
    all.lines().filter(|l| !l.is_empty()).count()
}

fn gone() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let first = ask("a", LONG);
        let (place, _) = join(&store, &first).await;
        assert!(matches!(store.prove(&first.key(), &place).await.unwrap(), Proven::Mine(_)));
        assert!(matches!(keep(&store, &first, &place).await, Kept::Until { .. }));
        // The lease lives on, as a keep-alive would say.
        etcdctl(&server, &["del", "--prefix", "/distlock/a/"]).await.unwrap();
        let proven = store.prove(&first.key(), &place).await.unwrap();
        assert!(matches!(proven, Proven::Lost(Why::Gone)), "{proven:?}");
        let kept = keep(&store, &first, &place).await;
        assert!(matches!(kept, Kept::Lost(Why::Gone)), "{kept:?}");
        // Another entry at the same key is not the one that was made.
        let second = ask("b", LONG);
        let (place, _) = join(&store, &second).await;
        let key = store.proof(&place).unwrap().key;
        etcdctl(&server, &["del", &key]).await.unwrap();
        etcdctl(&server, &["put", &key, "{}"]).await.unwrap();
        let kept = keep(&store, &second, &place).await;
        assert!(matches!(kept, Kept::Lost(Why::Gone)), "{kept:?}");
        let left = store.leave(&second.key(), Some(&place)).await.unwrap();
        assert_eq!(left, Released::WasLost);
        store.close().await;
    });
}

fn from_the_keep_alive() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let (_, first) = join(&store, &ask("a", LONG)).await;
        Clock::system().sleep(ms(20)).await;
        let later = ask("b", LONG);
        let (place, second) = join(&store, &later).await;
        assert_eq!(second.sent, first.sent, "a put prolongs nothing");
        let Proven::Mine(proven) = store.prove(&later.key(), &place).await.unwrap() else {
            panic!("it is there")
        };
        assert_eq!(proven.sent, first.sent, "nor does a proof");
        let Kept::Until { sent, .. } = keep(&store, &later, &place).await else {
            panic!("it is there")
        };
        assert!(sent.boot > first.sent.boot, "a keep-alive does");
        store.close().await;
    });
}

fn from_before() {
    run(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = store(proxy.addr()).await;
        let slow = ms(1000);
        proxy.delay(slow);
        let began = Clock::system().now();
        let one = ask("a", LONG);
        let (place, lease) = join(&store, &one).await;
        assert!(lease.sent.boot.since(began) < slow, "the grant was not there yet");
        let began = Clock::system().now();
        let Kept::Until { sent, .. } = keep(&store, &one, &place).await else {
            panic!("it is there")
        };
        assert!(sent.boot.since(began) < slow, "the keep-alive was not there yet");
        store.close().await;
    });
}

fn tombstone() {
    run(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = store(proxy.addr()).await;
        join(&store, &ask("warm", LONG)).await;
        let late = ask("a", LONG);
        proxy.cut(Way::Replies);
        let dropped = Clock::system().timeout(ms(200), store.join(&late)).await;
        assert!(dropped.is_none());
        proxy.heal();
        let _ = store.leave(&late.key(), None).await.unwrap();
        assert_eq!(graves(&server).await, 1);
        let line = etcdctl(&server, &["get", "--prefix", "/distlock/a/"]).await.unwrap();
        assert_eq!(line, "");
        assert!(matches!(store.join(&late).await.unwrap(), Joined::Spent));
        // An answered join needs none.
        let plain = ask("a", LONG);
        let (place, _) = join(&store, &plain).await;
        assert_eq!(store.leave(&plain.key(), Some(&place)).await.unwrap(), Released::Released);
        assert_eq!(graves(&server).await, 1);
        store.close().await;
    });
}

/// Tombstones do not pile up, and what lives beside them on the lease outlives it.
fn retired() {
    run(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = store(proxy.addr()).await;
        let kept = ask("kept", LONG);
        let (place, _) = join(&store, &kept).await;
        for _ in 0..300 {
            let late = ask("a", LONG);
            // Dropped as soon as it was sent.
            let _ = Clock::system().timeout(Duration::ZERO, store.join(&late)).await;
            let _ = store.leave(&late.key(), None).await.unwrap();
        }
        let many = graves(&server).await;
        assert!(many > 200, "{many}");
        assert!(matches!(keep(&store, &kept, &place).await, Kept::Until { .. }));
        assert_eq!(store.leave(&kept.key(), Some(&place)).await.unwrap(), Released::Released);
        until("the first lease and its tombstones are gone", async || {
            graves(&server).await < many / 2
        })
        .await;
        store.close().await;
    });
}
