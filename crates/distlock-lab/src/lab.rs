//! All of it: the stores side by side, each with its stories and its rounds.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use distlock::backend::{Clock, engine};
use distlock::{Error, Kind as ErrorKind};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::dice::Dice;
use crate::place::Place;
use crate::progress::Progress;
use crate::random;
use crate::run::{self, Title};
use crate::stores::{self, Setup, Store};
use crate::stories::{self, Act, Story};
use distlock_lab::record::{Kind, Run, Verdict, Violation};

/// What is to be done at one store.
pub(crate) struct Job {
    pub(crate) store: Store,
    acts: Vec<(&'static Story, &'static Act)>,
    rounds: Vec<u32>,
}

impl Job {
    fn runs(&self) -> u32 {
        u32::try_from(self.acts.len() + self.rounds.len()).unwrap_or(u32::MAX)
    }
}

/// What the arguments ask for, store by store, without what is done already.
pub(crate) fn jobs(args: &Args, seed: u64, done: &[Run]) -> Result<Vec<Job>, Error> {
    let well = done.iter().filter(|run| run.verdict == Verdict::AsExpected);
    let well: HashSet<(&str, u64)> = well.map(|run| (run.store.as_str(), run.seed)).collect();
    let stores: Vec<Store> = match args.store.is_empty() {
        true => stores::ALL.to_vec(),
        false => args.store.iter().map(|s| Store::named(s)).collect::<Result<_, _>>()?,
    };
    for story in &args.story {
        let known: Vec<_> = stories::ALL.iter().map(|s| s.id).chain(["random"]).collect();
        if !known.contains(&story.as_str()) {
            return Err(Error::new(ErrorKind::Usage, format!("the lab has no story {story:?}"))
                .with_hint(format!("one of: {}", known.join(", "))));
        }
    }
    let wanted = |id: &str| args.story.is_empty() || args.story.iter().any(|s| s == id);
    let named = !args.store.is_empty();
    let mut jobs: Vec<Job> = stores
        .into_iter()
        .map(|store| {
            let tells = |story: &Story, act: &Act| {
                let all = !args.quick || named;
                wanted(story.id) && (all || stories::in_short(story, act, store))
            };
            let left = |seed: u64| !well.contains(&(store.name, seed));
            let acts = stories::for_store(store)
                .filter(|(story, act)| tells(story, act) && left(act_seed(seed, store, story, act)))
                .collect();
            let rounds = args.rounds.unwrap_or(if args.quick { 5 } else { 20 });
            let rounds = if wanted("random") { args.from..args.from + rounds } else { 0..0 };
            let rounds = rounds.filter(|round| left(round_seed(seed, store, *round))).collect();
            Job { store, acts, rounds }
        })
        .filter(|job| job.runs() > 0)
        .collect();
    // The longest first, so that none is left alone at the end.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.runs() * job.store.weight()));
    Ok(jobs)
}

/// What decides everything about one act at one store.
fn act_seed(seed: u64, store: Store, story: &Story, act: &Act) -> u64 {
    Dice::of(seed, &format!("{}/{}", store.name, act.id(story))).next()
}

/// What decides everything about one random round.
fn round_seed(seed: u64, store: Store, round: u32) -> u64 {
    Dice::of(seed, &format!("{}/random/{round}", store.name)).next()
}

/// Runs jobs, so many at a time, each on a thread of its own. Ends early, with what there is, when
/// `stop` is cancelled. What there is goes to
/// `save` now and then.
pub(crate) fn run(
    jobs: Vec<Job>,
    args: &Args,
    seed: u64,
    stop: &CancellationToken,
    save: &dyn Fn(&[Run]),
) -> Vec<Run> {
    let progress = Progress::new(jobs.iter().map(Job::runs).sum());
    let queue = Arc::new(Mutex::new(VecDeque::from(jobs)));
    let done = Arc::new(Mutex::new(Vec::new()));
    let (ends, ended) = mpsc::channel();
    let lanes: Vec<_> = (0..args.abreast.max(1))
        .filter_map(|_| {
            let (queue, done, ends) = (queue.clone(), done.clone(), ends.clone());
            let (progress, stop) = (progress.clone(), stop.clone());
            engine::thread("lab", move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime");
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(job) = job.filter(|_| !stop.is_cancelled()) else { return };
                    let put = |run: Run| {
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(run);
                    };
                    let progress = progress.of(job.store.name);
                    runtime.block_on(async {
                        tokio::select! {
                            () = stop.cancelled() => {}
                            () = at_store(&job, seed, &progress, put) => {}
                        }
                    });
                    let _ = ends.send(());
                }
            })
            .ok()
        })
        .collect();
    drop(ends);
    for () in ended {
        let runs = done.lock().unwrap_or_else(PoisonError::into_inner).clone();
        save(&runs);
    }
    for lane in lanes {
        let _ = lane.join();
    }
    let mut runs = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
    let place = |run: &Run| stores::ALL.iter().position(|s| s.name == run.store);
    runs.sort_by_key(|run| (place(run), run.kind == Kind::Random, run.round));
    runs
}

