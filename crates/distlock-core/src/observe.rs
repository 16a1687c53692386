//! What monitoring sees: metrics through the `metrics` facade, events through `tracing`.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `distlock_wait_seconds` | histogram | store, outcome (granted, busy, error, dropped) |
//! | `distlock_hold_seconds` | histogram | store, outcome (released, lost, detached, unknown) |
//! | `distlock_renew_seconds` | histogram | store, outcome (kept, lost, unknown) |
//! | `distlock_lost_total` | counter | store, outcome (why) |
//! | `distlock_held` | gauge | store |
//! | `distlock_waiting` | gauge | store |
//!
//! The lock's name is a label only when asked for: names are many, and each would be a series.

use std::time::Duration;

use metrics::{Label, counter, gauge, histogram};

use crate::name::FullName;

/// Where the numbers of one client go.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    store: &'static str,
    by_lock: bool,
}

impl Observer {
    pub(crate) fn new(store: &'static str, by_lock: bool) -> Self {
        Self { store, by_lock }
    }

    fn labels(&self, lock: Option<&FullName>, outcome: Option<&'static str>) -> Vec<Label> {
        let mut labels = vec![Label::from_static_parts("store", self.store)];
        labels.extend(outcome.map(|o| Label::from_static_parts("outcome", o)));
        let lock = lock.filter(|_| self.by_lock);
        labels.extend(lock.map(|l| Label::new("lock", l.to_string())));
        labels
    }

    pub(crate) fn waited(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        histogram!("distlock_wait_seconds", self.labels(Some(lock), Some(outcome))).record(d);
    }

    pub(crate) fn held(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        histogram!("distlock_hold_seconds", self.labels(Some(lock), Some(outcome))).record(d);
    }

    pub(crate) fn renewed(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        histogram!("distlock_renew_seconds", self.labels(Some(lock), Some(outcome))).record(d);
    }

    pub(crate) fn lost(&self, lock: &FullName, why: &'static str) {
        counter!("distlock_lost_total", self.labels(Some(lock), Some(why))).increment(1);
    }

    pub(crate) fn holds(&self, change: f64) {
        gauge!("distlock_held", self.labels(None, None)).increment(change);
    }

    pub(crate) fn waits(&self, change: f64) {
        gauge!("distlock_waiting", self.labels(None, None)).increment(change);
    }
}
