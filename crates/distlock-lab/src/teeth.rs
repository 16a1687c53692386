//! The seeded bugs: each let loose in clients of its own, at a store and in a story that should show
//! it, until a checker does.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use distlock::teeth::Bug;
use distlock::{Clock, Error, Kind as ErrorKind, engine};
use distlock_lab::record::{Kind, Run, Tooth, Verdict};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::dice::Dice;
use crate::place::Place;
use crate::progress::Progress;
use crate::random;
use crate::run::{self, Title};
use crate::stores::{Setup, Store};
use crate::stories;

/// Where a bug is looked for: a store, a story and the act's name; `random` for random rounds.
struct Bite(Bug, &'static str, &'static str, &'static str);

const BITES: &[Bite] = &[
    Bite(Bug::ReleaseWithoutOwner, "sqlite", "late-release", ""),
    Bite(Bug::RenewSaysYes, "postgres-version", "clock", "forward, renewed"),
    Bite(Bug::TokenRisesOnReentry, "sqlite", "reentry", ""),
    Bite(Bug::TokenStartsAgain, "sqlite", "pause", ""),
    Bite(Bug::LastComeFirstServed, "sqlite", "starvation", ""),
    Bite(Bug::AnybodyReenters, "sqlite", "starvation", ""),
    Bite(Bug::DeadWaiterKeepsTurn, "postgres-version", "holder-dies", ""),
    Bite(Bug::NoTombstone, "redis", "drop-storm", "overtaken"),
    Bite(Bug::UndoMissing, "sqlite", "drop-storm", ""),
    Bite(Bug::DropReleasesNothing, "sqlite", "drop-storm", ""),
    Bite(Bug::ReaperTriesOnce, "redis", "cut", "dropped meanwhile"),
    Bite(Bug::DeadlineFromReply, "redis", "cut", "slow answers"),
    Bite(Bug::ReplayHasFullTtl, "redis", "lost-replies", "then cut off"),
    Bite(Bug::CheckTrustsTimer, "sqlite", "pause", ""),
    Bite(Bug::NoWatchdog, "sqlite", "long-work", ""),
    Bite(Bug::LostTakenForKept, "redis", "clock", "forward, renewed"),
    Bite(Bug::NoHeartbeat, "sqlite", "long-work", ""),
    Bite(Bug::RetryIsNew, "redis", "lost-replies", "in line"),
    Bite(Bug::RevokeFreesAtOnce, "mysql-version", "break", "of a paused holder"),
    Bite(Bug::StoreEndsEarly, "sqlite", "pause", ""),
    Bite(Bug::NoExpiry, "sqlite", "two-steps", ""),
    Bite(Bug::HalfIsMajority, "redlock3", "starvation", ""),
    Bite(Bug::SessionLossUnnoticed, "postgres-advisory", "server-dies", "while held"),
    Bite(Bug::LostRaceBelieved, "postgres-version", "starvation", ""),
];

/// How often a bug is given a chance to show itself.
const ROUNDS: u32 = 6;

/// Lets a bug loose in this process.
pub(crate) fn choose(bug: &str) {
    let known = Bug::named(bug).unwrap_or_else(|| panic!("no seeded bug is called {bug:?}"));
    #[cfg(feature = "teeth")]
    distlock::teeth::choose(known);
    #[cfg(not(feature = "teeth"))]
    panic!("this build has no seeded bugs, and so not {known:?}: build with the feature teeth");
}

fn words(bug: Bug) -> (&'static str, &'static str) {
    let (_, name, says) = Bug::ALL.iter().find(|(b, ..)| *b == bug).expect("it is listed");
    (name, says)
}

/// Lets every bug loose, or those that were named, some side by side.
pub(crate) fn run(args: &Args, seed: u64, stop: &CancellationToken) -> Result<Vec<Tooth>, Error> {
    if let Some(wrong) = args.bug.iter().find(|b| Bug::named(b).is_none()) {
        let all: Vec<_> = Bug::ALL.iter().map(|(_, name, _)| *name).collect();
        return Err(Error::new(ErrorKind::Usage, format!("no seeded bug is called {wrong:?}"))
            .with_hint(format!("one of: {}", all.join(", "))));
    }
    let wanted =
        |bite: &&Bite| args.bug.is_empty() || args.bug.iter().any(|name| name == words(bite.0).0);
    let queue: VecDeque<&'static Bite> = BITES.iter().filter(wanted).collect();
    let progress = Progress::new(u32::try_from(queue.len()).unwrap_or(0));
    let (queue, done) = (Arc::new(Mutex::new(queue)), Arc::new(Mutex::new(Vec::new())));
    let lanes: Vec<_> = (0..args.abreast.max(1))
        .filter_map(|_| {
            let (queue, done) = (queue.clone(), done.clone());
            let (progress, stop) = (progress.clone(), stop.clone());
            engine::thread("teeth", move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime");
                loop {
                    let bite = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(bite) = bite.filter(|_| !stop.is_cancelled()) else { return };
                    runtime.block_on(async {
                        tokio::select! {
                            () = stop.cancelled() => {}
                            tooth = hunt(bite, seed, &progress) => {
                                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                                done.push(tooth);
                            }
                        }
                    });
                }
            })
            .ok()
        })
        .collect();
    for lane in lanes {
        let _ = lane.join();
    }
    let mut teeth = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
    let place = |t: &Tooth| BITES.iter().position(|b| words(b.0).0 == t.bug);
    teeth.sort_by_key(place);
    Ok(teeth)
}

