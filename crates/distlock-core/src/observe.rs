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
//!
//! Keys with their labels are built once a client. Handles are not cached: a recorder may be installed
//! late or for one thread only, and a cached handle would go on writing to the recorder before it.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, with_recorder};

use crate::FullName;

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Where the numbers of one client go.
#[derive(Clone, Debug)]
pub(crate) struct Observer(Arc<Series>);

#[derive(Debug)]
struct Series {
    store: &'static str,
    by_lock: bool,
    held: Key,
    waiting: Key,
    wait_seconds: Outcomes,
    hold_seconds: Outcomes,
    renew_seconds: Outcomes,
}

/// One metric's keys, by outcome.
#[derive(Debug)]
struct Outcomes {
    metric: &'static str,
    keys: Vec<(&'static str, Key)>,
}

impl Outcomes {
    fn new(store: &'static str, metric: &'static str, outcomes: &[&'static str]) -> Self {
        let key = |outcome: &&'static str| (*outcome, key(store, metric, Some(outcome), None));
        Self { metric, keys: outcomes.iter().map(key).collect() }
    }
}

fn key(
    store: &'static str,
    metric: &'static str,
    outcome: Option<&'static str>,
    lock: Option<&FullName>,
) -> Key {
    let mut labels = vec![Label::from_static_parts("store", store)];
    labels.extend(outcome.map(|o| Label::from_static_parts("outcome", o)));
    labels.extend(lock.map(|l| Label::new("lock", l.to_string())));
    Key::from_parts(metric, labels)
}

impl Observer {
    pub(crate) fn new(store: &'static str, by_lock: bool) -> Self {
        let outcomes = |metric, all: &[_]| Outcomes::new(store, metric, all);
        Self(Arc::new(Series {
            store,
            by_lock,
            held: key(store, "distlock_held", None, None),
            waiting: key(store, "distlock_waiting", None, None),
            wait_seconds: outcomes(
                "distlock_wait_seconds",
                &["granted", "busy", "error", "dropped"],
            ),
            hold_seconds: outcomes(
                "distlock_hold_seconds",
                &["released", "lost", "detached", "unknown"],
            ),
            renew_seconds: outcomes("distlock_renew_seconds", &["kept", "lost", "unknown"]),
        }))
    }

    fn record(&self, series: &Outcomes, lock: &FullName, outcome: &'static str, d: Duration) {
        let Series { store, by_lock, .. } = &*self.0;
        let record = |key: &Key| with_recorder(|r| r.register_histogram(key, &METADATA).record(d));
        match series.keys.iter().find(|(known, _)| *known == outcome) {
            Some((_, key)) if !by_lock => record(key),
            _ => record(&key(store, series.metric, Some(outcome), by_lock.then_some(lock))),
        }
    }

    pub(crate) fn waited(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        self.record(&self.0.wait_seconds, lock, outcome, d);
    }

    pub(crate) fn held(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        self.record(&self.0.hold_seconds, lock, outcome, d);
    }

    pub(crate) fn renewed(&self, lock: &FullName, outcome: &'static str, d: Duration) {
        self.record(&self.0.renew_seconds, lock, outcome, d);
    }

    pub(crate) fn lost(&self, lock: &FullName, why: &'static str) {
        let Series { store, by_lock, .. } = &*self.0;
        let key = key(store, "distlock_lost_total", Some(why), by_lock.then_some(lock));
        with_recorder(|r| r.register_counter(&key, &METADATA).increment(1));
    }

    pub(crate) fn holds(&self, change: f64) {
        with_recorder(|r| r.register_gauge(&self.0.held, &METADATA).increment(change));
    }

    pub(crate) fn waits(&self, change: f64) {
        with_recorder(|r| r.register_gauge(&self.0.waiting, &METADATA).increment(change));
    }
}
