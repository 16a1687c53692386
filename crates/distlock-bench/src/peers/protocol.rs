//! What a program that takes locks is told and what it answers: `bench/peers/README.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A program's first line: it is connected and has warmed up.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// The library and its version.
    pub(crate) ready: String,
}

/// A program's second line: what it measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    /// How many locks each task was granted.
    pub(crate) grants: Vec<u64>,
    /// From the request to the grant.
    pub(crate) wait: Histogram,
    /// From the request to the end of the release.
    pub(crate) cycle: Histogram,
}

/// Durations, counted by the logarithm of their nanoseconds: 16 buckets for a doubling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    const STEPS: f64 = 16.0;

    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = time.as_secs_f64().max(1e-9) * 1e9;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bucket = (Self::STEPS * nanos.log2()).max(0.0) as u32;
        *self.0.entry(bucket).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    /// The q-quantile in microseconds: the middle of its bucket, so at most 2.2 % off.
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let total: u64 = self.0.values().sum();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        #[allow(clippy::cast_precision_loss)]
        let rank = ((total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in &self.0 {
            seen += count;
            if seen >= rank {
                return ((f64::from(*bucket) + 0.5) / Self::STEPS).exp2() / 1e3;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_gives_quantiles_within_its_buckets() {
        let mut one = Histogram::default();
        for micros in 1..=1000 {
            one.add(Duration::from_micros(micros));
        }
        let mut two = Histogram::default();
        two.add(Duration::from_secs(2));
        one.merge(&two);
        for (q, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 2e6)] {
            let got = one.quantile(q);
            assert!((got / expected - 1.0).abs() < 0.04, "{q}: {got} for {expected}");
        }
        assert!(Histogram::default().quantile(0.5) < f64::EPSILON);
    }

    #[test]
    fn the_lines_of_a_program_are_read() {
        let line = r#"{"seconds": 2.5, "grants": [3, 1], "wait": {"312": 4}, "cycle": {"320": 3, "330": 1}}"#;
        let measured: Measured = serde_json::from_str(line).unwrap();
        assert_eq!(measured.grants, [3, 1]);
        assert!((measured.wait.quantile(0.5) - 757.7).abs() < 0.1, "{measured:?}");
        let again = serde_json::to_string(&measured).unwrap();
        assert_eq!(serde_json::from_str::<Measured>(&again).unwrap(), measured);
        let ready: Ready = serde_json::from_str(r#"{"ready": "redis 8.1.0"}"#).unwrap();
        assert_eq!(ready.ready, "redis 8.1.0");
    }

    #[test]
    fn a_line_that_lacks_a_figure_is_refused() {
        assert!(serde_json::from_str::<Measured>(r#"{"seconds": 2.5, "grants": [3]}"#).is_err());
        assert!(
            serde_json::from_str::<Measured>(r#"{"seconds":1,"grants":[-1],"wait":{},"cycle":{}}"#)
                .is_err()
        );
    }
}
