//! The scenes: alone, on many names, many tasks on one name, many processes on one name.

use std::time::Duration;

use distlock::{Clock, Error, Kind, Locks, engine};
use distlock_testkit::servers::{self, Server};
use tokio::sync::mpsc;

use crate::crowd;
use crate::raw::Raw;
use crate::report::{Row, quantile};

/// How long and how often.
struct Size {
    solo: usize,
    each: usize,
    crowd: Duration,
}

pub(crate) async fn all(store: &str, quick: bool) -> Result<Vec<Row>, Error> {
    let size = match quick {
        true => Size { solo: 200, each: 20, crowd: Duration::from_secs(1) },
        false => Size { solo: 3000, each: 200, crowd: Duration::from_secs(5) },
    };
    let io = |e: std::io::Error| Error::new(Kind::Store, "no place to measure in").because(e);
    let dir = tempfile::tempdir_in(std::env::current_dir().map_err(io)?).map_err(io)?;
    // A private copy; it ends with this function.
    let server = match store {
        "memcached" => Some(Server::start(servers::memcached()).await?),
        _ => None,
    };
    let address = server.as_ref().map(Server::addr);
    let url = match (store, address) {
        ("sqlite", _) => format!("sqlite:{}", dir.path().join("locks.db").display()),
        ("sqlite-normal", _) => {
            let path = dir.path().join("locks.db");
            format!("sqlite:{}?synchronous=normal", path.display())
        }
        ("file", _) => format!("file:{}", dir.path().join("locks").display()),
        ("memcached", Some(address)) => format!("memcached://{address}"),
        _ => "memory:".to_owned(),
    };
    let locks = distlock::connect(&url).await?;
    let raw = Raw::open(store, dir.path(), address, 64)?;
    let mut rows = solo(store, &locks, &raw, size.solo).await?;
    rows.push(together(store, "64 names in parallel", &locks, &raw, 64, 64, size.each).await?);
    rows.push(together(store, "16 tasks on one name", &locks, &raw, 16, 1, size.each).await?);
    locks.close().await;
    if store != "memory" {
        rows.extend(crowd::rows(store, &url, dir.path(), size.crowd).await?);
    }
    Ok(rows)
}

async fn cycle(locks: &Locks, name: &str) -> Result<(), Error> {
    let guard = locks.lock(name).await?;
    let _ = guard.release().await?;
    Ok(())
}

/// One task on one name: ours and raw in turns, so that both meet the same weather.
async fn solo(store: &str, locks: &Locks, raw: &Raw, rounds: usize) -> Result<Vec<Row>, Error> {
    let clock = Clock::system();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds + rounds / 10 {
        let start = clock.now();
        cycle(locks, "solo").await?;
        let middle = clock.now();
        raw.cycle(0).await;
        let end = clock.now();
        // The first tenth warms up.
        if round >= rounds / 10 {
            ours.push(middle.since(start));
            theirs.push(end.since(middle));
        }
    }
    let row = |q, figure| {
        let (lock, raw) = (quantile(&mut ours.clone(), q), quantile(&mut theirs.clone(), q));
        Row::new(store, "solo cycle", figure, lock, Some(raw))
    };
    Ok(vec![row(0.5, "p50 µs"), row(0.99, "p99 µs")])
}

/// Many tasks, on as many names as there are given.
async fn together(
    store: &str,
    scene: &'static str,
    locks: &Locks,
    raw: &Raw,
    tasks: usize,
    names: usize,
    each: usize,
) -> Result<Row, Error> {
    let clock = Clock::system();
    let (tx, mut done) = mpsc::unbounded_channel();
    let start = clock.now();
    for task in 0..tasks {
        let (locks, tx, name) = (locks.clone(), tx.clone(), format!("{scene} {}", task % names));
        spawn(async move {
            let mut result = Ok(());
            for _ in 0..each {
                result = result.and(cycle(&locks, &name).await);
            }
            let _ = tx.send(result);
        });
    }
    for _ in 0..tasks {
        done.recv().await.unwrap_or(Ok(()))?;
    }
    let ours = clock.now().since(start);
    let start = clock.now();
    for task in 0..tasks {
        let (raw, tx) = (raw.clone(), tx.clone());
        spawn(async move {
            for _ in 0..each {
                raw.cycle(task % names).await;
            }
            let _ = tx.send(Ok(()));
        });
    }
    for _ in 0..tasks {
        done.recv().await.unwrap_or(Ok(()))?;
    }
    let theirs = clock.now().since(start);
    #[allow(clippy::cast_precision_loss)]
    let rate = |d: Duration| (tasks * each) as f64 / d.as_secs_f64();
    Ok(Row::new(store, scene, "cycles/s", rate(ours), Some(rate(theirs))))
}

/// On the caller's runtime: that is where users' tasks run.
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    debug_assert!(!engine::on_library_thread());
    #[allow(clippy::disallowed_methods)] // these are the users' tasks, not the library's
    drop(tokio::spawn(work));
}
