//! One program from its beginning to its end; and a failing one made small.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use distlock_core::clock::BootInstant;

use crate::actor::act;
use crate::laws::Broken;
use crate::program::{Family, Program};
use crate::stage::{Stage, Store};
use crate::world::{self, World};

/// When everything begins to work again, if the program is not over by then.
const HEALED: Duration = Duration::from_secs(20);
/// How long after that every call must have ended.
const ENDED: Duration = Duration::from_secs(75);
/// How long what is given back in the background may take on a network that works: a request that
/// was lost is asked again after ten seconds.
const SETTLED: Duration = Duration::from_secs(35);

/// A program that broke a law.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The program.
    pub program: Program,
    /// The law.
    pub broken: Broken,
    /// What happened.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}\n{}", self.broken.law, self.broken.how, self.program)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// Runs a program.
///
/// # Errors
/// The first law that it breaks, with a trace if one is wanted.
pub fn check(program: &Program, traced: bool) -> Result<u64, Box<Failure>> {
    let (world, installed) = World::new(program.seed, program.processes + 1, traced);
    world::enter(Some(world.clone()));
    let run = std::panic::AssertUnwindSafe(|| run(&world, program));
    let broken = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let how = panic.downcast_ref::<String>().cloned();
        let how = how.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Some(Broken { law: "nothing panics", how: how.unwrap_or_default() })
    });
    let (polls, trace) = (world.polls(), world.trace());
    world.close();
    world::enter(None);
    drop(installed);
    match broken {
        None => Ok(polls),
        Some(broken) => Err(Box::new(Failure { program: program.clone(), broken, trace })),
    }
}

fn run(world: &Rc<World>, program: &Program) -> Option<Broken> {
    let stage = Stage::new(world.clone(), program);
    world.net(program.net, program.preempts);
    let tasks: Vec<usize> = (0..program.actors.len())
        .map(|i| world.start(program.actors[i].process, act(stage.clone(), i)))
        .collect();
    for (at, trouble) in &program.troubles {
        let (weak, trouble, tasks) = (Rc::downgrade(&stage), *trouble, tasks.clone());
        world.later(0, *at, move || {
            if let Some(stage) = weak.upgrade() {
                stage.trouble(trouble, &tasks);
            }
        });
    }
    let broken = play(&stage).or_else(|| stage.laws.borrow().broken.clone());
    stage.clients.borrow_mut().clear();
    broken
}

/// Runs until a moment, or as long as `on` says; the laws are looked at after each step.
fn run_until(stage: &Stage, end: BootInstant, on: impl Fn() -> bool) -> Option<Broken> {
    let world = &stage.world;
    while on() {
        let before = world.clock.now();
        let more = world.step(end);
        let mut laws = stage.laws.borrow_mut();
        if world.clock.now() > before {
            laws.step(|p| world.troubled(p));
            laws.idle();
        }
        if laws.broken.is_some() {
            return laws.broken.clone();
        }
        if !more {
            break;
        }
    }
    None
}

fn play(stage: &Rc<Stage>) -> Option<Broken> {
    let world = &stage.world;
    let after = |d: Duration| world.clock.now().plus(d);
    let busy = || stage.busy();
    let stuck = || {
        let doing = stage.doing.borrow();
        let doing = doing.iter().enumerate().filter(|(_, d)| !d.is_empty());
        let doing: Vec<String> = doing.map(|(i, d)| format!("task {i}: {d}")).collect();
        let how = format!("after {:?} of a working network: {}", ENDED, doing.join("; "));
        Broken { law: "every call ends", how }
    };
    if let Some(broken) = run_until(stage, after(HEALED), busy) {
        return Some(broken);
    }
    world.note(|| "everything works from now on".to_owned());
    world.heal();
    let longest = stage.program.longest();
    let leases = if stage.program.is_long() { Duration::ZERO } else { longest * 4 };
    // Somebody may wait for a hold to end by its lease: one that was detached or taken away, or of a
    // process that was killed.
    let withheld = || {
        let laws = stage.laws.borrow();
        laws.killed.is_some() || laws.withheld.iter().any(|w| *w)
    };
    if let Some(broken) = run_until(stage, after(ENDED + leases), busy) {
        return Some(broken);
    }
    if busy()
        && withheld()
        && let Some(broken) = run_until(stage, after(longest * stage.program.withholds()), busy)
    {
        return Some(broken);
    }
    if busy() {
        return Some(stuck());
    }
    if let Some(broken) = run_until(stage, after(SETTLED + leases), || true) {
        return Some(broken);
    }
    if withheld()
        && let Some(broken) = run_until(stage, after(longest * 2), || true)
    {
        return Some(broken);
    }
    end(stage)
}

/// Awaits a future that must end soon: everything works, and everything was given back.
fn soon<T: 'static>(
    stage: &Rc<Stage>,
    process: usize,
    what: &str,
    work: impl Future<Output = T> + 'static,
) -> Result<T, Broken> {
    let answer: Rc<std::cell::RefCell<Option<T>>> = Rc::default();
    let slot = answer.clone();
    stage.world.start(process, async move {
        let value = work.await;
        *slot.borrow_mut() = Some(value);
    });
    let end = stage.world.clock.now().plus(Duration::from_secs(5));
    if let Some(broken) = run_until(stage, end, || answer.borrow().is_none()) {
        return Err(broken);
    }
    let value = answer.borrow_mut().take();
    value.ok_or_else(|| Broken { law: "every call ends", how: format!("in the end: {what}") })
}

