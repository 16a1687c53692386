//! Children that measure what many waiters and many names cost.

use std::time::Duration;

use distlock_core::Clock;
use tokio::sync::mpsc::unbounded_channel;

use super::Stage;
use crate::measure;
use crate::site::strict;
use crate::wait::{LONG, line_of, task};

/// How often it is looked at what waiting costs, unless it is plainly little.
const LOOKS: usize = 3;
const PLAINLY_LITTLE: u128 = 8000;

/// How many millionths of a core this process uses for a while.
async fn cpu_share(quiet: Duration) -> u128 {
    let (clock, cpu) = (Clock::system(), measure::cpu());
    let start = clock.now();
    clock.sleep(quiet).await;
    let used = measure::cpu().saturating_sub(cpu);
    used.as_nanos() * 1_000_000 / clock.now().since(start).as_nanos().max(1)
}

/// Many tasks wait for one name while nothing happens; then each is served.
///
/// Says `cost BYTES_PER_WAITER CPU_PER_MILLION`, then `order ok` or what came out of order.
pub(super) async fn crowd(stage: Stage) {
    // Each in the queue of the store, where its order is looked at.
    let locks = strict(&stage.client().await);
    let (name, n) = (stage.need("name").to_owned(), stage.number("waiters"));
    let quiet = stage.millis("quiet").expect("quiet=");
    let holder = locks.lock(&name).ttl(LONG).await.expect("a grant");
    // One waiter first: what is there once is not what each of them costs.
    let (tx, mut served) = unbounded_channel();
    let wait = |i: usize| {
        let (locks, name, tx) = (locks.clone(), name.clone(), tx.clone());
        task(async move {
            // A thousand who come at once may be more than a busy server answers in time.
            let guard = loop {
                match locks.lock(&name).ttl(LONG).label(i.to_string()).await {
                    Ok(guard) => break guard,
                    Err(e) => assert!(e.is_transient(), "a grant: {e:?}"),
                }
            };
            let _ = tx.send(i.to_string());
            let _ = guard.release().await.expect("a release");
        })
    };
    let mut tasks = vec![wait(0)];
    line_of(&locks, &name, 1).await;
    let before = measure::resident();
    tasks.extend((1..=n).map(wait));
    let all = async || match locks.show(&name).await {
        Ok(shown) => shown.map_or(0, |l| l.waiters.len()),
        Err(e) if e.is_transient() => 0,
        Err(e) => panic!("show: {e:?}"),
    };
    while all().await <= n {
        Clock::system().sleep(Duration::from_millis(50)).await;
    }
    let bytes = measure::resident().saturating_sub(before) / n as u64;
    // A machine that is busy with others makes the same work cost more, and never less.
    let mut share = u128::MAX;
    for _ in 0..LOOKS {
        share = share.min(cpu_share(quiet).await);
        if share < PLAINLY_LITTLE {
            break;
        }
    }
    stage.say(format!("cost {bytes} {share}"));
    let line = locks.show(&name).await.expect("show").expect("a line");
    let line: Vec<_> = line.waiters.iter().map(|w| w.label.as_str().to_owned()).collect();
    let _ = holder.release().await.expect("a release");
    for (place, want) in line.iter().enumerate() {
        let got = served.recv().await.expect("everybody is served");
        if got != *want {
            stage.say(format!("order broken at place {place}: {got} instead of {want}"));
            return;
        }
    }
    for t in tasks {
        t.await.expect("a waiter ends well");
    }
    stage.say("order ok");
    locks.close().await;
}

/// Uses very many names once each; says what is left of it.
///
/// Says `grown DESCRIPTORS THREADS BYTES` against the state after the first tenth.
pub(super) async fn one_shot(stage: Stage) {
    let locks = stage.client().await;
    let n = stage.number("names");
    let batch = async |names: std::ops::Range<usize>| {
        let workers: Vec<_> = (0..8)
            .map(|w| {
                let (locks, names) = (locks.clone(), names.clone());
                task(async move {
                    for i in names.filter(|i| i % 8 == w) {
                        let guard = locks.lock(format!("one-shot/{i}")).await.expect("a grant");
                        let _ = guard.release().await.expect("a release");
                    }
                })
            })
            .collect();
        for w in workers {
            w.await.expect("a worker ends well");
        }
    };
    batch(0..n / 10).await;
    let before = (measure::descriptors(), measure::threads(), measure::resident());
    batch(n / 10..n).await;
    let grown = (
        measure::descriptors().saturating_sub(before.0),
        measure::threads().saturating_sub(before.1),
        measure::resident().saturating_sub(before.2),
    );
    let listed = locks.list("one-shot/").await.expect("a list").len();
    stage.say(format!("grown {} {} {} {listed}", grown.0, grown.1, grown.2));
    locks.close().await;
}
