//! Telling an act of a story at a store, and the verdict.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use distlock::Error;
use distlock::backend::Clock;
use futures_util::FutureExt;

use crate::checkers::{self, Window};
use crate::evidence::Evidence;
use crate::place::Place;
use crate::progress::Progress;
use crate::scene::{Permit, Scene, Told, Trouble};
use crate::stores::Store;
use crate::stories::{Act, Expected, LocalFut, Story};
use distlock_lab::record::{Expect, Kind, Run, Verdict};

/// No run takes longer.
const LIMIT: Duration = Duration::from_secs(150);

/// What a run is.
pub(crate) struct Title<'a> {
    pub(crate) story: &'a str,
    /// Which telling of it.
    pub(crate) act: &'a str,
    pub(crate) kind: Kind,
    pub(crate) round: u32,
    pub(crate) seed: u64,
    pub(crate) expected: Expected,
    pub(crate) ttl: Duration,
}

impl Act {
    /// What a run of it is called.
    pub(crate) fn id(&self, story: &Story) -> String {
        if self.name.is_empty() {
            story.id.to_owned()
        } else {
            format!("{}:{}", story.id, self.name)
        }
    }
}

/// A run of which nothing is known yet.
fn blank(title: &Title<'_>, store: Store) -> Run {
    Run {
        store: store.name.to_owned(),
        story: title.story.to_owned(),
        kind: title.kind,
        round: title.round,
        seed: title.seed,
        expect: match title.expected {
            Expected::Clean => Expect::Clean,
            Expected::Violates(_) => Expect::Violates,
        },
        verdict: Verdict::Unexpected,
        said: String::new(),
        nanos: 0,
        clients: vec![],
        grants: 0,
        locks: vec![],
        holds: vec![],
        waits: vec![],
        faults: vec![],
        writes: vec![],
        overlaps: vec![],
        violations: vec![],
    }
}

/// A run whose servers did not even start.
pub(crate) fn failed(title: &Title<'_>, store: Store, why: &Error) -> Run {
    let hint = why.hint().unwrap_or_default();
    Run { said: format!("no servers: {why} {hint}"), ..blank(title, store) }
}

/// Plays to its end and says what came of it.
pub(crate) async fn play(
    title: &Title<'_>,
    place: Rc<Place>,
    progress: &Progress,
    tell: impl for<'a> FnOnce(&'a mut Scene) -> LocalFut<'a, Told>,
) -> Run {
    let mut run = blank(title, place.store);
    let mut scene = match Scene::new(place, title.ttl, progress.clone()) {
        Ok(scene) => scene,
        Err(Trouble(why)) => {
            run.said = why;
            return run;
        }
    };
    let told = {
        let told = AssertUnwindSafe(tell(&mut scene)).catch_unwind();
        match Clock::system().timeout(LIMIT, told).await {
            Some(Ok(told)) => told,
            Some(Err(panic)) => Err(Trouble(words(&*panic))),
            None => Err(Trouble(format!("not at its end after {LIMIT:?}"))),
        }
    };
    let end = Clock::system().now().as_nanos();
    run.nanos = scene.now();
    if let Err(e) = close(&mut run, &scene, end) {
        run.said = format!("the history cannot be read: {e}");
        return run;
    }
    judge(&mut run, told, title.expected);
    if scene.unplanned && run.verdict == Verdict::Unexpected {
        // The servers that a round kills are back by its end.
        for (i, how) in scene.place.crashes() {
            run.said = format!("{}; server {i} ended by itself: {how}", run.said);
        }
    }
    if !title.act.is_empty() {
        run.said = format!("{}: {}", title.act, run.said);
    }
    run
}

/// Puts what happened into the record, and what the checkers say about it.
fn close(run: &mut Run, scene: &Scene, end: u64) -> std::io::Result<()> {
    let windows = windows(scene, end);
    let mut evidence = Evidence::of(scene, end)?;
    evidence.apart(&windows);
    run.clients = scene.clients.iter().map(|c| c.name.clone()).collect();
    // The last two parts of a name keep it apart from other runs.
    let short = |l: &String| l.rsplitn(3, '.').last().unwrap_or(l).to_owned();
    run.locks = scene.locks.iter().map(short).collect();
    run.grants = evidence.grants();
    run.faults.clone_from(&scene.faults);
    (run.holds, run.waits) = evidence.lanes();
    run.writes = evidence.writes();
    let unplanned = scene.unplanned;
    let (found, overlaps) = checkers::all(&evidence, &scene.place, &windows, unplanned);
    if unplanned {
        let (lost, all) = checkers::unguarded(&evidence);
        run.said = format!("; of {all} unguarded updates {lost} were lost");
    }
    run.overlaps = overlaps;
    run.violations.clone_from(&scene.found);
    run.violations.extend(found);
    Ok(())
}

/// How much quicker than a holder a server may hear of the end of a connection, on a busy machine.
const MOMENT: u64 = 1_000_000_000;

/// When something was wrong on purpose, with a TTL after it for what it leaves behind.
fn windows(scene: &Scene, end: u64) -> Vec<Window> {
    let start = scene.start.as_nanos();
    let ttl = u64::try_from(scene.ttl.as_nanos()).unwrap_or(u64::MAX);
    let window = |fault: &distlock_lab::record::Fault| {
        let from = start + fault.at;
        let over = fault.until.map_or(end, |at| start + at);
        let until = if fault.until.is_some() { over + ttl } else { end };
        let two_holders = match scene.permits_two(&fault.what) {
            Some(Permit::Whole) => Some((from, until)),
            Some(Permit::AtItsEnd) => Some((over.saturating_sub(MOMENT / 10), over + MOMENT)),
            None => None,
        };
        Window { from, until, two_holders }
    };
    scene.faults.iter().map(window).collect()
}

fn judge(run: &mut Run, told: Told, expected: Expected) {
    let mut as_expected = match expected {
        Expected::Clean => run.violations.is_empty(),
        Expected::Violates(checkers) => {
            let named = |c: &str| checkers.contains(&c);
            !run.violations.is_empty() && run.violations.iter().all(|v| named(&v.checker))
        }
    };
    match told {
        Ok(said) => run.said.insert_str(0, &said),
        Err(Trouble(why)) => {
            as_expected = false;
            run.said = format!("could not be told to its end: {why}");
        }
    }
    if as_expected {
        run.verdict = Verdict::AsExpected;
    } else if let Some(first) = run.violations.first() {
        run.said = format!("{}; {}: {}", run.said, first.checker, first.what);
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
