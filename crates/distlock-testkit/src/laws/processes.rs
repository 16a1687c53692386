//! Several processes of one host.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::Token;
use distlock_core::capability::{Fence, Order, WakeUp};

use crate::child::Child;
use crate::history::{self, Event, Rules, Violation, What};
use crate::stopwatch::Stopwatch;
use crate::wait::{AGES, LONG, busy, give_back, line_of, soon, task};
use crate::{Resource, StoreUnderTest};

fn token(text: &str) -> Token {
    text.parse().expect("a token")
}

/// kill -9 of a holder: the next waiter is in within its TTL and a second, or within a tenth of a
/// second where the store can tell that a process is gone (the median of three).
pub async fn a_killed_holder_is_followed(site: &StoreUnderTest) {
    let (locks, name, ttl) = (site.client().await, site.name(), site.ttl());
    let millis = ttl.as_millis().to_string();
    let bound =
        if site.expires() { ttl + Duration::from_secs(1) } else { Duration::from_millis(100) };
    let mut took = Vec::new();
    for _ in 0..3 {
        let args = [("url", site.url()), ("name", &name), ("ttl", &millis)];
        let mut child = Child::start("hold", &args);
        let theirs = token(&child.hear("granted").await);
        let waiting = task({
            let lock = locks.lock(&name).ttl(LONG);
            async move { lock.await.expect("a grant") }
        });
        if site.capability().order == Order::Fifo {
            line_of(&locks, &name, 1).await;
        }
        assert_eq!(child.ask("check").await, "ok");
        let watch = Stopwatch::start();
        child.kill().await;
        let mine = soon("the turn after a dead holder", waiting).await.expect("no panic");
        took.push(watch.took());
        assert!(mine.token() > theirs);
        give_back(mine).await;
    }
    took.sort();
    eprintln!("a killed holder was followed after {took:?}");
    assert!(took[1] <= bound, "after {took:?}, not within {bound:?}");
}

/// SIGSTOP past the TTL: another gets in, and on resume the first use of the guard says lost; the
/// old token is lower.
pub async fn s06_a_stopped_holder_finds_out(site: &StoreUnderTest) {
    let (locks, name, ttl) = (site.client().await, site.name(), site.ttl());
    let millis = ttl.as_millis().to_string();
    let args = [("url", site.url()), ("name", &name), ("ttl", &millis)];
    let mut child = Child::start("hold", &args);
    let theirs = token(&child.hear("granted").await);
    child.stop();
    let watch = Stopwatch::start();
    let mine = soon("the lease's end", locks.lock(&name).ttl(LONG).acquire()).await;
    let mine = mine.expect("a grant");
    let took = watch.took();
    assert!(took <= ttl + Duration::from_secs(1), "{took:?}");
    assert!(mine.token() > theirs);
    child.resume();
    let said = child.ask("check").await;
    assert!(said.starts_with("lost"), "a resumed holder believes in its lock: {said}");
    assert_eq!(child.ask("release").await, "was-lost");
    assert!(mine.check().is_ok());
    busy(&site.client().await, &name).await;
    give_back(mine).await;
}

/// A holder that is paused past its TTL, with its write about to leave, and another that has
/// written meanwhile: the resource refuses the late write by its token alone.
pub async fn s28_a_paused_holder_is_refused_by_the_resource(site: &StoreUnderTest) {
    let (locks, name, ttl) = (site.client().await, site.name(), site.ttl());
    let resource = Resource::new().expect("a resource");
    let write = |token| resource.write(token).expect("a write");
    let path = resource.path().display().to_string();
    let millis = ttl.as_millis().to_string();
    let args = [("url", site.url()), ("name", &name), ("ttl", &millis), ("resource", &path)];
    let mut child = Child::start("hold", &args);
    let theirs = token(&child.hear("granted").await);
    assert_eq!(child.ask("write").await, "taken");
    child.stop();
    let mine = soon("the lease's end", locks.lock(&name).ttl(LONG).acquire()).await;
    let mine = mine.expect("a grant");
    assert!(write(mine.token()), "the newer holder was refused");
    child.resume();
    assert_eq!(child.ask("write").await, "refused", "the older holder's late write was taken");
    assert!(write(mine.token()), "the holder was refused after a late write");
    assert_eq!(resource.taken().expect("writes"), [theirs, mine.token(), mine.token()]);
    give_back(mine).await;
}

