//! What the page is made of: the record's stores and stories, and which runs get a row.

use std::collections::{HashMap, HashSet};

use crate::record::{Kind, Record, Run, Verdict};

/// How many random rounds of each store get a row and a picture, besides the unexpected ones.
pub(super) const ROUNDS: usize = 3;
/// How many unexpected random rounds of each store do: a store that always fails shows it in these.
pub(super) const UNEXPECTED_ROUNDS: usize = 50;

/// A story and its place on the page.
pub(super) struct Chapter<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) teaches: &'a str,
}

/// The record, with every store and story that a run names, also one its lists forgot.
pub(super) struct Outline<'a> {
    pub(super) record: &'a Record,
    /// The stores that have a run.
    pub(super) stores: Vec<&'a str>,
    /// Those that have none.
    pub(super) idle: Vec<&'a str>,
    pub(super) chapters: Vec<Chapter<'a>>,
}

impl<'a> Outline<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        let mut stores: Vec<&str> = Vec::new();
        let named = record.stores.iter().chain(record.runs.iter().map(|run| &run.store));
        for store in named {
            if !stores.contains(&store.as_str()) {
                stores.push(store);
            }
        }
        let ran: HashSet<&str> = record.runs.iter().map(|run| run.store.as_str()).collect();
        let (stores, idle) = stores.into_iter().partition(|store| ran.contains(store));
        let mut chapters: Vec<Chapter<'_>> = Vec::new();
        for story in &record.stories {
            let (id, title, teaches) = (&story.id, &story.title, &story.teaches);
            chapters.push(Chapter { id, title, teaches });
        }
        for run in record.runs.iter().filter(|run| run.kind != Kind::Random) {
            if !chapters.iter().any(|chapter| chapter.id == run.story) {
                chapters.push(Chapter { id: &run.story, title: &run.story, teaches: "" });
            }
        }
        Outline { record, stores, idle, chapters }
    }

    /// The runs of a story with their place in the record, store by store, controls last.
    pub(super) fn told(&self, story: &str) -> Vec<(usize, &'a Run)> {
        let mut runs: Vec<_> = self.all().filter(|(_, run)| run.story == story).collect();
        runs.retain(|(_, run)| run.kind != Kind::Random);
        runs.sort_by_key(|(_, run)| (self.column(&run.store), run.kind == Kind::Control));
        runs
    }

    /// The random rounds of a store.
    pub(super) fn rounds(&self, store: &str) -> Vec<(usize, &'a Run)> {
        let random = self.all().filter(|(_, run)| run.kind == Kind::Random);
        random.filter(|(_, run)| run.store == store).collect()
    }

    /// The runs that get a row, the ones to look at first in front.
    pub(super) fn listed(&self) -> Vec<(usize, &'a Run)> {
        let mut seen: HashMap<(&str, bool), usize> = HashMap::new();
        let mut listed: Vec<_> = self
            .all()
            .filter(|(_, run)| {
                if run.kind != Kind::Random {
                    return true;
                }
                let unexpected = run.verdict == Verdict::Unexpected;
                let rounds = seen.entry((&run.store, unexpected)).or_default();
                *rounds += 1;
                *rounds <= if unexpected { UNEXPECTED_ROUNDS } else { ROUNDS }
            })
            .collect();
        listed.sort_by_key(|(_, run)| match (run.verdict, run.kind) {
            (Verdict::Unexpected, _) => 0,
            (_, Kind::Control) => 1,
            (_, Kind::Story) => 2,
            (_, Kind::Random) => 3,
        });
        listed
    }

    /// The title of a story.
    pub(super) fn title(&self, story: &'a str) -> &'a str {
        self.chapters.iter().find(|chapter| chapter.id == story).map_or(story, |c| c.title)
    }

    fn all(&self) -> impl Iterator<Item = (usize, &'a Run)> + use<'a> {
        self.record.runs.iter().enumerate()
    }

    fn column(&self, store: &str) -> usize {
        self.stores.iter().position(|s| *s == store).unwrap_or(usize::MAX)
    }
}
