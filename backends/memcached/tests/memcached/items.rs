//! What stands on the server.

use std::time::Duration;

use distlock_core::{Clock, Kind};
use distlock_memcached::lock_key;
use distlock_testkit::servers::memcached;

use crate::kit::{LONG, client, full, raw, start, take, until};

/// No item is for ever, whatever was done to it: a client that dies leaves nothing behind.
#[tokio::test]
async fn every_item_ends_by_itself() {
    let server = start(memcached()).await;
    let locks = client(server.addr()).await;
    let held = take(&locks, "held").await;
    let _ = take(&locks, "released").await.release().await.unwrap();
    let minute = Duration::from_secs(60);
    let short = locks.lock("lingering").ttl(LONG).min_hold(minute).await.unwrap();
    let _ = short.release().await.unwrap();
    let revoked = take(&locks, "revoked").await;
    let _ = locks.force("revoked", None, distlock_core::Force::Revoke).await.unwrap();
    let dump = raw(server.addr(), "lru_crawler metadump hash\r\n", "END\r\n").await;
    let items: Vec<&str> = dump.lines().filter(|l| l.starts_with("key=dl1")).collect();
    assert_eq!(items.len(), 7, "three locks and four fences: {items:?}");
    for item in items {
        assert!(!item.contains("exp=-1"), "for ever: {item}");
    }
    drop((held, revoked));
}

/// The server counts whole seconds, and nobody knows where they begin: at whatever part of one a
/// lock is taken, its guard has stopped believing before the item ends.
#[tokio::test]
async fn a_guard_ends_before_its_item_at_every_part_of_a_second() {
    let server = start(memcached()).await;
    let (locks, other) = (client(server.addr()).await, client(server.addr()).await);
    let (clock, eighth) = (Clock::system(), Duration::from_millis(125));
    let (mut held, first) = (Vec::new(), clock.now());
    for part in 0..8 {
        clock.sleep_until(first.plus(eighth * part)).await;
        let lock = locks.lock(format!("part {part}")).ttl(Duration::from_secs(4));
        held.push((part, lock.without_renewal().await.unwrap()));
    }
    until("the end of every item", async || {
        let mut left = Vec::new();
        for (part, guard) in held.drain(..) {
            if other.show(format!("part {part}")).await.unwrap().is_some() {
                left.push((part, guard));
            } else {
                assert!(guard.check().is_err(), "part {part}: the item ended before its guard");
            }
        }
        held = left;
        held.is_empty()
    })
    .await;
}

/// What others wrote at a lock's key is not taken for a lock, and not removed.
#[tokio::test]
async fn what_is_newer_or_not_ours_is_refused() {
    let server = start(memcached()).await;
    let locks = client(server.addr()).await;
    for (value, word) in [("{\"v\":2}", "newer"), ("hello", "not written by distlock")] {
        let key = lock_key(&full("x"));
        raw(server.addr(), &format!("ms {key} {}\r\n{value}\r\n", value.len()), "HD\r\n").await;
        let e = locks.lock("x").try_acquire().await.expect_err(word);
        assert!(e.kind() == Kind::Layout && e.to_string().contains(word), "{e:?}");
        assert!(e.hint().is_some());
        let e = locks.force("x", None, distlock_core::Force::Now).await.expect_err(word);
        assert_eq!(e.kind(), Kind::Layout);
        let there = raw(server.addr(), &format!("mg {key} v\r\nmn\r\n"), "MN\r\n").await;
        assert!(there.contains(value), "{there}");
    }
}