/// Five waiters killed, one alive behind them: it is served in bounded time.
pub async fn s19_killed_waiters_are_passed_over(site: &StoreUnderTest) {
    let (locks, name, ttl) = (site.strict().await, site.name(), site.ttl());
    let millis = ttl.as_millis().to_string();
    let held = locks.lock(&name).ttl(LONG).await.expect("a grant");
    let args = [("url", site.url()), ("name", &name), ("ttl", &millis)];
    let mut dead = Vec::new();
    for i in 0..5 {
        let mut child = Child::start("hold", &args);
        child.hear("waiting").await;
        dead.push(child);
        line_of(&locks, &name, i + 1).await;
    }
    let lock = locks.lock(&name).ttl(LONG);
    let alive = task(async move { lock.await.expect("a grant") });
    line_of(&locks, &name, 6).await;
    for child in &mut dead {
        child.kill().await;
    }
    let watch = Stopwatch::start();
    give_back(held).await;
    let alive = soon("the living one's turn", alive).await.expect("no panic");
    let took = watch.took();
    assert!(took <= ttl + Duration::from_secs(1), "five dead waiters cost {took:?}");
    give_back(alive).await;
}

/// Sixteen processes open an empty store at the same moment, and each gets its turn.
pub async fn sixteen_open_an_empty_store_at_once(site: &StoreUnderTest) {
    let name = site.name();
    let args = [("url", site.url()), ("name", name.as_str())];
    let mut children: Vec<Child> = (0..16).map(|_| Child::start("open", &args)).collect();
    for child in &mut children {
        child.hear("ready").await;
    }
    for child in &mut children {
        child.say("go").await;
    }
    let mut tokens = Vec::new();
    for child in &mut children {
        tokens.push(token(&child.hear("granted").await));
    }
    tokens.sort();
    assert!(tokens.is_sorted_by(|a, b| a < b), "a token twice: {tokens:?}");
    for child in children {
        child.ended_well().await;
    }
}

/// A process that was given the owner enters with the same token.
pub async fn the_owner_enters_in_another_process(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let owner = distlock_core::Owner::new();
    let guard = locks.lock(&name).ttl(LONG).owner(&owner).await.expect("a grant");
    let args = [("url", site.url()), ("name", name.as_str()), ("owner", owner.as_str())];
    let mut child = Child::start("hold", &args);
    assert_eq!(token(&child.hear("granted").await), guard.token());
    give_back(guard).await;
    busy(&locks, &name).await;
    assert_eq!(child.ask("release").await, "released");
    give_back(crate::wait::take(&locks, &name).await).await;
}

/// Taken in one process, released in another.
pub async fn another_process_ends_a_detached_hold(site: &StoreUnderTest) {
    let (locks, name) = (site.client().await, site.name());
    let mut child = Child::start("hold", &[("url", site.url()), ("name", &name), ("ttl", "60000")]);
    let theirs = child.hear("granted").await;
    let ticket = child.ask("detach").await;
    child.kill().await;
    busy(&locks, &name).await;
    let mut other = Child::start("resume", &[("url", site.url()), ("ticket", &ticket)]);
    assert_eq!(other.hear("resumed").await, theirs);
    assert_eq!(other.hear("release").await, "released");
    other.ended_well().await;
    give_back(crate::wait::take(&locks, &name).await).await;
}

/// How many processes and rounds, unless `DISTLOCK_TESTKIT_COUNTER=PROCESSESxROUNDS` says less.
const COUNTER: (usize, usize) = (32, 200);

fn sizes() -> (usize, usize) {
    let Ok(text) = std::env::var("DISTLOCK_TESTKIT_COUNTER") else { return COUNTER };
    let (processes, rounds) = text.split_once('x').expect("PROCESSESxROUNDS");
    (processes.parse().expect("a number"), rounds.parse().expect("a number"))
}

