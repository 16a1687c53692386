//! Measures one store at each size.

use std::collections::HashMap;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Connect, Error, Guard, Kind, Locks};
use tokio::sync::mpsc;

use super::{Figure, Point, Subject, fail};
use crate::place::Place;
use crate::report::quantile;
use crate::scenes::spawn;

/// Calls under way at once while a store is filled.
const ABREAST: usize = 64;
/// Operations that a median is taken of.
const SAMPLES: usize = 200;
/// Every lock's TTL: renewed after 10 s, and a waiter's heartbeat every 3.3 s.
const TTL: Duration = Duration::from_secs(30);
/// A hold is renewed once in a third of its TTL.
const RENEWAL: Duration = Duration::from_secs(10);
/// A waiter is heard of once in a third of the wait-lease of 10 s.
const HEARTBEAT: Duration = Duration::from_millis(3_333);
/// How long it may take until all wait or hold.
const PATIENCE: Duration = Duration::from_secs(300);
/// Max renewal intervals until the store is expected to be at rest.
const INTERVALS: u32 = 6;
/// How long idle processor time is counted.
const WATCH: Duration = Duration::from_secs(20);

/// Every figure of these subjects at one store.
pub(crate) async fn store(
    store: &str,
    subjects: &[Subject],
    quick: bool,
) -> Result<Vec<Point>, Error> {
    let dir = tempfile::tempdir_in(".").map_err(|e| fail("no place to measure in", e))?;
    let place = Place::open(store, dir.path(), 1).await?;
    let mut points = Vec::new();
    // Each waiter in the queue of the store.
    let locks = Locks::options().strict_order().connect(&place.url).await?;
    let _ = lock(&locks, "first").await?.release().await?;
    // What client and server use while nothing is held counts for no waiter and no hold.
    let rest = idle(&Clock::system()).await?;
    locks.close().await;
    for &subject in subjects {
        for &n in subject.sizes(quick) {
            eprintln!("{store}: {n} {subject:?}…");
            let locks = Locks::options().strict_order().connect(&place.url).await?;
            let figures = match subject {
                Subject::Waiters => waiters(&locks, n, rest).await,
                Subject::Holds => holds(&locks, n, rest).await,
                Subject::Names => names(&locks, n).await,
            };
            locks.close().await;
            // Too many for this store here: the page has no figure then.
            let figures = figures.unwrap_or_else(|e| {
                eprintln!("{store}: {n} {subject:?}: {e}");
                Vec::new()
            });
            for (figure, micros) in figures {
                eprintln!("{store}: {n} {subject:?}: {figure:?} {micros:.1} µs");
                points.push(Point { store: store.to_owned(), subject, n, figure, micros });
            }
        }
    }
    Ok(points)
}

type Figures = Vec<(Figure, f64)>;

#[allow(clippy::cast_precision_loss)]
fn each(took: Duration, n: usize) -> f64 {
    took.as_secs_f64() * 1e6 / n as f64
}

async fn lock(locks: &Locks, name: &str) -> Result<Guard, Error> {
    locks.lock(name).ttl(TTL).acquire().await
}

/// A queue of `n` behind a holder: how long until all have joined, what it costs to keep them
/// there, and a hand-over while the queue stays as long as it is.
async fn waiters(locks: &Locks, n: usize, rest: f64) -> Result<Figures, Error> {
    let rounds = if n >= 10_000 { 100 } else { 300 };
    let clock = Clock::system();
    let name = format!("queue of {n}");
    let first = lock(locks, &name).await?;
    let (tx, mut served) = mpsc::unbounded_channel();
    let start = clock.now();
    for _ in 0..n {
        let (locks, name, tx) = (locks.clone(), name.clone(), tx.clone());
        spawn(async move {
            // Whoever was served joins again at the end.
            while let Ok(guard) = lock(&locks, &name).await {
                if guard.release().await.is_err() || tx.send(()).is_err() {
                    return;
                }
            }
        });
    }
    drop(tx);
    let mut pause = Duration::from_millis(1);
    loop {
        match locks.show(&name).await {
            Ok(seen) if seen.as_ref().is_some_and(|info| info.waiters.len() >= n) => break,
            Err(e) if !e.is_transient() => return Err(e),
            // A server that takes in ten thousand may be late with a list of them.
            _ => {}
        }
        // Listing a long queue is dear: not too often.
        clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
        if clock.now().since(start) > PATIENCE {
            return Err(Error::new(Kind::Store, format!("{n} did not join in {PATIENCE:?}")));
        }
    }
    let joined = each(clock.now().since(start), n);
    let spent = (idle(&clock).await? - rest).max(0.0) / WATCH.div_duration_f64(HEARTBEAT);
    let start = clock.now();
    let _ = first.release().await?;
    for _ in 0..rounds {
        served.recv().await.ok_or_else(|| Error::new(Kind::Store, "every waiter gave up"))?;
    }
    let handed = each(clock.now().since(start), rounds);
    #[allow(clippy::cast_precision_loss)]
    let heartbeat = spent * 1e6 / n as f64;
    Ok(vec![(Figure::Acquire, joined), (Figure::Release, handed), (Figure::Heartbeat, heartbeat)])
}

