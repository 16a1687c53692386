//! S26: a primary dies before its replicas have heard of a lock it granted.

use std::time::Duration;

use distlock_core::{Error, Released};
use distlock_testkit::Resource;
use distlock_testkit::history::{Recorder, Rules, check, read};
use distlock_testkit::servers::{Redis, Sentinels};

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("s26_without_the_quarantine_two_hold_and_the_fence_refuses_the_older", || play(off())),
    ("s26_the_quarantine_lets_the_lost_lock_run_out_first", || play(on())),
];

/// Longer than a failover takes, so that the lock that was lost outlives it.
const TTL: Duration = Duration::from_secs(12);

async fn off() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let url = sentinel_url(&set, "quarantine=off&max_ttl=1m");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    assert!(a.capability().notes.iter().any(|n| n.contains("two holders are possible")));
    set.cut_replicas().await?;
    // Sentinels that stood still for two seconds do nothing for half a minute after that.
    let lost = a.lock("s26").ttl(TTL * 5).without_renewal().await?;
    let primary = set.primary().await?;
    primary.kill();
    set.failed_over(primary.addr()).await?;
    let second = take_in_the_end(&b, "s26", TTL).await;
    // Both believe in their hold: this is what asynchronous replication costs.
    assert!(lost.check().is_ok() && second.check().is_ok(), "{lost:?} {second:?}");
    assert!(second.token() > lost.token(), "{} after {}", second.token(), lost.token());
    let resource = Resource::new().expect("a resource");
    let write = |token| resource.write(token).expect("a write");
    assert!(write(lost.token()) && write(second.token()));
    assert!(!write(lost.token()), "the older holder wrote after the younger");
    give_back(second).await?;
    // Afterwards everybody can lock, the first client too.
    for locks in [&a, &b] {
        give_back(take_in_the_end(locks, "s26", TTL).await).await?;
    }
    Ok(())
}

async fn on() -> Result<(), Error> {
    // Durable, so that there is no quarantine before the failover.
    let set = Sentinels::with("nopass", Redis::durable).await?;
    let url = sentinel_url(&set, "max_ttl=12s");
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    let dir = tempfile::tempdir().expect("a directory");
    let record = |file: &str| Recorder::create(&dir.path().join(file)).expect("a history");
    let (mut first, mut next) = (record("a"), record("b"));
    set.cut_replicas().await?;
    let lock = a.lock("s26").ttl(TTL).without_renewal();
    let lost = first.acquire_lock(lock, "s26").await?;
    let end = now().plus(lost.remaining());
    let primary = set.primary().await?;
    primary.kill();
    set.failed_over(primary.addr()).await?;
    // A client that comes now hears why it is not granted, and for how long.
    let told = async || {
        let busy = b.lock("s26").ttl(TTL).try_acquire().await.ok()?.err()?;
        Some(busy.to_string())
    };
    let mut words = None;
    until("words", async || {
        words = told().await;
        words.is_some()
    })
    .await;
    let words = words.expect("words");
    assert!(words.contains("a replica was promoted and may lack the latest locks"), "{words}");
    // It counts from when the first of the clients found out.
    assert!(words.contains("granting in "), "{words}");
    let second = soon("a grant", next.acquire_lock(b.lock("s26").ttl(TTL), "s26")).await?;
    assert!(now() >= end && lost.check().is_err(), "granted while the lost lock was believed in");
    assert!(second.token() > lost.token());
    assert_eq!(next.release(second).await?, Released::Released);
    assert_eq!(first.release(lost).await?, Released::WasLost);
    first.end().and_then(|()| next.end()).expect("histories");
    let found = check(&read(dir.path()).expect("histories"), Rules { fifo: false });
    assert!(found.is_empty(), "{found:?}");
    Ok(())
}
