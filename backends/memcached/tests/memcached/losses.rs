//! The server forgets: what that costs, and what the token still saves.

use std::time::Duration;

use distlock_core::{LossReason, Released};
use distlock_testkit::Resource;
use distlock_testkit::servers::{memcached, tiny_memcached};

use crate::kit::{client, full, raw, soon, start};

const TTL: Duration = Duration::from_secs(12);

/// A small server is filled by others until it evicts the lock: a second holder is granted while the
/// first believes in it, the resource refuses the first, and the first is told.
#[tokio::test]
async fn an_evicted_lock_has_two_holders_and_the_fence_tells_them_apart() {
    let server = start(tiny_memcached()).await;
    let (a, b) = (client(server.addr()).await, client(server.addr()).await);
    let first = a.lock("x").ttl(TTL).await.unwrap();
    let resource = Resource::new().unwrap();
    assert!(resource.write(first.token()).unwrap());
    // Others' items of about the size of ours, in bursts: it ends when ours is gone.
    let lock = distlock_memcached::lock_key(&full("x"));
    let fill = "y".repeat(240);
    soon("the eviction", async {
        for burst in 0.. {
            let sets: String = (0..500)
                .map(|i| format!("ms fill-{burst}-{i} {} q\r\n{fill}\r\n", fill.len()))
                .collect();
            raw(server.addr(), &format!("{sets}mn\r\n"), "MN\r\n").await;
            // Not `mg`, which would count as a use.
            let seen = raw(server.addr(), &format!("me {lock}\r\nmn\r\n"), "MN\r\n").await;
            if seen.starts_with("EN") {
                break;
            }
        }
    })
    .await;
    assert!(first.check().is_ok(), "it cannot know yet: that is what advisory means");
    let second = b.lock("x").ttl(TTL).try_acquire().await.unwrap().expect("it was evicted");
    assert!(second.token() > first.token());
    assert!(resource.write(second.token()).unwrap());
    assert!(!resource.write(first.token()).unwrap(), "the older holder was let in");
    assert_eq!(soon("word of the loss", first.lost()).await.why, LossReason::Gone);
    assert_eq!(first.release().await.unwrap(), Released::WasLost);
    assert!(second.check().is_ok(), "the older holder's release ended the newer hold");
    assert_eq!(second.release().await.unwrap(), Released::Released);
}

/// A restart loses all locks and fences: holders are told, and tokens go on from the clock.
#[tokio::test]
async fn a_restart_ends_locks_and_tokens_rise_over_it() {
    let server = start(memcached()).await;
    let (a, b) = (client(server.addr()).await, client(server.addr()).await);
    let first = a.lock("x").ttl(TTL).await.unwrap();
    server.restart().await.unwrap();
    // The connection was lost and is made anew; nobody has to connect again.
    let second = soon("the next grant", b.lock("x").ttl(TTL).acquire()).await.unwrap();
    assert!(second.token() > first.token(), "the token did not survive the restart");
    assert_eq!(soon("word of the loss", first.lost()).await.why, LossReason::Gone);
    assert_eq!(first.release().await.unwrap(), Released::WasLost);
    assert_eq!(second.release().await.unwrap(), Released::Released);
}
