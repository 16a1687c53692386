//! Fenced keys on a real redis-server.
#![allow(clippy::unwrap_used)] // tests

use distlock_fence::redis::FencedKey;
use distlock_fence::{Error, Token};
use distlock_testkit::servers::{Cluster, Redis, Server};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, cmd};

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

async fn redis() -> (Server, MultiplexedConnection) {
    let server = Redis::new().start().await.unwrap();
    let client = redis::Client::open(format!("redis://{}", server.addr())).unwrap();
    let con = client.get_multiplexed_async_connection().await.unwrap();
    (server, con)
}

#[tokio::test]
async fn every_effect_is_refused_to_an_older_holder() {
    let (_server, mut con) = redis().await;
    let con = &mut con;
    let (key, hash) = (FencedKey::new("stock"), FencedKey::new("{shop}:order"));
    key.set(con, token(5), 10).await.unwrap();
    assert_eq!(key.incr_by(con, token(5), -3).await.unwrap(), 7);
    assert_eq!(hash.hset(con, token(5), &[("state", "new"), ("n", "1")]).await.unwrap(), 2);
    assert_eq!(hash.hincr_by(con, token(6), "n", 4).await.unwrap(), 5);
    key.set(con, token(6), 100).await.unwrap();
    let late = [
        key.set(con, token(5), 1).await,
        key.incr_by(con, token(5), 1).await.map(drop),
        key.del(con, token(5)).await.map(drop),
        hash.hset(con, token(5), &[("state", "old")]).await.map(drop),
        hash.hincr_by(con, token(5), "n", 1).await.map(drop),
    ];
    for refused in late {
        let refused = refused.unwrap_err();
        let stale = refused.stale().unwrap();
        assert_eq!((stale.token, stale.highest), (token(5), token(6)));
    }
    assert_eq!(con.get::<_, i64>("stock").await.unwrap(), 100);
    let order: Vec<(String, String)> = con.hgetall("{shop}:order").await.unwrap();
    assert_eq!(order, [("state".into(), "new".into()), ("n".into(), "5".into())]);
    let nothing = hash.hset::<&str, &str>(con, token(6), &[]).await;
    assert!(matches!(nothing, Err(Error::Usage(_))));
}

#[tokio::test]
async fn tokens_are_compared_as_numbers_of_any_size() {
    let (_server, mut con) = redis().await;
    let key = FencedKey::new("k");
    // Shorter and longer, neighbours that are one double, and the largest.
    let rising = [9, 10, 1 << 53, (1 << 53) + 1, (1 << 62), (1 << 63) - 2, (1 << 63) - 1];
    for pair in rising.windows(2) {
        key.set(&mut con, token(pair[1]), pair[1].to_string()).await.unwrap();
        let late = key.set(&mut con, token(pair[0]), "late").await.unwrap_err();
        assert_eq!(late.stale().unwrap().highest, token(pair[1]));
    }
    assert_eq!(con.get::<_, String>("k").await.unwrap(), ((1_u64 << 63) - 1).to_string());
}

#[tokio::test]
async fn the_fence_outlives_its_key() {
    let (_server, mut con) = redis().await;
    let key = FencedKey::new("session");
    key.set(&mut con, token(5), "x").await.unwrap();
    assert_eq!(con.ttl::<_, i64>(key.fence_key()).await.unwrap(), -1, "it never expires");
    con.pexpire_at::<_, ()>("session", 1).await.unwrap(); // long past
    assert!(!con.exists::<_, bool>("session").await.unwrap());
    assert!(key.set(&mut con, token(4), "y").await.unwrap_err().stale().is_some());
    key.set(&mut con, token(5), "z").await.unwrap();
    assert!(key.del(&mut con, token(6)).await.unwrap());
    assert!(!key.del(&mut con, token(6)).await.unwrap());
    assert!(key.set(&mut con, token(5), "y").await.unwrap_err().stale().is_some());
    let keys: Vec<String> = con.keys("*").await.unwrap();
    assert_eq!(keys, ["distlock:fence:{session}"]);
}

#[tokio::test]
async fn an_effect_that_fails_leaves_the_fence_raised_and_a_foreign_fence_is_no_fence() {
    let (_server, mut con) = redis().await;
    let key = FencedKey::new("list");
    con.rpush::<_, _, ()>("list", 1).await.unwrap();
    let wrong = key.incr_by(&mut con, token(5), 1).await;
    assert!(matches!(wrong, Err(Error::Store(_))), "{wrong:?}");
    assert!(key.set(&mut con, token(4), "x").await.unwrap_err().stale().is_some());
    for odd in ["7", "2 0000000000000000001", "soon"] {
        con.set::<_, _, ()>(key.fence_key(), odd).await.unwrap();
        let refused = key.set(&mut con, token(9), "x").await;
        assert!(matches!(refused, Err(Error::Layout(_))), "{refused:?}");
    }
    assert_eq!(cmd("TYPE").arg("list").query_async::<String>(&mut con).await.unwrap(), "list");
}

#[tokio::test]
async fn in_a_cluster_the_fence_is_where_its_key_is() {
    let cluster = Cluster::start().await.unwrap();
    for name in ["stock", "{shop}:stock", "orders:{42}:{7}", "größe/ä"] {
        let key = FencedKey::new(name);
        let slot = cluster.slot(name).await.unwrap();
        assert_eq!(slot, cluster.slot(key.fence_key()).await.unwrap(), "{name}");
        let node = cluster.nodes()[cluster.serving(slot).await.unwrap()].addr();
        let client = redis::Client::open(format!("redis://{node}")).unwrap();
        let mut con = client.get_multiplexed_async_connection().await.unwrap();
        key.set(&mut con, token(2), "x").await.unwrap();
        assert!(key.set(&mut con, token(1), "y").await.unwrap_err().stale().is_some());
    }
}
