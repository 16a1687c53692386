//! The page: a table for each subject, and where a line bends.

use std::fmt::Write;

use super::{Figure, Point, STORES, Subject};

const HEAD: &str = "\
# Growth

What one operation costs as waiters, holds and names become many. Made by
`cargo xtask bench --growth [STORE]` from [the record](bench/growth.json) of one run with a release
build. Every figure is microseconds
an operation, so an unchanged figure means that the total grows linearly.

* **Waiters** of one name, in one process. *Acquire*: the time until all had joined the queue,
  divided by their number. *Release*: a release and the next waiter's grant, while the queue stays
  as long as it is. *Heartbeat*: processor time, client and server, that one waiter costs for each
  heartbeat (3.3 s; for etcd and ZooKeeper the session's keep-alives).
* **Holds** of one process at a TTL of 30 s. *Acquire* and *release*: the median of 200 new names
  beside them. *Renewal*: processor time, client and server, that one hold costs for each renewal.
* **Names** that were locked and released before. *Acquire* and *release* as above.

The last column of a figure is its growth over the last step. n log n in total allows × 1.3 for a
tenfold size; a step of more than × 2 is marked ⚠ and explained below the tables.

![Cost of an operation by size, both axes logarithmic](bench/growth.svg)
";

/// What is known about the steps that are marked.
const BENDS: &str = include_str!("bends.md");

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Renewal => "renewal",
            Self::Heartbeat => "heartbeat",
        }
    }
}

impl Subject {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Waiters => "Waiters of one name",
            Self::Holds => "Locks held",
            Self::Names => "Names known",
        }
    }
}

/// The stores of some points, in the order of the list.
pub(super) fn stores(points: &[Point]) -> impl Iterator<Item = &'static str> + '_ {
    STORES.into_iter().filter(|store| points.iter().any(|p| p.store == *store))
}

/// One line of a plot: sizes and costs, ascending.
pub(super) fn series(
    points: &[Point],
    store: &str,
    subject: Subject,
    figure: Figure,
) -> Vec<(usize, f64)> {
    let of = |p: &&Point| p.store == store && p.subject == subject && p.figure == figure;
    let mut series: Vec<_> = points.iter().filter(of).map(|p| (p.n, p.micros)).collect();
    series.sort_by_key(|(n, _)| *n);
    series
}

pub(super) fn page(points: &[Point]) -> String {
    format!("{HEAD}\n{}\n{BENDS}", table(points))
}

/// A table for each subject.
pub(crate) fn table(points: &[Point]) -> String {
    let mut text = String::new();
    for subject in Subject::ALL {
        let mut sizes: Vec<usize> =
            points.iter().filter(|p| p.subject == subject).map(|p| p.n).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut head = "| store |".to_owned();
        let mut rule = "|---|".to_owned();
        for figure in subject.figures() {
            for n in &sizes {
                let _ = write!(head, " {} at {} |", figure.title(), thousands(*n));
                rule.push_str("--:|");
            }
            head.push_str(" step |");
            rule.push_str("--:|");
        }
        let _ = writeln!(text, "## {}\n\n{head}\n{rule}", subject.title());
        for store in stores(points) {
            let mut row = format!("| {store} |");
            for &figure in subject.figures() {
                let series = series(points, store, subject, figure);
                for n in &sizes {
                    match series.iter().find(|(size, _)| size == n) {
                        Some((_, micros)) => drop(write!(row, " {} |", short(*micros))),
                        None => row.push_str(" – |"),
                    }
                }
                row.push_str(&step(&series));
            }
            let _ = writeln!(text, "{row}");
        }
        text.push('\n');
    }
    text
}

/// How much dearer an operation became over the last step, marked where that is too much.
fn step(series: &[(usize, f64)]) -> String {
    let [.., (_, before), (_, last)] = series else { return " – |".to_owned() };
    let factor = last / before.max(0.01);
    let mark = if factor > 2.0 { " ⚠" } else { "" };
    format!(" × {factor:.1}{mark} |")
}

fn short(micros: f64) -> String {
    if micros >= 100.0 { format!("{micros:.0}") } else { format!("{micros:.1}") }
}

pub(super) fn thousands(n: usize) -> String {
    match n {
        1_000.. => format!("{},{:03}", n / 1_000, n % 1_000),
        _ => n.to_string(),
    }
}
