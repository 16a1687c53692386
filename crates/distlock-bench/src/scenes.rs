//! The scenes: alone, on many names, many tasks on one name, many processes on one name.

use std::time::Duration;

use distlock::backend::{Clock, engine};
use distlock::{Connect, Error, Kind, Locks};
use tokio::sync::mpsc;

use crate::crowd;
use crate::peer::Peer;
use crate::place::Place;
use crate::raw::Raw;
use crate::report::{Row, quantile};
use crate::scale;

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
    let place = Place::open(store, dir.path(), 64).await?;
    let (url, raw, peers) = (&place.url, &place.raw, &place.peers);
    let locks = distlock::connect(url).await?;
    let (mut rows, call) = solo(store, &locks, raw, peers, size.solo).await?;
    if let Some(server) = place.redis {
        scale::reset(server).await?;
        many(&locks, 64, 64, size.each).await?;
        let (calls, micros) = scale::spent(server, "evalsha").await?;
        #[allow(clippy::cast_precision_loss)]
        let cycles = (64 * size.each) as f64;
        let scene = "64 names in parallel";
        rows.push(Row::new(store, scene, "server µs a script", micros / calls, None));
        rows.push(Row::new(store, scene, "server µs a cycle", micros / cycles, None));
    }
    rows.push(together(store, "64 names in parallel", &locks, raw, 64, 64, size.each).await?);
    for peer in peers {
        rows.push(beside(store, "64 names in parallel", &locks, peer, (64, 64), size.each).await?);
    }
    rows.extend(lingering(store, &locks, raw, size.solo).await?);
    rows.push(together(store, "16 tasks on one name", &locks, raw, 16, 1, size.each).await?);
    let strict = Locks::options().strict_order().connect(url).await?;
    let scene = "16 tasks, strict order";
    rows.push(together(store, scene, &strict, raw, 16, 1, size.each).await?);
    rows.extend(line(store, scene, &strict, size.crowd, call).await?);
    strict.close().await;
    for peer in peers.iter().filter(|peer| peer.keeps_a_line()) {
        rows.push(beside(store, "16 tasks on one name", &locks, peer, (16, 1), size.each).await?);
    }
    rows.extend(line(store, "16 tasks on one name", &locks, size.crowd, call).await?);
    locks.close().await;
    if store != "memory" {
        rows.extend(crowd::rows(store, url, dir.path(), size.crowd, call).await?);
    }
    if store == "redis"
        && let Some(server) = place.redis
    {
        rows.extend(scale::lines(store, url, server).await?);
        rows.extend(scale::holds(store, url, quick).await?);
    }
    Ok(rows)
}

async fn cycle(locks: &Locks, name: &str) -> Result<(), Error> {
    let guard = locks.lock(name).await?;
    let _ = guard.release().await?;
    Ok(())
}

/// One task on one name: ours, raw and a peer in turns, so that all meet the same weather. Also says
/// what one raw call takes.
async fn solo(
    store: &str,
    locks: &Locks,
    raw: &Raw,
    peers: &[Peer],
    rounds: usize,
) -> Result<(Vec<Row>, f64), Error> {
    let clock = Clock::system();
    let mut times = vec![Vec::new(); peers.len() + 2];
    for round in 0..rounds + rounds / 10 {
        for turn in 0..times.len() {
            // Each begins as often as the others: what one leaves behind meets all alike.
            let who = (turn + round) % times.len();
            let start = clock.now();
            match who {
                0 => cycle(locks, "solo").await?,
                1 => raw.cycle(0).await,
                peer => peers[peer - 2].cycle("solo peer", 0).await?,
            }
            // The first tenth warms up.
            if round >= rounds / 10 {
                times[who].push(clock.now().since(start));
            }
        }
    }
    let mut beside = times.split_off(2);
    let (mut ours, mut theirs) = (times.swap_remove(0), times.swap_remove(0));
    let (scene, mut rows) = ("solo cycle", Vec::new());
    for (q, figure) in [(0.5, "p50 µs"), (0.99, "p99 µs")] {
        let (lock, raw) = (quantile(&mut ours, q), quantile(&mut theirs, q));
        rows.push(Row::new(store, scene, figure, lock, Some(raw)));
        for (peer, times) in peers.iter().zip(&mut beside) {
            let figure = format!("{figure}, raw = {}", peer.name());
            rows.push(Row::new(store, scene, figure, lock, Some(quantile(times, q))));
        }
    }
    let call = quantile(&mut theirs, 0.5) / 2.0;
    Ok((rows, call))
}

