//! What calls cost, where it could grow with what others have stored.

use std::os::fd::OwnedFd;

use distlock_core::Locks;
use distlock_testkit::servers::{Redis, Server, Wire};
use futures_util::future::join_all;
use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::kit::{
    Named, client, connect, give_back, keys, ms, run, said, soon, take, take_for, until, waiter,
};

pub(crate) const TRIALS: &[Named] = &[
    ("no_call_waits_for_the_answer_to_another_one", nodelay),
    ("a_list_of_many_pages_scans_the_keys_once", list),
    ("a_name_that_nobody_uses_is_remembered_as_long_as_was_asked_for", keep),
    ("a_plain_release_costs_the_same_however_many_wait", plain_release),
];

/// The sockets of this process to a server.
fn sockets(server: &Server) -> Vec<OwnedFd> {
    let us = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let fds = numbers.filter_map(|n: i32| pidfd_getfd(&us, n, PidfdGetfdFlags::empty()).ok());
    let to = |fd: &OwnedFd| {
        let peer = getpeername(fd).ok().flatten();
        peer.is_some_and(|peer| peer == server.addr().into())
    };
    fds.filter(to).collect()
}

/// Nagle's algorithm would hold a small call back while another one is under way.
fn nodelay() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for url in [
            format!("redis://{}?quarantine=off", server.addr()),
            format!("redis://{}?quarantine=off&algorithm=plain", server.addr()),
        ] {
            let _locks = connect(&url).await.unwrap();
            let ours = sockets(&server);
            assert!(!ours.is_empty(), "or this test shows nothing");
            for socket in ours {
                assert!(sockopt::tcp_nodelay(&socket).unwrap());
            }
        }
    });
}

/// A number from `INFO commandstats`.
async fn stat(server: &Server, command: &str, field: &str) -> u64 {
    let info = said(server, &["INFO", "commandstats"]).await;
    let line = info.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:")));
    let mut fields = line.unwrap_or_default().split(',').filter_map(|f| f.split_once('='));
    fields.find(|(name, _)| *name == field).map_or(0, |(_, value)| value.parse().unwrap())
}

fn list() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for algorithm in ["", "&algorithm=plain"] {
            let locks = client(&server, &format!("quarantine=off{algorithm}")).await;
            let names: Vec<String> = (0..600).map(|n| format!("n{n}{algorithm}")).collect();
            let held = join_all(names.iter().map(|n| take_for(&locks, n, ms(30_000)))).await;
            let scans = async || stat(&server, "scan", "calls").await;
            let before = scans().await;
            assert!(locks.list("nobody has this").await.unwrap().is_empty());
            let once = scans().await - before;
            let before = scans().await;
            assert_eq!(locks.list("n").await.unwrap().len(), names.len());
            assert_eq!(scans().await - before, once);
            // Another list is read anew.
            join_all(held.into_iter().map(give_back)).await;
            assert!(locks.list("n").await.unwrap().is_empty());
        }
    });
}

fn keep() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for (n, query) in ["", "&algorithm=plain"].into_iter().enumerate() {
            for (name, keep, most) in [("day", "", 26 * 3600), ("minutes", "&keep=10m", 660)] {
                let name = format!("{name}-{n}");
                let locks = client(&server, &format!("quarantine=off{query}{keep}")).await;
                let held = take_for(&locks, &name, ms(30_000)).await;
                let left = async || {
                    let keys = keys(&server).await;
                    let ours = keys.iter().filter(|(key, _)| key.contains(&name));
                    ours.map(|(_, left)| *left / 1000).max().unwrap_or(0)
                };
                // Through a hand-over, whose moves do not say how long.
                let next = waiter(&locks, &name, ms(30_000));
                line_of_two(&locks, &server, &name).await;
                give_back(held).await;
                soon("a turn", next).await.unwrap();
                let left = left().await;
                let least = if keep.is_empty() { 24 * 3600 - 60 } else { 600 - 60 };
                assert!((least..=most).contains(&left), "{name} is remembered for {left} s");
            }
        }
    });
}

/// Waits until somebody waits for a lock.
async fn line_of_two(locks: &Locks, server: &Server, name: &str) {
    until("somebody waits", async || {
        let seen = locks.show(name).await.unwrap();
        let line = format!("dl:{{:{name}}}:l");
        seen.is_some_and(|lock| !lock.waiters.is_empty())
            || keys(server).await.iter().any(|(key, _)| *key == line)
    })
    .await;
}

/// What the server spends on taking and giving back, in microseconds of its own counting.
async fn cycles(server: &Server, locks: &Locks) -> u64 {
    let before = stat(server, "evalsha", "usec").await;
    for _ in 0..50 {
        give_back(take(locks, "a").await).await;
    }
    stat(server, "evalsha", "usec").await - before
}

fn plain_release() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "algorithm=plain&quarantine=off").await;
        give_back(take(&locks, "a").await).await;
        let alone = cycles(&server, &locks).await;
        // A crowd of another client's: it listens, and does not ask.
        let mut crowd = Wire::to(server.addr()).await.unwrap();
        crowd.call(&["SUBSCRIBE", "dl:s:crowd"]).await.unwrap();
        let mut wire = Wire::to(server.addr()).await.unwrap();
        for n in 0..5000 {
            let member = format!("{n:032x}dl:s:crowd");
            wire.call(&["ZADD", "dl:{:a}:l", &n.to_string(), &member]).await.unwrap();
        }
        let crowded = cycles(&server, &locks).await;
        assert_eq!(wire.call(&["ZCARD", "dl:{:a}:l"]).await.unwrap().int(), Some(5000));
        assert!(crowded < 5 * alone, "{crowded} us with 5000 in line, {alone} us with nobody");
    });
}
