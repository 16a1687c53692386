//! `?algorithm=plain` beside the clients of other languages, played by raw commands.

use distlock_core::{FullName, Kind, Locks, Released};
use distlock_testkit::servers::{Redis, Server, raw};

use crate::kit::{
    Named, busy, client, connect, give_back, keys, ms, run, said, soon, take, take_for, until,
    waiter, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_foreign_holder_excludes_us_and_its_release_lets_us_in", theirs),
    ("we_exclude_foreign_clients_and_our_release_lets_them_in", ours),
    ("key_and_value_are_those_of_the_recipe", exactly),
    ("a_foreign_holder_that_takes_our_expired_lock_is_not_disturbed", not_disturbed),
    ("names_and_namespaces_of_plain_do_not_meet_other_keys", names),
];

const PLAIN: &str = "algorithm=plain&quarantine=off";
/// How the recipe gives back.
const DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                      return redis.call('del', KEYS[1]) else return 0 end";
/// How it extends.
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                      return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

async fn set(server: &Server, key: &str, value: &str, ttl: &str) -> bool {
    said(server, &["SET", key, value, "NX", "PX", ttl]).await == "OK"
}

async fn delete(server: &Server, key: &str, value: &str) -> bool {
    said(server, &["EVAL", DELETE, "1", key, value]).await == "1"
}

async fn scene() -> (Server, Locks) {
    let server = Redis::new().start().await.unwrap();
    let locks = client(&server, PLAIN).await;
    (server, locks)
}

fn theirs() {
    run(async {
        let (server, locks) = scene().await;
        assert!(set(&server, "a", "their-value", "20000").await);
        let told = busy(&locks, "a").await;
        assert!(told.status.left.is_some_and(|l| l > ms(10_000) && l <= ms(20_000)), "{told}");
        assert!(told.status.note.is_none());
        let seen = locks.show("a").await.unwrap().unwrap();
        assert!(!format!("{seen:?}").contains("their-value"), "how a holder proves itself");
        // It is found out by asking: at least four times a second.
        let waiting = waiter(&locks, "a", ms(10_000));
        until("we wait", async || keys(&server).await.iter().any(|(k, _)| k == "dl:{:a}:l")).await;
        assert!(delete(&server, "a", "their-value").await);
        within(ms(1500), "our turn", waiting).await.unwrap();
        // One that simply runs out, and one that is extended before.
        assert!(set(&server, "b", "v", "2000").await);
        assert_eq!(said(&server, &["EVAL", EXTEND, "1", "b", "v", "4000"]).await, "1");
        assert!(busy(&locks, "b").await.status.left.unwrap() > ms(2000));
        within(ms(6000), "our turn", waiter(&locks, "b", ms(10_000))).await.unwrap();
        // One without an end, as of a client that crashed between SETNX and EXPIRE.
        said(&server, &["SET", "c", "v"]).await;
        assert_eq!(busy(&locks, "c").await.status.left, None);
        let waiting = waiter(&locks, "c", ms(10_000));
        assert!(delete(&server, "c", "v").await);
        within(ms(1500), "our turn", waiting).await.unwrap();
        // Breaking: its renewals fail, and nobody enters before its lease ends, nor, where it has no
        // end, before the longest TTL has passed.
        use distlock_core::backend::{Force, Forced};
        assert!(set(&server, "d", "v", "4000").await);
        said(&server, &["SET", "d2", "v"]).await;
        for _ in 0..2 {
            assert_eq!(locks.force("d", None, Force::Revoke).await.unwrap(), Forced::Done);
            assert_eq!(locks.force("d2", None, Force::Revoke).await.unwrap(), Forced::Done);
            assert!(!set(&server, "d", "w", "20000").await, "its holder may not know");
            assert!(!set(&server, "d2", "w", "20000").await, "its holder may not know");
        }
        assert_eq!(said(&server, &["EVAL", EXTEND, "1", "d", "v", "9000"]).await, "0");
        assert!(locks.show("d").await.unwrap().unwrap().holds[0].revoked);
        let left = raw(server.addr(), &["PTTL", "d2"]).await.unwrap().int().unwrap();
        assert!((1..=30_000).contains(&left), "{left}");
        within(ms(6000), "our turn after its lease", waiter(&locks, "d", ms(10_000)))
            .await
            .unwrap();
        // At once frees at once.
        assert!(set(&server, "d3", "v", "20000").await);
        assert_eq!(locks.force("d3", None, Force::Now).await.unwrap(), Forced::Done);
        assert!(set(&server, "d3", "w", "20000").await);
        // Ours only when nobody can believe in it any more, however often it is broken.
        let _held = take_for(&locks, "e", ms(20_000)).await;
        for _ in 0..2 {
            assert_eq!(locks.force("e", None, Force::Revoke).await.unwrap(), Forced::Done);
            assert!(!set(&server, "e", "w", "20000").await, "its holder may not know");
        }
        // Without a token a force is about a foreign holder: one of ours that came in between the look
        // and the force is left alone.
        let url = format!("redis://{}?{PLAIN}", server.addr());
        let url = distlock_core::url::StoreUrl::parse(&url).unwrap();
        let store = distlock_redis::open(url).await.unwrap();
        let held = take_for(&locks, "f", ms(20_000)).await;
        let lock = FullName { space: Default::default(), name: "f".parse().unwrap() };
        assert_eq!(store.force(&lock, None, Force::Now).await.unwrap(), Forced::NoMatch);
        give_back(held).await;
    });
}

