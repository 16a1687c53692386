//! Eight processes on one name: throughput, hand-over, fairness.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use distlock::backend::{BootInstant, Clock};
use distlock::{Error, Kind};

use crate::report::{Row, quantile};

const PROCESSES: usize = 8;

fn fail(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, "the crowd failed").because(e)
}

/// One process: takes and gives back between two moments, and writes down when.
pub(crate) async fn member(url: &str, start: &str, end: &str, out: &str) -> Result<(), Error> {
    let moment = |text: &str| text.parse().map(BootInstant::from_nanos).map_err(fail);
    let (start, end) = (moment(start)?, moment(end)?);
    let clock = Clock::system();
    let locks = distlock::connect(url).await?;
    clock.sleep_until(start).await;
    let mut times = Vec::new();
    while clock.now() < end {
        let guard = locks.lock("crowd").await?;
        let granted = clock.now();
        let released = clock.now();
        let _ = guard.release().await?;
        times.push((granted, released));
    }
    let mut file = fs::File::create(out).map_err(fail)?;
    for (granted, released) in times {
        writeln!(file, "{} {}", granted.as_nanos(), released.as_nanos()).map_err(fail)?;
    }
    locks.close().await;
    Ok(())
}

pub(crate) async fn rows(
    store: &str,
    url: &str,
    dir: &Path,
    length: Duration,
    call: f64,
) -> Result<Vec<Row>, Error> {
    let clock = Clock::system();
    let start = clock.now().plus(Duration::from_millis(500));
    let end = start.plus(length);
    let me = std::env::current_exe().map_err(fail)?;
    let files: Vec<_> = (0..PROCESSES).map(|i| dir.join(format!("member{i}"))).collect();
    let mut members: Vec<Child> = Vec::new();
    for file in &files {
        let mut member = Command::new(&me);
        member.args(["--member", url, &start.as_nanos().to_string(), &end.as_nanos().to_string()]);
        members.push(member.arg(file).spawn().map_err(fail)?);
    }
    clock.sleep_until(end).await;
    for mut member in members {
        if !member.wait().map_err(fail)?.success() {
            return Err(Error::new(Kind::Store, "a process of the crowd failed"));
        }
    }
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).map_err(fail)?;
        counts.push(text.lines().count());
        for line in text.lines() {
            let mut numbers = line.split(' ').filter_map(|n| n.parse::<u64>().ok());
            if let (Some(granted), Some(released)) = (numbers.next(), numbers.next()) {
                all.push((granted, released));
            }
        }
    }
    all.sort_unstable();
    let mut gaps: Vec<Duration> =
        all.windows(2).map(|w| Duration::from_nanos(w[1].0.saturating_sub(w[0].1))).collect();
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    #[allow(clippy::cast_precision_loss)]
    let count = |n: Option<usize>| n.unwrap_or(0) as f64;
    let scene = "8 processes on one name";
    let rate = count(Some(all.len())) / length.as_secs_f64();
    Ok(vec![
        Row::new(store, scene, "cycles/s", rate, None),
        Row::new(
            store,
            scene,
            "hand-over p50 µs, raw = call",
            quantile(&mut gaps, 0.5),
            Some(call),
        ),
        Row::new(store, scene, "hand-over p99 µs", quantile(&mut gaps, 0.99), None),
        Row::new(store, scene, "least / most grants", count(least), Some(count(most))),
    ])
}
