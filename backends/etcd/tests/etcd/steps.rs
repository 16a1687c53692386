//! The store's moves, as the tests of single moves ask for them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Backend, Kept, Released};
use distlock_core::queue::{Joined, Keeping, Lease, Proven, QueueStore};
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, FullName, Label, LossReason, Mode, Name, Owner, Patience, ReqId};
use distlock_etcd::{Etcd, EtcdEntry};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Server, etcd_metric, etcdctl};

use crate::kit::{LONG, ms, until};

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

async fn store_at(url: String) -> Etcd {
    Etcd::connect(StoreUrl::parse(&url).unwrap()).await.unwrap()
}

pub(crate) async fn store(addr: SocketAddr) -> Etcd {
    store_at(format!("etcd://{addr}?timeout=5s")).await
}

/// One whose calls may take long, on a slow road or a busy machine.
pub(crate) async fn patient_store(addr: SocketAddr) -> Etcd {
    store_at(format!("etcd://{addr}?timeout=60s")).await
}

pub(crate) async fn join(store: &Etcd, ask: &Ask) -> (EtcdEntry, Lease) {
    match store.join(ask).await.unwrap() {
        Joined::In { place, lease, .. } => (place, lease),
        other => panic!("not in line: {}", matches!(other, Joined::Tombstoned)),
    }
}

/// Joins as somebody new, for long.
pub(crate) async fn join_new(store: &Etcd, name: &str) -> (Ask, EtcdEntry) {
    let ask = ask(name, LONG);
    let (place, _) = join(store, &ask).await;
    (ask, place)
}

/// Leaves, having been there.
pub(crate) async fn leave(store: &Etcd, ask: &Ask, place: &EtcdEntry) {
    assert_eq!(store.leave(&ask.key(), Some(place)).await.unwrap(), Released::Released);
}

/// A join whose answer nobody hears, taken back.
pub(crate) async fn join_unheard(store: &Etcd, proxy: &Proxy, name: &str) -> Ask {
    let late = ask(name, LONG);
    proxy.cut(Way::Replies);
    let dropped = Clock::system().timeout(ms(200), store.join(&late)).await;
    assert!(dropped.is_none());
    proxy.heal();
    let _ = store.leave(&late.key(), None).await.unwrap();
    late
}

pub(crate) async fn keep(store: &Etcd, ask: &Ask, place: &EtcdEntry) -> Kept {
    let keeping = Keeping { key: ask.key(), place: place.clone(), ttl: ask.ttl, held: true };
    store.keep(&[keeping]).await.pop().unwrap()
}

pub(crate) async fn is_there(store: &Etcd, ask: &Ask, place: &EtcdEntry) {
    let proven = store.prove(&ask.key(), place).await.unwrap();
    assert!(matches!(proven, Proven::Mine(_)), "{proven:?}");
}

pub(crate) async fn is_gone(store: &Etcd, ask: &Ask, place: &EtcdEntry) {
    let proven = store.prove(&ask.key(), place).await.unwrap();
    assert!(matches!(proven, Proven::Lost(LossReason::Gone)), "{proven:?}");
}

/// The key of an entry.
pub(crate) fn key(store: &Etcd, place: &EtcdEntry) -> String {
    store.proof(place).unwrap().key
}

/// An entry is deleted behind its owner's back, who finds out.
pub(crate) async fn take_away(server: &Server, store: &Etcd, ask: &Ask, place: &EtcdEntry) {
    etcdctl(server, &["del", &key(store, place)]).await.unwrap();
    is_gone(store, ask, place).await;
}

/// How many keys there are below a prefix.
pub(crate) async fn count(server: &Server, prefix: &str) -> usize {
    let all = etcdctl(server, &["get", "--prefix", prefix, "--keys-only"]).await.unwrap();
    all.lines().filter(|l| !l.is_empty()).count()
}

/// How many tombstones there are.
pub(crate) async fn graves(server: &Server) -> usize {
    count(server, "/distlock/:gone/").await
}

/// Takes a free lock for long, until its key and its line are watched.
pub(crate) async fn hold_watched(server: &Server, holder: &dyn Backend, name: &str) -> Ask {
    let held = ask(name, LONG);
    let granted = holder.acquire(Arc::new(held.clone()), None).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    until("it is watched", async || {
        let watchers = etcd_metric(server, "etcd_debugging_mvcc_watcher_total").await;
        watchers.is_some_and(|n| n >= 2.0)
    })
    .await;
    held
}

/// Has the client's lease retired, by the tombstones of many that left without an answer.
pub(crate) async fn retire(store: &Etcd, name: &str) {
    for _ in 0..300 {
        let late = ask(name, LONG);
        // Dropped as soon as it was sent.
        let _ = Clock::system().timeout(Duration::ZERO, store.join(&late)).await;
        let _ = store.leave(&late.key(), None).await.unwrap();
    }
}
