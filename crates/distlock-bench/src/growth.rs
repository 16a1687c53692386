//! `cargo xtask bench --growth`: what a move costs as waiters, holds and names become many.
//!
//! One client per store, on a private server. Costs are per operation, so a flat line is linear
//! growth in total; the page says where a line bends.

mod measure;
mod page;
mod plot;

use std::path::Path;

use distlock::{Error, Kind};
use serde::{Deserialize, Serialize};

/// The stores that are measured.
pub(crate) const STORES: [&str; 7] =
    ["memory", "sqlite-normal", "redis", "postgres", "mysql", "etcd", "zookeeper"];

/// One measured point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) store: String,
    pub(crate) subject: Subject,
    /// How many waiters, holds or names there were.
    pub(crate) n: usize,
    pub(crate) figure: Figure,
    pub(crate) micros: f64,
}

/// What there were many of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    /// Waiters of one name.
    Waiters,
    /// Locks held by one process.
    Holds,
    /// Names that were locked before and are free now.
    Names,
}

/// What was measured, in microseconds an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Figure {
    /// Waiters: joining the queue, 64 at a time. Holds and names: the median of one at a time.
    Acquire,
    /// Waiters: a release and the grant of the next in line. Otherwise the median release.
    Release,
    /// Processor time, client and server, to renew one hold once.
    Renewal,
    /// Processor time, client and server, to keep one waiter in line for one heartbeat.
    Heartbeat,
}

impl Subject {
    pub(crate) const ALL: [Self; 3] = [Self::Waiters, Self::Holds, Self::Names];

    /// The sizes that are measured.
    pub(crate) fn sizes(self, quick: bool) -> &'static [usize] {
        match (self, quick) {
            (Self::Waiters, false) => &[10, 1_000, 10_000],
            (Self::Waiters, true) => &[10, 100, 1_000],
            (_, false) => &[1_000, 10_000, 100_000],
            (_, true) => &[100, 1_000, 10_000],
        }
    }

    /// What is measured of it.
    pub(crate) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Waiters => &[Figure::Acquire, Figure::Release, Figure::Heartbeat],
            Self::Holds => &[Figure::Acquire, Figure::Release, Figure::Renewal],
            Self::Names => &[Figure::Acquire, Figure::Release],
        }
    }
}

fn fail(what: &'static str, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, what).because(e)
}

/// Measures the stores, adds what was measured to the record, and writes page and plot beside it.
///
/// `docs` is the documentation folder; the record is `bench/growth.json` in it. A quick run prints
/// and records nothing. With a subject in `of`, the record keeps the figures of the others.
pub(crate) async fn run(
    stores: &[&str],
    of: Option<Subject>,
    quick: bool,
    docs: Option<&Path>,
) -> Result<(), Error> {
    let record = docs.map(|docs| docs.join("bench").join("growth.json"));
    let mut all: Vec<Point> = match &record {
        Some(file) if file.exists() => {
            let text = std::fs::read(file).map_err(|e| fail("cannot read the record", e))?;
            serde_json::from_slice(&text).map_err(|e| fail("cannot read the record", e))?
        }
        _ => Vec::new(),
    };
    let subjects = of.as_ref().map_or(&Subject::ALL[..], std::slice::from_ref);
    for store in stores {
        let points = measure::store(store, subjects, quick).await?;
        all.retain(|p| p.store != *store || !subjects.contains(&p.subject));
        all.extend(points);
        // After each store, so that a run that is cut short keeps what it has.
        if let (Some(docs), Some(file), false) = (docs, &record, quick) {
            save(docs, file, &all)?;
        }
    }
    all.retain(|p| stores.contains(&p.store.as_str()));
    println!("{}", page::table(&all));
    Ok(())
}

fn save(docs: &Path, record: &Path, points: &[Point]) -> Result<(), Error> {
    let write = |file: &Path, text: String| {
        std::fs::write(file, text).map_err(|e| fail("cannot write the growth page", e))
    };
    std::fs::create_dir_all(docs.join("bench")).map_err(|e| fail("cannot make docs/bench", e))?;
    let lines: Vec<String> =
        points.iter().map(|p| serde_json::to_string(p).unwrap_or_default()).collect();
    write(record, format!("[\n{}\n]\n", lines.join(",\n")))?;
    write(&docs.join("bench").join("growth.svg"), plot::svg(points))?;
    write(&docs.join("growth.md"), page::page(points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_page_follows_from_its_record() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
        let points: Vec<Point> = serde_json::from_str(&read("bench/growth.json")).unwrap();
        assert_eq!(page::stores(&points).collect::<Vec<_>>(), STORES);
        assert_eq!(read("growth.md"), page::page(&points));
        assert_eq!(read("bench/growth.svg"), plot::svg(&points));
    }
}