/// Nothing is left behind, and everybody can have everything.
fn end(stage: &Rc<Stage>) -> Option<Broken> {
    let done = (|| {
        let fresh = stage.program.processes;
        let observer = stage.client(fresh);
        for (i, name) in stage.names.iter().enumerate() {
            look(stage, i, &observer)?;
            let (locks, n) = (observer.clone(), name.name.clone());
            let got = soon(stage, fresh, "try_acquire", async move {
                locks.lock(n.as_str()).try_acquire().await.map(|r| r.map(|g| g.release()))
            })?;
            match got {
                Ok(Ok(release)) => drop(soon(stage, fresh, "release", release)?),
                other => {
                    let how = format!("lock {i} is {:?}", other.map(|r| r.map(drop)));
                    return Err(Broken { law: "nothing is left behind", how });
                }
            }
        }
        for process in 0..stage.program.processes {
            let locks = stage.locks(process);
            if stage.closed.borrow()[process] || stage.world.dead(process) {
                continue;
            }
            for (i, name) in stage.names.iter().enumerate() {
                let (locks, n) = (locks.clone(), name.name.clone());
                let got = soon(stage, process, "acquire", async move {
                    locks.lock(n.as_str()).acquire().await.map(|g| g.release())
                })?;
                match got {
                    Ok(release) => drop(soon(stage, process, "release", release)?),
                    Err(e) => {
                        let how = format!("lock {i} of process {process}: {e}");
                        return Err(Broken { law: "everybody can have everything", how });
                    }
                }
            }
            if stage.program.closes {
                soon(stage, process, "close", async move {
                    let _ = locks.close().await;
                })?;
            }
        }
        Ok(())
    })();
    done.err()
}

/// The store knows of nobody.
fn look(stage: &Rc<Stage>, i: usize, observer: &distlock_core::Locks) -> Result<(), Broken> {
    let fresh = stage.program.processes;
    let left = |what: String| Broken { law: "nothing is left behind", how: what };
    let query = distlock_core::info::Query::Name(stage.names[i].clone());
    let backend = observer.backend().clone();
    let q = query.clone();
    let seen = soon(stage, fresh, "inspect", async move { backend.inspect(&q).await })?;
    match seen {
        Ok(all) if all.is_empty() => {}
        other => return Err(left(format!("lock {i}: {other:?}"))),
    }
    let nodes: Vec<_> = match &*stage.store.borrow() {
        // A closed client leaves what it owes to a minority of the nodes to its lease.
        Store::Quorum(nodes) if !stage.closed.borrow().contains(&true) => {
            nodes.iter().map(distlock_testkit::doubles::MemoryNode::client).collect()
        }
        _ => Vec::new(),
    };
    for node in nodes {
        let q = query.clone();
        let seen = soon(stage, fresh, "inspect", async move {
            distlock_core::quorum::QuorumNode::inspect(&node, &q).await
        })?;
        match seen {
            Ok(all) if all.is_empty() => {}
            other => return Err(left(format!("lock {i} at one node: {other:?}"))),
        }
    }
    Ok(())
}

/// Makes a failing program smaller, as long as it breaks the same law.
#[must_use]
pub fn shrink(failure: &Failure) -> Failure {
    let law = failure.broken.law;
    let mut best = failure.program.clone();
    let fails = |p: &Program| check(p, false).is_err_and(|f| f.broken.law == law);
    loop {
        let size = best.size();
        let mut smaller: Vec<Program> = Vec::new();
        for i in 0..best.actors.len() {
            let mut p = best.clone();
            // A stalled task is named by its place.
            p.actors[i].ops.clear();
            smaller.push(p);
        }
        for i in 0..best.troubles.len() {
            let mut p = best.clone();
            p.troubles.remove(i);
            smaller.push(p);
        }
        for i in 0..best.actors.len() {
            for j in 0..best.actors[i].ops.len() {
                let mut p = best.clone();
                p.actors[i].ops.remove(j);
                smaller.push(p);
            }
        }
        if !best.net.is_calm() {
            let mut p = best.clone();
            p.net = Default::default();
            smaller.push(p);
        }
        // Each with a few schedules: what is left out changes the order of everything after it.
        let found = smaller.into_iter().filter(|p| p.size() < size).find_map(|p| {
            (0..12).find_map(|n| {
                let seed = if n == 0 { p.seed } else { p.seed ^ (n * 0x9e37_79b9) };
                let p = Program { seed, ..p.clone() };
                fails(&p).then_some(p)
            })
        });
        match found {
            Some(p) => best = p,
            None => break,
        }
    }
    match check(&best, true) {
        Err(failure) => *failure,
        Ok(_) => failure.clone(),
    }
}

/// Runs the programs of a range of seeds, and tells of the first that fails, made small.
///
/// # Errors
/// The seed and what it broke.
pub fn sweep(family: Family, seeds: std::ops::Range<u64>) -> Result<u64, (u64, Box<Failure>)> {
    let mut polls = 0;
    for seed in seeds {
        match check(&Program::new(family, seed), false) {
            Ok(n) => polls += n,
            Err(failure) => return Err((seed, failure)),
        }
    }
    Ok(polls)
}
