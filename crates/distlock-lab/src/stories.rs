//! The stories: one file each, with what is expected of every store beside it. To add one: its file,
//! and a line in [`ALL`].

mod break_lock;
mod clock;
mod cut;
mod deadlock;
mod dies;
mod drop_storm;
mod failover;
mod follower;
mod herd;
mod late_release;
mod leader_dies;
mod long_work;
mod lost_replies;
mod pause;
mod pool;
mod redlock;
mod reentry;
mod server_dies;
mod session_lost;
mod starvation;
mod token_back;
mod two_steps;
mod waiter_lost;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::scene::{Scene, Told};
use crate::stores::{self, Setup, Store};
use distlock_lab::record::Kind;

/// A future of the lab: each store has a thread of its own, and nothing moves between them.
pub(crate) type LocalFut<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What an act is expected to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// Nothing is wrong.
    Clean,
    /// Something goes wrong, at least one of these checkers says so, and no other says anything.
    Violates(&'static [&'static str]),
}

/// One way to tell a story.
pub(crate) struct Act {
    pub(crate) kind: Kind,
    /// What is different in it; shown beside the story's id, empty for the story itself.
    pub(crate) name: &'static str,
    pub(crate) setup: Setup,
    /// A TTL that suits it; stores raise it to what they serve.
    pub(crate) ttl: Duration,
    /// What is expected of a store; nothing where the story does not fit.
    pub(crate) expect: Expects,
    pub(crate) tell: Tell,
}

type Expects = fn(Store) -> Option<Expected>;
type Tell = for<'a> fn(&'a mut Scene) -> LocalFut<'a, Told>;

/// A story as it should be, with a TTL in seconds.
const fn story(ttl: u64, expect: Expects, tell: Tell) -> Act {
    let ttl = Duration::from_secs(ttl);
    Act { kind: Kind::Story, name: "", setup: Setup::USUAL, ttl, expect, tell }
}

/// The same without what keeps it safe.
const fn control(name: &'static str, ttl: u64, expect: Expects, tell: Tell) -> Act {
    Act { kind: Kind::Control, name, ..story(ttl, expect, tell) }
}

impl Act {
    /// With servers set up in another way.
    const fn on(self, setup: Setup) -> Self {
        Self { setup, ..self }
    }

    /// Another telling of the same story.
    const fn called(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// What is expected of every store.
fn clean(_: Store) -> Option<Expected> {
    Some(Expected::Clean)
}

/// What is expected of every store whose locks end by time; the kernel's do not.
fn clean_where_leases_end(store: Store) -> Option<Expected> {
    (store.name != "file").then_some(Expected::Clean)
}

/// A story.
pub(crate) struct Story {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// What one learns from it.
    pub(crate) teaches: &'static str,
    /// The stores it is about, the most telling first: of each family the quick lab takes one.
    pub(crate) about: &'static [&'static str],
    pub(crate) acts: &'static [Act],
}

impl Story {
    /// As the record has it.
    pub(crate) fn record(&self) -> distlock_lab::record::Story {
        let [id, title, teaches] = [self.id, self.title, self.teaches].map(str::to_owned);
        distlock_lab::record::Story { id, title, teaches }
    }
}

/// One store of each family, for the quick lab.
const OF_EACH_FAMILY: [&str; 4] = ["redis", "postgres-advisory", "redlock3", "etcd"];

/// Whether the quick lab tells an act at a store: of each family at the first one that the story is
/// about, or else at the one that stands for the family.
pub(crate) fn in_short(story: &Story, act: &Act, store: Store) -> bool {
    let fits = |s: &&Store| s.family == store.family && (act.expect)(**s).is_some();
    let named = |name: &str| stores::ALL.iter().filter(fits).find(|s| s.name == name);
    let mut first = story.about.iter().chain(&OF_EACH_FAMILY).filter_map(|name| named(name));
    first.next().or_else(|| stores::ALL.iter().find(fits)) == Some(&store)
}

/// Every story, in the order of the report.
pub(crate) const ALL: &[&Story] = &[
    &pause::STORY,
    &late_release::STORY,
    &dies::STORY,
    &two_steps::STORY,
    &long_work::STORY,
    &cut::STORY,
    &lost_replies::STORY,
    &drop_storm::STORY,
    &reentry::STORY,
    &starvation::STORY,
    &break_lock::STORY,
    &server_dies::STORY,
    &deadlock::STORY,
    &clock::STORY,
    &token_back::STORY,
    &failover::STORY,
    &redlock::STORY,
    &herd::STORY,
    &session_lost::STORY,
    &follower::STORY,
    &waiter_lost::STORY,
    &leader_dies::STORY,
    &pool::STORY,
];

/// The acts of all stories that fit a store.
pub(crate) fn for_store(store: Store) -> impl Iterator<Item = (&'static Story, &'static Act)> {
    let acts = ALL.iter().flat_map(|story| story.acts.iter().map(move |act| (*story, act)));
    acts.filter(move |(_, act)| (act.expect)(store).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_short_every_act_is_told_once_for_each_family_it_fits() {
        for story in ALL {
            assert!(story.about.iter().all(|name| Store::named(name).is_ok()), "{}", story.id);
            for act in story.acts {
                let fits: Vec<_> =
                    stores::ALL.iter().filter(|s| (act.expect)(**s).is_some()).collect();
                assert!(!fits.is_empty(), "{}:{} is never told", story.id, act.name);
                for store in &fits {
                    let family = fits.iter().filter(|s| s.family == store.family);
                    let told = family.filter(|s| in_short(story, act, ***s)).count();
                    assert_eq!(told, 1, "{}:{} as {:?}", story.id, act.name, store.family);
                }
            }
        }
    }
}
