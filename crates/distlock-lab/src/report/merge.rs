//! Several runs of the lab become one report.

use std::collections::HashMap;

use crate::record::{Kind, Record, Run};

/// Two records as one, `later` being the one made later.
///
/// The same run (store, story, kind, round and seed) counts once, as it ended the later time; so
/// does a seeded bug. Seed and date are the later ones (each run keeps its own seed); versions that
/// differ are both named, because the page must not speak for one that did not make all its runs.
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
        runs: joined(earlier.runs, later.runs, key),
        teeth: joined(earlier.teeth, later.teeth, |tooth| tooth.bug.clone()),
    }
}

/// What makes a run the same run.
fn key(run: &Run) -> (String, String, Kind, u32, u64) {
    (run.store.clone(), run.story.clone(), run.kind, run.round, run.seed)
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
