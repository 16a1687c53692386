//! C3 and C5: what a resource saw.

use std::collections::HashMap;

use distlock_testkit::history::What;

use crate::evidence::{Evidence, Log};
use distlock_lab::record::Violation;

/// C3: accepted writes come in the order of their tokens, each from the one that was granted it.
pub(super) fn order(evidence: &Evidence, logs: &[&Log], ordered: bool) -> Vec<Violation> {
    let mut granted: HashMap<&str, u64> = HashMap::new();
    for e in &evidence.events {
        if let What::Granted { token, .. } | What::Entered { token, .. } = e.what {
            granted.insert(&e.who, token);
        }
    }
    let mut found = Vec::new();
    let mut put = |what: String, at: u64| {
        let at = Some(evidence.since(at));
        found.push(Violation { checker: "C3".to_owned(), what, at });
    };
    for log in logs {
        let mut highest: Option<(&str, u64)> = None;
        for w in log.writes.iter().filter(|w| w.accepted) {
            let Some(token) = w.token else { continue };
            // The lab lays out a stock before anybody is there.
            let Some(client) = evidence.client(&w.by) else { continue };
            if let Some((by, before)) = highest
                && token < before
                && !w.read
                && ordered
            {
                put(format!("{} wrote with token {token} after {by} with {before}", w.by), w.at);
            }
            if granted.get(w.by.as_str()) != Some(&token) {
                put(format!("client {client} wrote with token {token}, which it never had"), w.at);
            }
            if highest.is_none_or(|(_, before)| token > before) {
                highest = Some((&w.by, token));
            }
        }
    }
    found
}

/// C5: every write that was let in changed the value by one from what it was.
pub(super) fn conservation(evidence: &Evidence, logs: &[&Log]) -> Vec<Violation> {
    let mut found = Vec::new();
    for log in logs {
        let step = if log.kind == "stock" { -1 } else { 1 };
        let mut value = None;
        for w in &log.writes {
            let changes = w.accepted && !w.read && evidence.client(&w.by).is_some();
            let want = value.unwrap_or(if log.kind == "stock" { w.value + 1 } else { 0 }) + step;
            if changes && w.value != want {
                let what = format!("an update was lost: {} made it {}, not {want}", w.by, w.value);
                let at = Some(evidence.since(w.at));
                found.push(Violation { checker: "C5".to_owned(), what, at });
            }
            if w.value < 0 {
                let what = format!("{} sold what was not there: {}", w.by, w.value);
                let at = Some(evidence.since(w.at));
                found.push(Violation { checker: "C5".to_owned(), what, at });
            }
            value = Some(w.value);
        }
    }
    found
}
