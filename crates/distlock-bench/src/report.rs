//! Rows for people and for machines.

use std::time::Duration;

use serde::Serialize;

/// One measured scene.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) store: String,
    pub(crate) scene: &'static str,
    /// What is measured, with its unit.
    pub(crate) figure: String,
    /// Ours.
    pub(crate) lock: f64,
    /// The raw store calls, where there is such a thing.
    pub(crate) raw: Option<f64>,
    /// `lock / raw`.
    pub(crate) ratio: Option<f64>,
}

impl Row {
    pub(crate) fn new(
        store: &str,
        scene: &'static str,
        figure: impl Into<String>,
        lock: f64,
        raw: Option<f64>,
    ) -> Self {
        let ratio = raw.filter(|r| *r > 0.0).map(|r| lock / r);
        Self { store: store.to_owned(), scene, figure: figure.into(), lock, raw, ratio }
    }
}

/// The q-quantile of some times, in microseconds.
pub(crate) fn quantile(times: &mut [Duration], q: f64) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = (last as f64 * q).round() as usize;
    times.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e6)
}

pub(crate) fn print(rows: &[Row], json: bool) {
    if rows.is_empty() {
        return;
    }
    if json {
        for row in rows {
            println!("{}", serde_json::to_string(row).unwrap_or_default());
        }
        return;
    }
    println!(
        "{:<15} {:<24} {:<28} {:>12} {:>12} {:>8}",
        "store", "scene", "figure", "lock", "raw", "ratio"
    );
    for row in rows {
        let number = |n: Option<f64>, digits| n.map_or("-".to_owned(), |n| format!("{n:.digits$}"));
        println!(
            "{:<15} {:<24} {:<28} {:>12} {:>12} {:>8}",
            row.store,
            row.scene,
            row.figure,
            number(Some(row.lock), 1),
            number(row.raw, 1),
            number(row.ratio, 2)
        );
    }
}
