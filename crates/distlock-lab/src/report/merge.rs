//! Several runs of the lab become one report.

use std::collections::HashMap;

use crate::record::{Record, Run};

/// Two records as one, `later` being the one made later.
///
/// The same run (store, story, kind, round and seed) counts once, as it ended the later time. A
/// story that is several runs under one name keeps them all. Seed and date are the later ones (each
/// run keeps its own seed); versions that differ are both named, because the page must not speak for one that did not make all its runs.
pub fn merge(earlier: Record, later: Record) -> Record {
    let version = match earlier.version.split(", ").any(|version| version == later.version) {
        true => earlier.version,
        false if earlier.version.is_empty() => later.version,
        false => format!("{}, {}", earlier.version, later.version),
    };
    Record {
        seed: later.seed,
        started: later.started,
        version,
        stores: joined(earlier.stores, later.stores, String::clone),
        stories: joined(earlier.stories, later.stories, |story| story.id.clone()),
        runs: unnumbered(joined(numbered(earlier.runs), numbered(later.runs), |(n, run)| {
            (*n, key(run))
        })),
    }
}

/// What makes a run the same run.
type Key = (String, String, u8, u32, u64);

fn key(run: &Run) -> Key {
    (run.store.clone(), run.story.clone(), run.kind as u8, run.round, run.seed)
}

/// Each run with how many of its key came before it in its own record: the acts of one story.
fn numbered(runs: Vec<Run>) -> Vec<(usize, Run)> {
    let mut seen: HashMap<Key, usize> = HashMap::new();
    let number = |run: Run| {
        let before = seen.entry(key(&run)).or_default();
        *before += 1;
        (*before, run)
    };
    runs.into_iter().map(number).collect()
}

fn unnumbered(runs: Vec<(usize, Run)>) -> Vec<Run> {
    runs.into_iter().map(|(_, run)| run).collect()
}

/// The items of both in their order; of two with one key the later, in the earlier one's place.
fn joined<T, K: std::hash::Hash + Eq>(
    earlier: Vec<T>,
    later: Vec<T>,
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let mut places: HashMap<K, usize> = HashMap::new();
    let mut all: Vec<T> = Vec::new();
    for item in earlier.into_iter().chain(later) {
        match places.get(&key(&item)) {
            Some(place) => all[*place] = item,
            None => {
                places.insert(key(&item), all.len());
                all.push(item);
            }
        }
    }
    all
}
