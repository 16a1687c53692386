//! Holder and first waiter die together: the second waiter enters soon after the holder's lease.
//!
//! Nobody tells it of its turn, and the server may give that to the dead one first. What it does about
//! that by a timer of its own is measured here: the lease ends between two of its heartbeats, long before
//! the second would find out.

use std::time::Duration;

use distlock_core::Locks;

use crate::fellow::{Fellow, hear, say};
use crate::proxy::Proxy;
use crate::wait::{LONG, give_back, take_for, task, timed, until_within, within};

/// The role of a process that [`after_kills`] starts: it is to call [`keep`].
pub const ROLE: &str = "keep";
/// Of the holder: more than a third of a waiter's lease of ten seconds, which is the pace of its
/// heartbeats, and well under two thirds.
const TTL: Duration = Duration::from_secs(4);
/// How long each step may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// The lock of the processes.
const KILLED: &str = "killed";

/// Holds or waits until it is killed.
///
/// # Panics
/// When the store is in trouble.
///
/// # Cancel safety
/// As an acquire.
pub async fn keep(locks: &Locks) {
    let _held = match locks.lock(KILLED).ttl(TTL).try_acquire().await.expect("an answer") {
        Ok(held) => held,
        // Its place outlives the holder's lease: the server knows no better than to call it up.
        Err(_) => locks.lock(KILLED).ttl(LONG).acquire().await.expect("a grant"),
    };
    say("held");
    hear();
}

/// Two processes are killed; how long after the end of the lease one of this process enters.
///
/// # Panics
/// When it never does.
///
/// # Cancel safety
/// Dropping it kills the processes.
pub async fn after_kills(url: &str, locks: &Locks) -> Duration {
    let mut holder = Fellow::start(ROLE, url);
    assert_eq!(holder.line(), "held");
    let mut head = Fellow::start(ROLE, url);
    late(locks, KILLED, || {
        holder.kill();
        head.kill();
    })
    .await
}

/// The same for two clients whose proxy falls silent: the server has their connections open still.
///
/// # Panics
/// When nobody enters.
///
/// # Cancel safety
/// As an acquire.
pub async fn after_a_cut(proxy: &Proxy, clients: [Locks; 2], locks: &Locks) -> Duration {
    let name = "cut off";
    let [holder, head] = clients;
    let _held = take_for(&holder, name, TTL).await;
    let head = task(head.lock(name).ttl(LONG).acquire());
    let late = late(locks, name, || proxy.cut_both()).await;
    head.abort();
    late
}

async fn late(locks: &Locks, name: &str, die: impl FnOnce()) -> Duration {
    line_of(locks, name, 1).await;
    let next = task(locks.lock(name).ttl(LONG).acquire());
    line_of(locks, name, 2).await;
    die();
    let seen = locks.show(name).await.expect("an answer").expect("a holder");
    let left = seen.holds[0].holder.left.expect("a lease");
    let (took, next) = timed(within(SOON, "its turn", next)).await;
    give_back(next.expect("no panic").expect("a grant")).await;
    took.saturating_sub(left)
}

async fn line_of(locks: &Locks, name: &str, n: usize) {
    until_within(SOON, &format!("{n} in line for {name:?}"), async || {
        locks.show(name).await.expect("an answer").map_or(0, |l| l.waiters.len()) == n
    })
    .await;
}