/// One task on one name whose lease lingers, and as many raw cycles; where leases can linger.
async fn lingering(
    store: &str,
    locks: &Locks,
    raw: &Raw,
    rounds: usize,
) -> Result<Option<Row>, Error> {
    if !locks.capability().linger {
        return Ok(None);
    }
    let clock = Clock::system();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = clock.now();
        let guard = locks.lock("lingers").linger(Duration::from_secs(10)).await?;
        let _ = guard.release().await?;
        ours.push(clock.now().since(start));
        let start = clock.now();
        raw.cycle(0).await;
        theirs.push(clock.now().since(start));
    }
    let (ours, theirs) = (quantile(&mut ours, 0.5), quantile(&mut theirs, 0.5));
    Ok(Some(Row::new(store, "solo cycle, lingering", "p50 µs", ours, Some(theirs))))
}

/// So many cycles a second.
fn rate(count: usize, took: Duration) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    let count = count as f64;
    count / took.as_secs_f64()
}

/// Runs a task so many times side by side, and says how long it took.
async fn side_by_side<F>(tasks: usize, work: impl Fn(usize) -> F) -> Result<Duration, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let clock = Clock::system();
    let (tx, mut done) = mpsc::unbounded_channel();
    let start = clock.now();
    for task in 0..tasks {
        let (work, tx) = (work(task), tx.clone());
        spawn(async move { drop(tx.send(work.await)) });
    }
    for _ in 0..tasks {
        done.recv().await.unwrap_or(Ok(()))?;
    }
    Ok(clock.now().since(start))
}

/// Many tasks, on as many names as there are given.
async fn many(locks: &Locks, tasks: usize, names: usize, each: usize) -> Result<Duration, Error> {
    side_by_side(tasks, |task| {
        let (locks, name) = (locks.clone(), format!("{names} names {}", task % names));
        async move {
            for _ in 0..each {
                cycle(&locks, &name).await?;
            }
            Ok(())
        }
    })
    .await
}

/// Ours, then as many raw calls.
async fn together(
    store: &str,
    scene: &'static str,
    locks: &Locks,
    raw: &Raw,
    tasks: usize,
    names: usize,
    each: usize,
) -> Result<Row, Error> {
    let ours = many(locks, tasks, names, each).await?;
    let theirs = side_by_side(tasks, |task| {
        let raw = raw.clone();
        async move {
            for _ in 0..each {
                raw.cycle(task % names).await;
            }
            Ok(())
        }
    });
    let (ours, theirs) = (rate(tasks * each, ours), rate(tasks * each, theirs.await?));
    Ok(Row::new(store, scene, "cycles/s", ours, Some(theirs)))
}

/// Ours, then a peer's: so many tasks on so many names.
async fn beside(
    store: &str,
    scene: &'static str,
    locks: &Locks,
    peer: &Peer,
    (tasks, names): (usize, usize),
    each: usize,
) -> Result<Row, Error> {
    let ours = many(locks, tasks, names, each).await?;
    let theirs = side_by_side(tasks, |task| {
        let peer = peer.clone();
        async move {
            for _ in 0..each {
                peer.cycle(&format!("peer {}", task % names), task).await?;
            }
            Ok(())
        }
    });
    let (ours, theirs) = (rate(tasks * each, ours), rate(tasks * each, theirs.await?));
    let figure = format!("cycles/s, raw = {}", peer.name());
    Ok(Row::new(store, scene, figure, ours, Some(theirs)))
}

/// Sixteen tasks in one line for a while: how long from a release to the next grant, in raw calls,
/// and who got how many.
async fn line(
    store: &str,
    scene: &'static str,
    locks: &Locks,
    length: Duration,
    call: f64,
) -> Result<Vec<Row>, Error> {
    let clock = Clock::system();
    let end = clock.now().plus(length);
    let (tx, mut times) = mpsc::unbounded_channel();
    side_by_side(16, |task| {
        let (locks, clock, tx) = (locks.clone(), clock.clone(), tx.clone());
        async move {
            while clock.now() < end {
                let guard = locks.lock("line").await?;
                let granted = clock.now();
                let _ = guard.release().await?;
                let _ = tx.send((granted, task));
            }
            Ok(())
        }
    })
    .await?;
    drop(tx);
    let (mut granted, mut counts) = (Vec::new(), [0u32; 16]);
    while let Some((at, task)) = times.recv().await {
        granted.push(at);
        counts[task] += 1;
    }
    granted.sort_unstable();
    // Each gives back as soon as it has it, so from grant to grant is one hand-over.
    let mut gaps: Vec<Duration> = granted.windows(2).map(|w| w[1].since(w[0])).collect();
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    let count = |n: Option<u32>| f64::from(n.unwrap_or(0));
    let gap = quantile(&mut gaps, 0.5);
    Ok(vec![
        Row::new(store, scene, "hand-over p50 µs, raw = call", gap, Some(call)),
        Row::new(store, scene, "least / most grants", count(least), Some(count(most))),
    ])
}

/// On the caller's runtime: that is where users' tasks run.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    debug_assert!(!engine::on_library_thread());
    #[allow(clippy::disallowed_methods)] // these are the users' tasks, not the library's
    drop(tokio::spawn(work));
}