fn ours() {
    run(async {
        let (server, locks) = scene().await;
        let held = take_for(&locks, "a", ms(5000)).await;
        assert!(!set(&server, "a", "theirs", "1000").await);
        assert!(!delete(&server, "a", "theirs").await);
        // Renewed under their eyes.
        let left = async || raw(server.addr(), &["PTTL", "a"]).await.unwrap().int().unwrap();
        until("a part of it is over", async || (1..4250).contains(&left().await)).await;
        until("a renewal", async || (4500..=5000).contains(&left().await)).await;
        give_back(held).await;
        assert!(set(&server, "a", "theirs", "20000").await);
        assert!(delete(&server, "a", "theirs").await);
        // A cancelled wait leaves nothing in their way, and min_hold keeps them out too.
        let held = locks.lock("a").min_hold(ms(5000)).acquire().await.unwrap();
        give_back(held).await;
        assert!(!set(&server, "a", "theirs", "1000").await);
        until("min_hold is over", async || set(&server, "a", "theirs", "20000").await).await;
        let gone = locks.lock("a").try_acquire_for(ms(100)).await.unwrap();
        assert!(gone.is_err());
        assert!(delete(&server, "a", "theirs").await);
        assert!(set(&server, "a", "theirs", "20000").await);
    });
}

fn exactly() {
    run(async {
        let (server, locks) = scene().await;
        let held = take_for(&locks, "orders/42 {x}", ms(10_000)).await;
        let value = said(&server, &["GET", "orders/42 {x}"]).await;
        assert!(value.len() == 32 && value.bytes().all(|b| b.is_ascii_hexdigit()), "{value}");
        assert_eq!(said(&server, &["TYPE", "orders/42 {x}"]).await, "string");
        let left = raw(server.addr(), &["PTTL", "orders/42 {x}"]).await.unwrap().int().unwrap();
        assert!(left > 5000 && left <= 10_000, "{left}");
        let ours: Vec<String> = keys(&server).await.into_iter().map(|(k, _)| k).collect();
        let known = ["orders/42 {x}", "dl:epoch"];
        let mut beside: Vec<_> = ours.iter().filter(|k| !known.contains(&k.as_str())).collect();
        beside.sort();
        assert!(beside.iter().all(|k| k.starts_with("dl:{:orders/42 %7Bx%7D}:")), "{beside:?}");
        // Another value for each request.
        give_back(held).await;
        let _next = take(&locks, "orders/42 {x}").await;
        assert_ne!(said(&server, &["GET", "orders/42 {x}"]).await, value);
        // Who has our value is us: their compare-and-delete with it frees, and we are told.
        let held = take_for(&locks, "b", ms(5000)).await;
        let value = said(&server, &["GET", "b"]).await;
        assert!(delete(&server, "b", &value).await);
        soon("the loss", held.lost()).await;
    });
}

fn not_disturbed() {
    run(async {
        let (server, locks) = scene().await;
        let held = take_for(&locks, "a", ms(5000)).await;
        // As if ours had run out unnoticed.
        said(&server, &["DEL", "a"]).await;
        assert!(set(&server, "a", "theirs", "20000").await);
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        assert_eq!(said(&server, &["GET", "a"]).await, "theirs");
        let held = take_for(&locks, "b", ms(900)).await;
        said(&server, &["SET", "b", "theirs", "PX", "20000"]).await;
        soon("the loss", held.lost()).await;
        drop(held);
        locks.close().await;
        assert_eq!(said(&server, &["GET", "b"]).await, "theirs");
        let left = raw(server.addr(), &["PTTL", "b"]).await.unwrap().int().unwrap();
        assert!(left > 10_000, "nor extended: {left}");
    });
}

fn names() {
    run(async {
        let (server, locks) = scene().await;
        let e = locks.lock("dl:{:a}").try_acquire().await.unwrap_err();
        assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{e:?}");
        let store = distlock_redis::open(
            distlock_core::url::StoreUrl::parse(&format!("redis://{}?{PLAIN}", server.addr()))
                .unwrap(),
        );
        let shop = Locks::options().namespace("shop").open(store.await.unwrap()).unwrap();
        let (a, b) = (take(&locks, "a").await, take(&shop, "a").await);
        assert_eq!(said(&server, &["EXISTS", "a", "dl:p:shop:a"]).await, "2");
        // The script algorithm's locks are others.
        let script = connect(&format!("redis://{}?quarantine=off", server.addr())).await.unwrap();
        let c = take(&script, "a").await;
        let listed = locks.list("").await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(script.list("").await.unwrap().len(), 1);
        for guard in [a, b, c] {
            guard.check().unwrap();
            give_back(guard).await;
        }
        assert!(set(&server, "a", "theirs", "1000").await);
    });
}