/// Lets one bug loose until it is caught.
async fn hunt(bite: &Bite, seed: u64, progress: &Progress) -> Tooth {
    let (bug, says) = words(bite.0);
    let progress = progress.of(bug);
    let started = Clock::system().now();
    let mut tooth = Tooth {
        bug: bug.to_owned(),
        says: says.to_owned(),
        caught_by: None,
        rounds: 0,
        seconds: 0.0,
    };
    while tooth.caught_by.is_none() && tooth.rounds < ROUNDS {
        progress.begins(&format!("round {}", tooth.rounds));
        let run = once(bite, seed, tooth.rounds, &progress).await;
        tooth.rounds += 1;
        tooth.caught_by = match run {
            Ok(run) => verdict(&run),
            Err(e) => {
                tooth.says = format!("could not be let loose: {e}");
                break;
            }
        };
    }
    tooth.seconds = Clock::system().now().since(started).as_secs_f64();
    let line = match &tooth.caught_by {
        Some(by) => format!("caught   {bug:<24} {by}"),
        None => format!("ESCAPED  {bug:<24} {}", tooth.says),
    };
    progress.ends(&format!("{line} (round {}, {:.1} s)", tooth.rounds, tooth.seconds));
    tooth
}

/// What saw it, if anything did.
fn verdict(run: &Run) -> Option<String> {
    if run.verdict == Verdict::AsExpected {
        return None;
    }
    let story = format!("in {} at {}", run.story, run.store);
    Some(match run.violations.first() {
        Some(first) => format!("{} {story}: {}", first.checker, first.what),
        None => format!("the story itself, {story}: {}", run.said),
    })
}

async fn once(bite: &Bite, seed: u64, round: u32, progress: &Progress) -> Result<Run, Error> {
    let Bite(bug, store, story, act) = bite;
    let (store, bug) = (Store::named(store)?, words(*bug).0);
    let seed = Dice::of(seed, &format!("{bug}/{round}")).next();
    if *story == "random" {
        let place = Rc::new(Place::start(store, Setup::USUAL).await?);
        let title = Title { tooth: Some(bug), ..random::title(round, seed) };
        let run = run::play(&title, place, progress, |s| Box::pin(random::round(s, seed)));
        return Ok(run.await);
    }
    let found = stories::for_store(store).find(|(s, a)| s.id == *story && a.name == *act);
    let Some((story, act)) = found else {
        let what = format!("no story {story:?} {act:?} for {}", store.name);
        return Err(Error::new(ErrorKind::Usage, what));
    };
    let expected = (act.expect)(store).unwrap_or(stories::Expected::Clean);
    let (kind, ttl) = (Kind::Story, act.ttl);
    let (id, name) = (story.id, act.name);
    let title = Title { story: id, act: name, kind, round, seed, expected, ttl, tooth: Some(bug) };
    let place = Rc::new(Place::start(store, act.setup).await?);
    Ok(run::play(&title, place, progress, |s| (act.tell)(s)).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_is_looked_for_where_its_story_is_told() {
        for (bug, name, _) in Bug::ALL {
            let bites: Vec<_> = BITES.iter().filter(|b| b.0 == *bug).collect();
            assert!(!bites.is_empty(), "{name} is never looked for");
            for Bite(_, store, story, act) in bites {
                let store = Store::named(store).unwrap();
                let told =
                    |(s, a): (&stories::Story, &stories::Act)| s.id == *story && a.name == *act;
                assert!(*story == "random" || stories::for_store(store).any(told), "{name}");
            }
        }
        assert!(Bug::ALL.len() >= 20);
    }
}
