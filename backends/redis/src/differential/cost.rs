//! What the moves cost the server, in microseconds of its own counting.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::{Ask, FullName, Label, Mode, Name, Namespace, Owner, Patience, Reply, ReqId};

use super::scene::Scene;
use crate::keys::Keys;
use crate::quarantine::Agreed;
use crate::script_calls::{self, ALL_COUNTED};

const TTL: Duration = Duration::from_secs(600);
const CYCLES: usize = 400;

pub(super) fn ask(name: &str) -> Ask {
    Ask {
        lock: FullName { space: Namespace::new("").unwrap(), name: Name::new(name).unwrap() },
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl: TTL,
        patience: Patience::Forever,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::of_this_process(),
        block: NonZeroU32::MIN,
    }
}

impl Scene {
    /// The server's time in scripts so far, in microseconds.
    async fn spent(&mut self) -> u64 {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.link).await.unwrap();
        let line = info.lines().find(|l| l.starts_with("cmdstat_evalsha:"));
        let usec = line.and_then(|l| l.split("usec=").nth(1)?.split(',').next()?.parse().ok());
        usec.unwrap_or(0) // no script has run yet
    }

    /// The server's processor time so far, in microseconds. A busy machine that takes the processor
    /// away in the midst of a script does not make this any longer.
    async fn cpu(&mut self) -> u64 {
        let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut self.link).await.unwrap();
        let seconds = |field: &str| -> f64 {
            let line = info.lines().find_map(|l| l.strip_prefix(field));
            line.and_then(|s| s.trim().parse().ok()).expect("INFO tells its processor time")
        };
        let both = seconds("used_cpu_sys:") + seconds("used_cpu_user:");
        Duration::from_secs_f64(both).as_micros().try_into().unwrap()
    }
}

/// The time of a release and the confirmation by the next, with so many in line: the median,
/// because a busy machine may take the server's processor away in the midst of a call.
async fn hand_over(scene: &mut Scene, waiters: usize) -> u64 {
    let name = format!("line of {waiters}");
    let keys = Keys::of(&ask(&name).lock);
    let mut line: VecDeque<Ask> = (0..=waiters).map(|_| ask(&name)).collect();
    let join = |ask: &Ask| {
        script_calls::acquire(&keys, ask, Some(TTL), "via-1", ALL_COUNTED, &Agreed::NONE)
    };
    for some in line.make_contiguous().chunks(500) {
        scene.send(&some.iter().map(join).collect::<Vec<_>>()).await;
    }
    let mut costs = Vec::new();
    for _ in 0..CYCLES {
        let last = line.pop_front().unwrap();
        let before = scene.spent().await;
        let calls = [script_calls::release(&keys, &last.req, ALL_COUNTED), join(&line[0])];
        let replies = scene.send(&calls).await;
        costs.push(scene.spent().await - before);
        let reply = script_calls::acquired(&replies[1], TTL).unwrap();
        let Reply::Granted { waiters: behind, .. } = reply else {
            panic!("not the next in line: {reply:?}");
        };
        assert_eq!(behind as usize, waiters - 1);
        line.push_back(ask(&name));
        scene.send(&[join(&line[waiters])]).await;
    }
    costs.sort_unstable();
    costs[CYCLES / 2]
}

#[tokio::test]
async fn a_line_of_ten_thousand_is_handed_over_as_cheaply_as_one_of_ten() {
    let mut scene = Scene::new().await;
    let few = hand_over(&mut scene, 10).await;
    let many = hand_over(&mut scene, 10_000).await;
    println!("hand-over: {few} us with 10 in line, {many} us with 10,000");
    assert!(many < 2 * few, "{many} us with 10,000 in line, {few} us with 10");
}

/// The processor time of a release that lets so many readers in at once.
async fn let_in(scene: &mut Scene, readers: usize) -> u64 {
    let name = format!("{readers} readers");
    let (keys, writer) = (Keys::of(&ask(&name).lock), ask(&name));
    let join = |ask: &Ask| {
        script_calls::acquire(&keys, ask, Some(TTL), "via-1", ALL_COUNTED, &Agreed::NONE)
    };
    let reader = |_| Ask { mode: Mode::Shared, ..ask(&name) };
    let line: Vec<Ask> = (0..readers).map(reader).collect();
    scene.send(&[join(&writer)]).await;
    for some in line.chunks(500) {
        scene.send(&some.iter().map(join).collect::<Vec<_>>()).await;
    }
    let before = scene.cpu().await;
    scene.send(&[script_calls::release(&keys, &writer.req, ALL_COUNTED)]).await;
    let cost = scene.cpu().await - before;
    let reply = &scene.send(&[join(&line[readers - 1])]).await[0];
    let reply = script_calls::acquired(reply, TTL).unwrap();
    assert!(matches!(reply, Reply::Granted { waiters: 0, .. }), "{reply:?}");
    cost
}

#[tokio::test]
async fn a_crowd_of_readers_is_let_in_at_a_cost_that_grows_as_the_crowd_does() {
    let mut scene = Scene::new().await;
    // The least of a few: what shares a core's caches makes the same work cost more, never less.
    let (mut few, mut many) = (u64::MAX, u64::MAX);
    for _ in 0..3 {
        few = few.min(let_in(&mut scene, 200).await);
        many = many.min(let_in(&mut scene, 900).await);
        scene.run(redis::cmd("FLUSHALL")).await;
    }
    println!("let in: {few} us for 200 readers, {many} us for 900");
    assert!(many < 9 * few, "{many} us for 900 readers, {few} us for 200");
}
