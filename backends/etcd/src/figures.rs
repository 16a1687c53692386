//! Figures, by hand: what a cycle costs beside the bare put and delete it is made of, and beside the
//! server's own lock service. All in one run, on one private server.
//!
//! `cargo test --release -p distlock-etcd --lib figures -- --ignored --nocapture`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Locks};
use distlock_testkit::servers::{Server, etcd};
use futures_util::future::join_all;
use prost::Message;

use crate::client::Client;
use crate::session::random;
use crate::store::Etcd;
use crate::wire::link::Tries;
use crate::wire::proto::{DeleteRequest, DeleteResponse, PutRequest, PutResponse};

const SOLO: usize = 2000;
const SPAN: Duration = Duration::from_secs(4);

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

async fn bare(client: &Client, name: &str, lease: i64) {
    let key = format!("/bare/{name}").into_bytes();
    let put = PutRequest { key: key.clone(), lease, ..PutRequest::default() };
    let path = "/etcdserverpb.KV/Put";
    client.link.call::<_, PutResponse>(path, &put, Tries::Many).await.unwrap();
    let delete = DeleteRequest { key, prev_kv: false };
    let path = "/etcdserverpb.KV/DeleteRange";
    client.link.call::<_, DeleteResponse>(path, &delete, Tries::Many).await.unwrap();
}

async fn service(client: &Client, name: &str, lease: i64) {
    let lock = LockRequest { name: format!("/service/{name}").into_bytes(), lease };
    let path = "/v3lockpb.Lock/Lock";
    let got = client.link.call::<_, LockResponse>(path, &lock, Tries::Many).await.unwrap();
    let unlock = UnlockRequest { key: got.said.key };
    let path = "/v3lockpb.Lock/Unlock";
    client.link.call::<_, UnlockResponse>(path, &unlock, Tries::Many).await.unwrap();
}

async fn ours(locks: &Locks, name: &str) {
    let _ = locks.lock(name).await.unwrap().release().await.unwrap();
}

async fn solo(what: &str, cycle: impl AsyncFn()) {
    let clock = Clock::system();
    let mut took = Vec::with_capacity(SOLO);
    for _ in 0..SOLO {
        let began = clock.now();
        cycle().await;
        took.push(clock.now().since(began));
    }
    took.sort();
    println!("solo, {what}: p50 {:?}, p99 {:?}", took[SOLO / 2], took[SOLO * 99 / 100]);
}

/// Cycles a second of so many tasks.
async fn many<F: Future<Output = ()>>(what: &str, tasks: usize, cycle: impl Fn(usize) -> F) {
    let (clock, done) = (Clock::system(), AtomicU64::new(0));
    let end = clock.now().plus(SPAN);
    let lanes = (0..tasks).map(|i| {
        let (clock, done, cycle) = (&clock, &done, &cycle);
        async move {
            while clock.now() < end {
                cycle(i).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    join_all(lanes).await;
    println!("{what}: {} a second", done.load(Ordering::Relaxed) / SPAN.as_secs());
}

#[test]
#[ignore = "a measurement, not a test"]
fn figures() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(etcd().unwrap()).await.unwrap();
        let url = StoreUrl::parse(&format!("etcd://{}?timeout=60s", server.addr())).unwrap();
        let store = Etcd::connect(url.clone()).await.unwrap();
        let client: Arc<Client> = store.client.clone();
        let locks = Locks::from_store(Etcd::connect(url).await.unwrap());
        let mut leases = Vec::new();
        for _ in 0..64 {
            let id = random();
            client.make_lease(id, Duration::from_secs(600)).await.unwrap();
            leases.push(id);
        }
        solo("bare put and delete", async || bare(&client, "a", leases[0]).await).await;
        solo("distlock", async || ours(&locks, "a").await).await;
        solo("lock service", async || service(&client, "a", leases[0]).await).await;
        many("64 names, bare", 64, |i| {
            let (client, lease) = (&client, leases[i]);
            async move { bare(client, &i.to_string(), lease).await }
        })
        .await;
        many("64 names, distlock", 64, |i| {
            let locks = &locks;
            async move { ours(locks, &i.to_string()).await }
        })
        .await;
        many("64 names, lock service", 64, |i| {
            let (client, lease) = (&client, leases[i]);
            async move { service(client, &i.to_string(), lease).await }
        })
        .await;
        many("16 tasks on one name, distlock", 16, |_| ours(&locks, "one")).await;
        many("16 tasks on one name, lock service", 16, |i| {
            let (client, lease) = (&client, leases[i]);
            async move { service(client, "one", lease).await }
        })
        .await;
    });
}