/// Fills a store with `n` held names, `ABREAST` at a time.
async fn fill(locks: &Locks, n: usize, prefix: &str) -> Result<Vec<Guard>, Error> {
    let (tx, mut held) = mpsc::unbounded_channel();
    for lane in 0..ABREAST {
        let (locks, tx, prefix) = (locks.clone(), tx.clone(), prefix.to_owned());
        spawn(async move {
            for i in (lane..n).step_by(ABREAST) {
                let guard = lock(&locks, &format!("{prefix} {i}")).await;
                let failed = guard.is_err();
                let _ = tx.send(guard);
                if failed {
                    return;
                }
            }
        });
    }
    drop(tx);
    let (clock, mut guards) = (Clock::system(), Vec::with_capacity(n));
    let start = clock.now();
    while let Some(guard) = held.recv().await {
        guards.push(guard?);
        if clock.now().since(start) > PATIENCE {
            let took = guards.len();
            return Err(Error::new(Kind::Store, format!("{took} of {n} taken in {PATIENCE:?}")));
        }
    }
    Ok(guards)
}

/// The medians of an acquire and a release of names that were never seen before.
async fn cycles(locks: &Locks, prefix: &str) -> Result<Figures, Error> {
    let clock = Clock::system();
    let (mut acquires, mut releases) = (Vec::new(), Vec::new());
    for i in 0..SAMPLES {
        let start = clock.now();
        let guard = lock(locks, &format!("{prefix}, new {i}")).await?;
        let granted = clock.now();
        let _ = guard.release().await?;
        acquires.push(granted.since(start));
        releases.push(clock.now().since(granted));
    }
    Ok(vec![
        (Figure::Acquire, quantile(&mut acquires, 0.5)),
        (Figure::Release, quantile(&mut releases, 0.5)),
    ])
}

/// `n` locks held by this process: a cycle beside them, and what it costs to keep them.
async fn holds(locks: &Locks, n: usize, rest: f64) -> Result<Figures, Error> {
    let clock = Clock::system();
    let prefix = format!("hold of {n}");
    let guards = fill(locks, n, &prefix).await?;
    let mut figures = cycles(locks, &prefix).await?;
    settle(&clock).await?;
    let spent = (idle(&clock).await? - rest).max(0.0) / WATCH.div_duration_f64(RENEWAL);
    let lost = guards.iter().filter(|g| g.check().is_err()).count();
    if lost > 0 {
        return Err(Error::new(Kind::Lost, format!("{lost} of {n} holds were lost"))
            .with_hint("the store is too slow for this many at this TTL"));
    }
    #[allow(clippy::cast_precision_loss)]
    figures.push((Figure::Renewal, spent * 1e6 / n as f64));
    release(guards).await?;
    Ok(figures)
}

/// `n` names that were locked once and are free: a cycle beside them.
async fn names(locks: &Locks, n: usize) -> Result<Figures, Error> {
    let prefix = format!("name of {n}");
    let guards = fill(locks, n, &prefix).await?;
    release(guards).await?;
    cycles(locks, &prefix).await
}

/// Releases many, `ABREAST` at a time.
async fn release(guards: Vec<Guard>) -> Result<(), Error> {
    let (tx, mut done) = mpsc::unbounded_channel();
    let mut lanes: Vec<Vec<Guard>> = (0..ABREAST).map(|_| Vec::new()).collect();
    for (i, guard) in guards.into_iter().enumerate() {
        lanes[i % ABREAST].push(guard);
    }
    for lane in lanes {
        let tx = tx.clone();
        spawn(async move {
            for guard in lane {
                let _ = tx.send(guard.release().await.map(drop));
            }
        });
    }
    drop(tx);
    while let Some(released) = done.recv().await {
        released?;
    }
    Ok(())
}

/// Waits until what new holds set off is over (at etcd each is watched from some moment on): until a
/// renewal interval takes no less processor time than the one before.
async fn settle(clock: &Clock) -> Result<(), Error> {
    let mut before = f64::MAX;
    for _ in 0..INTERVALS {
        let start = processor_time()?;
        clock.sleep(RENEWAL).await;
        let spent = processor_time()? - start;
        if spent > before * 0.8 {
            break;
        }
        before = spent;
    }
    Ok(())
}

/// Processor seconds that this process and the servers it started use while nothing is asked.
async fn idle(clock: &Clock) -> Result<f64, Error> {
    let before = processor_time()?;
    clock.sleep(WATCH).await;
    Ok(processor_time()? - before)
}

/// Processor seconds of this process and of every process below it. Those of a thread that ended
/// are not in it: the library's thread and a server's workers last as long as what is measured.
fn processor_time() -> Result<f64, Error> {
    let me = std::process::id();
    let processes = std::fs::read_dir("/proc").map_err(|e| fail("cannot read /proc", e))?;
    let pids: Vec<u32> =
        processes.flatten().filter_map(|p| p.file_name().to_str()?.parse().ok()).collect();
    let parents: HashMap<u32, u32> =
        pids.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let below = |mut pid: u32| loop {
        if pid == me {
            return true;
        }
        match parents.get(&pid) {
            Some(&parent) if parent != 0 => pid = parent,
            _ => return false,
        }
    };
    #[allow(clippy::cast_precision_loss)]
    Ok(pids.into_iter().filter(|pid| below(*pid)).map(nanos).sum::<u64>() as f64 / 1e9)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold anything; state and parent follow it.
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Nanoseconds on a processor of all threads of a process.
fn nanos(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let spent = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(spent).sum()
}
