//! What the page's script draws from: the listed runs, small.
//!
//! Times become microseconds, and a token its place among the run's tokens: JavaScript's numbers
//! cannot hold every token, and the pictures colour by order anyway. What does not fit into the
//! budget is left out, random rounds first, and the page says so where the picture would be.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::outline::Outline;
use super::shown::came_late;
use crate::record::{End, Hold, Run};

/// How many bars, lines or dots of each sort a picture is given; a thousand fill it.
pub(super) const MARKS: usize = 1000;
/// How many bytes all the pictures may take.
pub(super) const BUDGET: usize = 3_000_000;

/// `{"12": {…}, …}`: a timeline for each listed run, by its place in the record.
pub(super) fn json(outline: &Outline<'_>) -> String {
    let mut parts = Vec::new();
    let mut size = 0;
    for (place, run) in outline.listed() {
        let part = format!("\"{place}\":{}", timeline(run));
        if size + part.len() > BUDGET {
            continue;
        }
        size += part.len();
        parts.push(part);
    }
    format!("{{{}}}", parts.join(",\n"))
}

fn timeline(run: &Run) -> Value {
    let tokens = tokens(run);
    let token = |token: u64| tokens.get(&token).copied();
    let telling = |lock: usize, from: u64, until: u64| {
        run.overlaps.iter().any(|o| o.lock == lock && from <= o.until && o.from <= until)
    };
    let (holds, holds_left) = thinned(&run.holds, |hold: &Hold| {
        hold.end != End::Released || telling(hold.lock, hold.from, hold.until)
    });
    let (waits, waits_left) = thinned(&run.waits, |_| false);
    let (writes, writes_left) = thinned(&run.writes, |w| !w.accepted || came_late(run, w));
    let (mut faults, faults_left) = thinned(&run.faults, |_| false);
    faults.sort_by_key(|fault| fault.at);
    let (overlaps, overlaps_left) = thinned(&run.overlaps, |_| false);
    let moments: Vec<u64> =
        run.violations.iter().filter_map(|v| v.at).take(MARKS).map(micros).collect();
    json!({
        "time": micros(run.nanos),
        "clients": run.clients,
        "locks": run.locks,
        "tokens": tokens.keys().map(u64::to_string).collect::<Vec<_>>(),
        "holds": holds.iter().map(|h| json!([
            h.client, h.lock, token(h.token), micros(h.from), micros(h.until), h.end
        ])).collect::<Vec<_>>(),
        "waits": waits.iter().map(|w| json!([
            w.client, w.lock, micros(w.from), micros(w.until)
        ])).collect::<Vec<_>>(),
        "faults": faults.iter().map(|f| json!([
            micros(f.at), f.until.map(micros), f.what, f.whom
        ])).collect::<Vec<_>>(),
        "writes": writes.iter().map(|w| json!([
            w.client, w.lock, w.token.and_then(token), micros(w.at),
            u8::from(w.accepted), u8::from(w.fenced), u8::from(came_late(run, w))
        ])).collect::<Vec<_>>(),
        "overlaps": overlaps.iter().map(|o| json!([
            o.lock, micros(o.from), micros(o.until)
        ])).collect::<Vec<_>>(),
        "moments": moments,
        "left": [holds_left, waits_left, writes_left, faults_left, overlaps_left],
    })
}

/// The run's tokens and the place of each in their order.
fn tokens(run: &Run) -> BTreeMap<u64, usize> {
    let held = run.holds.iter().map(|hold| hold.token);
    let written = run.writes.iter().filter_map(|write| write.token);
    let mut tokens: BTreeMap<u64, usize> = held.chain(written).map(|token| (token, 0)).collect();
    for (place, order) in tokens.values_mut().enumerate() {
        *order = place;
    }
    tokens
}

fn micros(nanos: u64) -> u64 {
    nanos / 1000
}

/// At most [`MARKS`] of the items, and how many were left out: the telling ones first, then an even
/// sample of the rest, all in their order.
fn thinned<T>(items: &[T], telling: impl Fn(&T) -> bool) -> (Vec<&T>, usize) {
    if items.len() <= MARKS {
        return (items.iter().collect(), 0);
    }
    let told = items.iter().filter(|item| telling(item)).count().min(MARKS);
    let (rest, room) = (items.iter().filter(|item| !telling(item)).count(), MARKS - told);
    let (mut taken_told, mut seen) = (0, 0);
    let kept: Vec<&T> = items
        .iter()
        .filter(|item| {
            if telling(item) {
                taken_told += 1;
                return taken_told <= told;
            }
            seen += 1;
            // Taken where the share that is due grows by one.
            seen * room / rest > (seen - 1) * room / rest
        })
        .collect();
    let left = items.len() - kept.len();
    (kept, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_thinned_evenly_and_keeps_what_tells() {
        let items: Vec<usize> = (0..50_000).collect();
        let (kept, left) = thinned(&items, |i| *i == 31_337);
        assert_eq!((kept.len(), left), (MARKS, 50_000 - MARKS));
        assert!(kept.contains(&&31_337));
        assert!(kept.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] < 100));
    }

    #[test]
    fn even_what_tells_is_bounded() {
        let items: Vec<usize> = (0..3 * MARKS).collect();
        assert_eq!(thinned(&items, |_| true).0.len(), MARKS);
        assert_eq!(thinned(&items[..MARKS], |_| false), (items[..MARKS].iter().collect(), 0));
    }
}