/// Many processes count up a plain file, unprotected but for the lock: it comes out right, nobody
/// is starved, and what they saw can have been one lock.
pub async fn a_counter_comes_out_right(site: &StoreUnderTest) {
    let (processes, mut rounds) = sizes();
    let capability = site.capability();
    if capability.order == Order::Fifo && capability.wake == WakeUp::Poll {
        // Each turn waits until the one it belongs to looks.
        rounds = rounds.div_ceil(10);
    }
    let file = site.dir().join("counter");
    std::fs::write(&file, "0").expect("the counter");
    let histories = site.dir().join("histories");
    std::fs::create_dir(&histories).expect("a directory");
    let name = site.name();
    let mut children = Vec::new();
    for i in 0..processes {
        let history = histories.join(i.to_string());
        children.push(Child::start(
            "count",
            &[
                ("url", site.url()),
                ("name", &name),
                ("file", file.to_str().expect("UTF-8")),
                ("rounds", &rounds.to_string()),
                ("history", history.to_str().expect("UTF-8")),
            ],
        ));
    }
    for child in &mut children {
        child.hear("ready").await;
    }
    let watch = Stopwatch::start();
    for child in &mut children {
        child.say("go").await;
    }
    for child in &mut children {
        child.hear_for(AGES, "done").await;
    }
    let took = watch.took();
    for child in children {
        child.ended_well().await;
    }
    let total = std::fs::read_to_string(&file).expect("the counter");
    assert_eq!(total, (processes * rounds).to_string(), "increments were lost");
    let events = history::read(&histories).expect("the histories");
    let fifo = site.capability().order == Order::Fifo;
    let found = broken(site, &events, Rules { fifo });
    assert!(found.is_empty(), "{} violations, the first: {}", found.len(), found[0]);
    let (min, mean) = fairness(&events);
    eprintln!("{processes} × {rounds} in {took:?}; while all ran: min {min}, mean {mean:.1}");
    // Where whoever asks at the right moment enters, nobody is promised a share.
    let shares = site.capability().order != Order::None;
    assert!(!shares || min * 2.0 >= mean, "starved: {min} grants beside a mean of {mean}");
}

/// The fewest and the mean number of grants of a process, while all of them ran.
#[allow(clippy::cast_precision_loss)] // a few thousand grants
fn fairness(events: &[Event]) -> (f64, f64) {
    let process = |e: &Event| e.who.rsplit_once('-').map(|(p, _)| p.to_owned()).unwrap_or_default();
    let (mut first, mut last) = (HashMap::new(), HashMap::new());
    let grants: Vec<_> = events.iter().filter(|e| matches!(e.what, What::Granted { .. })).collect();
    for grant in &grants {
        let f = first.entry(process(grant)).or_insert(grant.at);
        *f = grant.at.min(*f);
        let l = last.entry(process(grant)).or_insert(grant.at);
        *l = grant.at.max(*l);
    }
    let from = first.values().copied().max().unwrap_or(0);
    let to = last.values().copied().min().unwrap_or(0);
    let mut counts: HashMap<String, u32> = first.keys().map(|p| (p.clone(), 0)).collect();
    for grant in grants.iter().filter(|g| (from..=to).contains(&g.at)) {
        *counts.entry(process(grant)).or_default() += 1;
    }
    let min = counts.values().copied().min().unwrap_or(0);
    (f64::from(min), f64::from(counts.values().sum::<u32>()) / counts.len().max(1) as f64)
}

/// The promises that a history shows to be broken, of those that the store makes: one without an
/// ordered fence says nothing about the order of its tokens.
pub(crate) fn broken(site: &StoreUnderTest, events: &[Event], rules: Rules) -> Vec<Violation> {
    let mut found = history::check(events, rules);
    if site.capability().fence == Fence::Unordered {
        found.retain(|v| !matches!(v, Violation::TokenBack { .. }));
    }
    found
}
