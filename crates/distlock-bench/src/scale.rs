//! Many waiters and many holds, on redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Connect, Error, Kind, Locks};
use distlock_testkit::servers::{Reply, raw};
use tokio::sync::mpsc;

use crate::report::Row;
use crate::scenes::spawn;

fn fail(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, "the server does not say what it did").because(e)
}

/// Asks a server to count anew.
pub(crate) async fn reset(server: SocketAddr) -> Result<(), Error> {
    raw(server, &["CONFIG", "RESETSTAT"]).await.map(drop).map_err(fail)
}

/// How often a server ran a command since, and for how many microseconds in all.
pub(crate) async fn spent(server: SocketAddr, command: &str) -> Result<(f64, f64), Error> {
    let answer = raw(server, &["INFO", "commandstats"]).await.map_err(fail)?;
    let Reply::Text(text) = answer else { return Ok((0.0, 0.0)) };
    let line = text.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:")));
    let number = |key: &str| {
        let value = line.and_then(|l| l.split(',').find_map(|p| p.strip_prefix(key)));
        value.and_then(|v| v.parse().ok()).unwrap_or(0.0)
    };
    Ok((number("calls="), number("usec=")))
}

/// How long a hand-over takes with so many in line, in microseconds: of the clock, and of the
/// server; and how many are told at each.
async fn line(url: &str, server: SocketAddr, waiters: usize) -> Result<(f64, f64, f64), Error> {
    const ROUNDS: usize = 500;
    // Each waiter in the queue of the store: hand-over inside a process would keep all but one out.
    let locks = Locks::options().strict_order().connect(url).await?;
    let name = format!("line of {waiters}");
    let first = locks.lock(&name).await?;
    let (tx, mut served) = mpsc::unbounded_channel();
    // Whoever is served goes to the end of the line, so that it stays as long as it is.
    for _ in 0..waiters {
        let (locks, name, tx) = (locks.clone(), name.clone(), tx.clone());
        spawn(async move {
            while let Ok(guard) = locks.lock(&name).await {
                if guard.release().await.is_err() || tx.send(()).is_err() {
                    return;
                }
            }
        });
    }
    let clock = Clock::system();
    loop {
        let seen = locks.show(&name).await?;
        if seen.is_some_and(|info| info.waiters.len() == waiters) {
            break;
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    reset(server).await?;
    let start = clock.now();
    let _ = first.release().await?;
    for _ in 0..ROUNDS {
        let _ = served.recv().await;
    }
    let took = clock.now().since(start);
    let (_, micros) = spent(server, "evalsha").await?;
    let (told, _) = spent(server, "publish").await?;
    drop(served);
    locks.close().await;
    #[allow(clippy::cast_precision_loss)]
    let each = ROUNDS as f64;
    Ok((took.as_secs_f64() * 1e6 / each, micros / each, told / each))
}

/// Ten thousand in line beside ten.
pub(crate) async fn lines(store: &str, url: &str, server: SocketAddr) -> Result<Vec<Row>, Error> {
    let scene = "10,000 waiters, raw = 10";
    let few = line(url, server, 10).await?;
    let many = line(url, server, 10_000).await?;
    Ok(vec![
        Row::new(store, scene, "hand-over µs", many.0, Some(few.0)),
        Row::new(store, scene, "server µs a hand-over", many.1, Some(few.1)),
        Row::new(store, scene, "told a hand-over", many.2, Some(few.2)),
    ])
}

/// Fifty thousand locks kept by one process for a while.
pub(crate) async fn holds(store: &str, url: &str, quick: bool) -> Result<Vec<Row>, Error> {
    let (count, length) = if quick { (5_000, 11) } else { (50_000, 45) };
    let locks = Arc::new(Locks::options().strict_order().connect(url).await?);
    let mut guards = Vec::with_capacity(count);
    let (tx, mut held) = mpsc::unbounded_channel();
    for lane in 0..64 {
        let (locks, tx) = (locks.clone(), tx.clone());
        spawn(async move {
            for n in (lane..count).step_by(64) {
                let guard = take(&locks, n).await;
                let _ = tx.send(guard);
            }
        });
    }
    drop(tx);
    while let Some(guard) = held.recv().await {
        guards.push(guard?);
    }
    let clock = Clock::system();
    let (start, before) = (clock.now(), cpu()?);
    clock.sleep(Duration::from_secs(length)).await;
    let share = (cpu()? - before) / clock.now().since(start).as_secs_f64() * 100.0;
    let lost = guards.iter().filter(|g| g.check().is_err()).count();
    #[allow(clippy::cast_precision_loss)]
    let (kept, count) = ((guards.len() - lost) as f64, count as f64);
    let scene = "50,000 locks held";
    drop(guards);
    locks.close().await;
    Ok(vec![
        Row::new(store, scene, "kept, raw = all", kept, Some(count)),
        Row::new(store, scene, "% of a core", share, None),
    ])
}

async fn take(locks: &Locks, n: usize) -> Result<distlock::Guard, Error> {
    locks.lock(format!("held {n}")).ttl(Duration::from_secs(30)).acquire().await
}

/// What this process has used of all cores, in seconds.
fn cpu() -> Result<f64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(fail)?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    // Of what follows the name, the user's and the system's time are the twelfth and thirteenth, in
    // hundredths of a second.
    let ticks = |i: usize| fields.get(i).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(11) + ticks(12)) / 100.0)
}