/// The stories and rounds of one store, one after the other.
async fn at_store(job: &Job, seed: u64, progress: &Progress, mut put: impl FnMut(Run)) {
    let mut last: Option<(Setup, Rc<Place>)> = None;
    // Acts with one setup follow each other, and share the servers.
    let mut acts = job.acts.clone();
    acts.sort_by_key(|(_, act)| act.setup != Setup::USUAL);
    for (story, act) in acts {
        let id = act.id(story);
        progress.begins(&id);
        let Some(expected) = (act.expect)(job.store) else { continue };
        let title = Title {
            story: story.id,
            act: act.name,
            kind: act.kind,
            round: 0,
            seed: act_seed(seed, job.store, story, act),
            expected,
            ttl: act.ttl,
        };
        let run = match place(&mut last, job.store, act.setup).await {
            Ok(place) => run::play(&title, place, progress, |s| (act.tell)(s)).await,
            Err(e) => run::failed(&title, job.store, &e),
        };
        finished(&run, progress);
        put(run);
    }
    for round in job.rounds.iter().copied() {
        progress.begins(&format!("round {round}"));
        let title = random::title(round, round_seed(seed, job.store, round));
        let (mut run, mut wedge) = tell_round(&mut last, job.store, &title, progress).await;
        if let Some(why) = wedge.take_if(|_| is_explained(&run)) {
            let first = run.said;
            (run, wedge) = tell_round(&mut last, job.store, &title, progress).await;
            run.said = format!("{TOLD_AGAIN}{why}; first telling: {first}; now: {}", run.said);
        }
        if let Some(why) = wedge {
            run.said = format!("{}; after this round: {why}", run.said);
        }
        finished(&run, progress);
        put(run);
    }
}

/// How the words about a run begin whose first telling does not count.
pub(crate) const TOLD_AGAIN: &str = "told again: ";

/// Whether servers that stopped committing explain why a run failed: they keep clients waiting and
/// leave locks in place. A safety violation (C1 to C5, C8) stands, whatever the servers did.
fn is_explained(run: &Run) -> bool {
    let liveness = |v: &Violation| ["C6", "C7"].contains(&v.checker.as_str());
    run.verdict == Verdict::Unexpected && run.violations.iter().all(liveness)
}

/// Tells one random round. If the servers themselves have stopped committing by its end, they are
/// stopped, the next call starts others, and the reason comes with the run.
async fn tell_round(
    last: &mut Option<(Setup, Rc<Place>)>,
    store: Store,
    title: &Title<'_>,
    progress: &Progress,
) -> (Run, Option<String>) {
    let place = match place(last, store, Setup::USUAL).await {
        Ok(place) => place,
        Err(e) => return (run::failed(title, store, &e), None),
    };
    let seed = title.seed;
    let tell = run::play(title, place.clone(), progress, |s| Box::pin(random::round(s, seed)));
    let run = tell.await;
    let wedge = place.wedged().await;
    if wedge.is_some() {
        *last = None;
    }
    (run, wedge)
}

/// The servers of the run before, if they are as new; others else.
async fn place(
    last: &mut Option<(Setup, Rc<Place>)>,
    store: Store,
    setup: Setup,
) -> Result<Rc<Place>, Error> {
    if let Some((had, place)) = last.take()
        && had == setup
        && place.as_new()
        && place.mend().await.is_ok()
    {
        *last = Some((had, place.clone()));
        return Ok(place);
    }
    let place = Rc::new(Place::start(store, setup).await?);
    *last = Some((setup, place.clone()));
    Ok(place)
}

fn finished(run: &Run, progress: &Progress) {
    progress.grants(run.grants);
    let mark = if run.verdict == Verdict::AsExpected { "ok        " } else { "UNEXPECTED" };
    let what = match run.kind {
        Kind::Random => format!("round {} (seed {})", run.round, run.seed),
        Kind::Story => run.story.clone(),
        Kind::Control => format!("{} (control)", run.story),
    };
    let seconds = std::time::Duration::from_nanos(run.nanos).as_secs_f64();
    let line = format!(
        "{mark} {:<18} {what:<28} {seconds:>5.1} s {:>5} grants  {}",
        run.store, run.grants, run.said
    );
    progress.ends(&line);
}

/// Now, as RFC 3339 has it.
pub(crate) fn timestamp() -> String {
    let seconds = Clock::system().wall_micros() / 1_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Counted in eras of 400 years that begin in March, so that a leap day is the last of its year.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wedge_explains_waiting_and_no_safety_violation() {
        let failed = |checkers: &[&str]| {
            let title = random::title(0, 1);
            let violation = |c: &&str| {
                let (checker, what) = ((*c).to_owned(), String::new());
                Violation { checker, what, at: None }
            };
            let violations = checkers.iter().map(violation).collect();
            let nothing = Error::new(ErrorKind::Store, "no answer");
            Run { violations, ..run::failed(&title, stores::ALL[0], &nothing) }
        };
        assert!(is_explained(&failed(&[])));
        assert!(is_explained(&failed(&["C6", "C7"])));
        assert!(!is_explained(&failed(&["C6", "C2"])));
        assert!(!is_explained(&Run { verdict: Verdict::AsExpected, ..failed(&[]) }));
    }
}
