//! Finding the primary: sentinels that know nothing, are dead, stand still or want a password.

use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use distlock_testkit::servers::{Sentinels, Server, raw};

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("sentinel_troubles_are_told_or_overcome", || play(troubles())),
    ("sentinel_one_connection_to_one_sentinel_is_enough", || play(followed())),
    ("sentinel_who_followed_a_sentinel_that_was_cut_off_leaves", || play(misled())),
    ("sentinel_a_failover_whose_replicas_are_not_moved_yet_names_one_primary", || {
        play(unfinished())
    }),
];

const TTL: Duration = Duration::from_secs(10);

async fn troubles() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let url = sentinel_url(&set, "quarantine=off");

    let wrong = url.replace(Sentinels::SERVICE, "nobody");
    let e = connect(&wrong).await.expect_err("no such primary");
    assert!(e.kind() == Kind::Usage && e.to_string().contains("\"nobody\""), "{e:?}");
    assert!(e.hint().is_some());

    let nowhere = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster?timeout=2s";
    let e = connect(nowhere).await.expect_err("nobody there");
    assert!(e.kind() == Kind::Unreachable && e.to_string().contains("no sentinel"), "{e:?}");
    assert!(e.to_string().contains("127.0.0.1:1") && e.hint().is_some(), "{e}");

    // One that hangs costs nothing: the others are a majority.
    set.sentinels()[0].pause();
    let (took, a) = timed(connect(&url)).await;
    let a = a?;
    assert!(took < Duration::from_secs(1), "a silent sentinel cost {took:?}");
    give_back(take(&a, "n", TTL).await?).await?;
    set.sentinels()[0].resume();
    set.sentinels()[0].kill();
    give_back(take(&connect(&url).await?, "n", TTL).await?).await?;

    for sentinel in &set.sentinels()[1..] {
        let login = ["ACL", "SETUSER", "default", "resetpass", ">hush"];
        let told = raw(sentinel.addr(), &login).await.expect("an answer");
        assert_eq!(told.to_string(), "OK");
    }
    let e = connect(&url).await.expect_err("a password is wanted");
    let hint = e.hint().unwrap_or_default();
    assert!(e.kind() == Kind::Credentials && hint.contains("sentinel_password"), "{e:?}");
    let e = connect(&format!("{url}&sentinel_password=wrong")).await.expect_err("another one");
    assert!(e.kind() == Kind::Credentials && !format!("{e:?}").contains("wrong\""), "{e:?}");
    let b = connect(&format!("{url}&sentinel_password=hush")).await?;
    give_back(take(&b, "n", TTL).await?).await
}

/// How many connections a sentinel has accepted since it started, this one included.
async fn accepted(sentinel: &Server) -> u64 {
    let told = raw(sentinel.addr(), &["INFO", "stats"]).await.expect("an answer").to_string();
    let line = told.lines().find_map(|l| l.strip_prefix("total_connections_received:"));
    line.and_then(|n| n.parse().ok()).expect("a number")
}

/// Which of the sentinels somebody listens to.
async fn listened_to(set: &Sentinels) -> Vec<usize> {
    let mut found = Vec::new();
    for (i, sentinel) in set.sentinels().iter().enumerate() {
        let clients = raw(sentinel.addr(), &["CLIENT", "LIST"]).await;
        if clients.is_ok_and(|told| told.to_string().contains(" sub=1 ")) {
            found.push(i);
        }
    }
    found
}

