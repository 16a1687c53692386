//! Locks as people and programs read them.

use std::time::Duration;

use distlock::{HoldInfo, Human, LockInfo, WaiterInfo};
use serde_json::{Value, json};

/// A lock as a document. Request ids stay out: with one, anybody could release the hold.
pub(crate) fn document(lock: &LockInfo) -> Value {
    json!({
        "name": lock.lock.name,
        "namespace": lock.lock.space,
        "holders": lock.holds.iter().map(hold).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

fn hold(hold: &HoldInfo) -> Value {
    json!({
        "token": hold.holder.token,
        "last_token": hold.tokens().last(),
        "label": hold.holder.label,
        "owner": hold.holder.owner,
        "mode": hold.mode,
        "age_seconds": seconds(hold.holder.age),
        "left_seconds": hold.holder.left.map(seconds),
        "lingering": hold.lingering,
        "revoked": hold.revoked,
    })
}

fn waiter(waiter: &WaiterInfo) -> Value {
    json!({
        "label": waiter.label,
        "owner": waiter.owner,
        "mode": waiter.mode,
        "waited_seconds": seconds(waiter.waited),
    })
}

/// Seconds, to the microsecond: what a store's clock is worth.
pub(crate) fn seconds(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e6
}

/// What is special about a hold, in a word.
pub(crate) fn state(hold: &HoldInfo) -> &'static str {
    match (hold.revoked, hold.lingering) {
        (true, _) => "revoked",
        (false, true) => "kept by min-hold",
        (false, false) => "held",
    }
}

/// The tokens that a hold may use, the first and the last.
pub(crate) fn tokens(hold: &HoldInfo) -> String {
    let tokens = hold.tokens();
    match tokens.len().get() {
        1 => tokens.first().to_string(),
        _ => format!("{}–{}", tokens.first(), tokens.last()),
    }
}

/// A name on one line, whatever it holds.
pub(crate) fn plain(name: &str) -> String {
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '"';
    if name.contains(odd) { format!("{name:?}") } else { name.to_owned() }
}

/// A table of locks, readable without colour.
pub(crate) fn table(locks: &[LockInfo]) -> String {
    let mut rows =
        vec![["NAME", "STATE", "AGE", "LEFT", "TOKEN", "WAITING", "HOLDER"].map(str::to_owned)];
    for lock in locks {
        let waiting = lock.waiters.len().to_string();
        let name = plain(lock.lock.name.as_str());
        if lock.holds.is_empty() {
            rows.push([&name, "free", "-", "-", "-", &waiting, "-"].map(str::to_owned));
        }
        for hold in &lock.holds {
            rows.push([
                name.clone(),
                state(hold).to_owned(),
                Human(hold.holder.age).to_string(),
                hold.holder.left.map_or("-".to_owned(), |d| Human(d).to_string()),
                tokens(hold),
                waiting.clone(),
                hold.holder.label.to_string(),
            ]);
        }
    }
    columns(&rows)
}

/// Cells under each other.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