async fn followed() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let a = connect(&sentinel_url(&set, "quarantine=off")).await?;
    give_back(take(&a, "n", TTL).await?).await?;
    let mut at = Vec::new();
    until("it listens to one", async || {
        at = listened_to(&set).await;
        at.len() == 1
    })
    .await;
    // Sentinels connect to each other once, and our own questions count.
    let mut before = Vec::new();
    for sentinel in set.sentinels() {
        before.push(accepted(sentinel).await);
    }
    Clock::system().sleep(Duration::from_secs(4)).await;
    // All are asked every five seconds.
    for (sentinel, before) in set.sentinels().iter().zip(before) {
        assert!(accepted(sentinel).await <= before + 2, "connected to again and again");
    }
    // When that one ends, another is listened to.
    set.sentinels()[at[0]].kill();
    let next = async || listened_to(&set).await.iter().any(|i| *i != at[0]);
    until("it listens to another one", next).await;
    // A primary that is replaced while it lives and answers is left.
    let old = set.primary().await?.addr();
    let alive = set.sentinels().iter().find(|s| s.is_running()).expect("two are left");
    let told = raw(alive.addr(), &["SENTINEL", "FAILOVER", Sentinels::SERVICE]).await;
    assert_eq!(told.expect("an answer").to_string(), "OK");
    assert_ne!(set.failed_over(old).await?.addr(), old);
    give_back(take_in_the_end(&a, "n", TTL).await).await
}

/// The sentinel that is listened to missed a failover and names a server that still takes itself for
/// the primary: the others are asked too.
async fn misled() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let told = raw(set.addrs()[0], &["SENTINEL", "FAILOVER", Sentinels::SERVICE]).await;
    assert_eq!(told.expect("an answer").to_string(), "OK");
    set.failed_over(set.nodes()[0].addr()).await?;
    let (former, stale) = stale_sentinel().await?;
    let url = sentinel_url(&set, "quarantine=off&timeout=1s");
    let url = url.replace("://", &format!("://{},", stale.addr()));
    set.sentinels().iter().for_each(Server::pause);
    let a = connect(&url).await?;
    let guard = take(&a, "n", TTL).await?;
    let keys = raw(former.addr(), &["DBSIZE"]).await.expect("an answer");
    assert!(keys.int() > Some(0), "it was to be misled");
    drop(guard);
    set.sentinels().iter().for_each(Server::resume);
    let right = connect(&sentinel_url(&set, "quarantine=off")).await?;
    let there = async || {
        let guard = take_in_the_end(&a, "there", TTL).await;
        let seen = right.show("there").await.is_ok_and(|shown| shown.is_some());
        drop(guard);
        seen
    };
    within(Duration::from_secs(15), "it uses the right primary", until("it moved", there)).await;
    Ok(())
}

/// The leader of a failover that has promoted a replica and not moved the others yet: `SENTINEL MASTER`
/// there answers with the old address and the new epoch.
async fn unfinished() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let (old, leader) = (set.nodes()[0].addr(), &set.sentinels()[0]);
    // Not promoted, and not to be moved either.
    let silent = &set.nodes()[2];
    set.ask(silent, &["CONFIG", "SET", "replica-priority", "0"]).await.expect("an answer");
    until("every sentinel knows of the priority", async || {
        let mut known = true;
        for at in set.addrs() {
            let told = raw(at, &["SENTINEL", "REPLICAS", Sentinels::SERVICE]).await;
            known &= told.is_ok_and(|told| told.to_string().contains("slave-priority 0"));
        }
        known
    })
    .await;
    silent.pause();
    let told = raw(leader.addr(), &["SENTINEL", "FAILOVER", Sentinels::SERVICE]).await;
    assert_eq!(told.expect("an answer").to_string(), "OK");
    let new = set.failed_over(old).await?.addr();
    // A sentinel that stood still goes no further with a failover for half a minute.
    leader.pause();
    Clock::system().sleep(Duration::from_millis(2500)).await;
    leader.resume();
    let told = raw(leader.addr(), &["SENTINEL", "MASTER", Sentinels::SERVICE]).await;
    let told = told.expect("an answer").to_string();
    assert!(told.contains(&old.port().to_string()), "it was to be under way: {told}");
    let by_all = connect(&sentinel_url(&set, "quarantine=off")).await?;
    let by_leader = connect(&sentinel_url_at(&[leader.addr()], "quarantine=off")).await?;
    for (client, name) in [(by_all, "all"), (by_leader, "leader")] {
        let guard = take(&client, name, TTL).await?;
        let keys = raw(new, &["KEYS", &format!("*{name}*")]).await.expect("an answer");
        assert!(!keys.list().is_empty(), "{name} is locked at another server than the primary");
        give_back(guard).await?;
    }
    Ok(())
}
