//! A made-up record, shaped like a real one: the stories a reader asks about, on stores that answer
//! differently, with names no page likes.

use distlock_lab::record::{
    End, Expect, Fault, Hold, Kind, Overlap, Record, Run, Story, Verdict, Violation, Wait, Write,
};

/// A name that would take the page apart if it were put in as it is.
pub(crate) const HOSTILE: &str = "</script><b onload='x'>&{{data}}\u{2028}\"";

const STORES: [&str; 12] = [
    "sqlite",
    "file",
    "redis",
    "redis+sentinel",
    "redis+cluster",
    "redlock (5)",
    "memcached",
    "mysql",
    "mysql row-lock",
    "postgres",
    "etcd",
    "zookeeper",
];
const MS: u64 = 1_000_000;

pub(crate) fn record() -> Record {
    let mut dice = Dice(42);
    let mut runs = Vec::new();
    for (place, store) in STORES.iter().enumerate() {
        let token = 1_763_233_000_000_000 + place as u64 * 1_000_000;
        runs.push(pause(store, token, true));
        runs.push(pause(store, token, false));
        runs.push(watchdog(store, token));
        if store.starts_with("redis+") || store.starts_with("mysql") || *store == "postgres" {
            runs.push(failover(store, token, false));
            runs.push(failover(store, token, true));
        }
        if store.starts_with("redlock") {
            runs.push(failover(store, token, true));
        }
        if ["etcd", "zookeeper", "redis"].contains(store) {
            runs.push(herd(store, token));
        }
        runs.push(storm(store, token, &mut dice));
        for round in 0..6 {
            runs.push(random(store, token, round, &mut dice));
        }
    }
    let story = |id: &str, title: &str, teaches: &str| Story {
        id: id.to_owned(),
        title: title.to_owned(),
        teaches: teaches.to_owned(),
    };
    Record {
        seed: u64::MAX - 7,
        started: "2026-11-15T19:12:55Z".to_owned(),
        version: "0.1.0".to_owned(),
        stores: STORES.map(str::to_owned).to_vec(),
        stories: vec![
            story(
                "pause",
                "The holder pauses past its time limit",
                "A client that holds the lock is stopped (a long garbage collection, a laptop lid) and wakes up late, when somebody else already has the lock. Without a fence its write overwrites the newer one; with a fence the resource refuses it.",
            ),
            story(
                "watchdog",
                "Work that takes longer than the time limit",
                "A holder that is alive keeps its lock by renewing it, however long the work takes.",
            ),
            story(
                "failover",
                "The primary dies before it told its replica",
                "A server that confirms a lock before its replica knows of it may forget it in a failover. The next client then gets the same lock. The fence still keeps the order.",
            ),
            story(
                "herd",
                "Two hundred waiters and one lock",
                "When a lock is released, one waiter is woken, not all of them.",
            ),
            story(
                "storm",
                "Thousands of attempts, cancelled anywhere",
                "A cancelled attempt leaves nothing behind: no lock held by nobody, no place in the line.",
            ),
            story("none", HOSTILE, "A story that was not run this time."),
        ],
        runs,
    }
}

/// A run in which nothing has happened yet.
pub(crate) fn empty(store: &str, story: &str, kind: Kind) -> Run {
    Run {
        store: store.to_owned(),
        story: story.to_owned(),
        kind,
        round: 0,
        seed: 9_007_199_254_740_993,
        expect: Expect::Clean,
        verdict: Verdict::AsExpected,
        said: String::new(),
        nanos: 0,
        clients: vec![],
        grants: 0,
        locks: vec!["orders/42".to_owned()],
        holds: vec![],
        waits: vec![],
        faults: vec![],
        writes: vec![],
        overlaps: vec![],
        violations: vec![],
    }
}

fn hold(client: usize, token: u64, from: u64, until: u64, end: End) -> Hold {
    Hold { client, lock: 0, token, from: from * MS, until: until * MS, end }
}

fn wait(client: usize, from: u64, until: u64) -> Wait {
    Wait { client, lock: 0, from: from * MS, until: until * MS }
}

fn fault(at: u64, until: Option<u64>, what: &str, whom: &str) -> Fault {
    let (what, whom) = (what.to_owned(), whom.to_owned());
    Fault { at: at * MS, until: until.map(|until| until * MS), what, whom }
}

fn write(at: u64, client: usize, token: u64, accepted: bool, fenced: bool) -> Write {
    Write { at: at * MS, client, lock: 0, token: Some(token), accepted, fenced }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn pause(store: &str, token: u64, fenced: bool) -> Run {
    let kind = if fenced { Kind::Story } else { Kind::Control };
    let mut run = empty(store, "pause", kind);
    run.clients = names(&["ada", "ben", "cleo"]);
    run.nanos = 6_200 * MS;
    run.grants = 3;
    run.holds = vec![
        hold(0, token, 40, 1_900, End::Expired),
        hold(1, token + 2_000_113, 2_110, 3_400, End::Released),
        hold(2, token + 3_400_410, 3_404, 5_900, End::Released),
    ];
    run.waits = vec![wait(1, 300, 2_110), wait(2, 420, 3_404)];
    run.faults = vec![fault(700, Some(4_300), "pause", "ada")];
    run.writes = vec![
        write(120, 0, token, true, fenced),
        write(2_400, 1, token + 2_000_113, true, fenced),
        write(3_900, 2, token + 3_400_410, true, fenced),
        write(4_310, 0, token, !fenced, fenced),
        write(5_200, 2, token + 3_400_410, true, fenced),
    ];
    if fenced {
        run.said =
            "Ada woke up after her time limit, and the resource refused her late write.".into();
    } else {
        run.expect = Expect::Violates;
        run.said = "Ada's late write overwrote Cleo's: nothing looked at the tokens.".into();
        run.violations = vec![Violation {
            checker: "C3".to_owned(),
            what: "a write of an older holder was accepted after a newer one's".to_owned(),
            at: Some(4_310 * MS),
        }];
    }
    run
}

fn watchdog(store: &str, token: u64) -> Run {
    let mut run = empty(store, "watchdog", Kind::Story);
    run.clients = names(&["ada", "ben"]);
    run.nanos = 9_000 * MS;
    run.grants = 2;
    run.holds = vec![
        hold(0, token, 20, 8_000, End::Released),
        hold(1, token + 9, 8_004, 8_900, End::Killed),
    ];
    run.waits = vec![wait(1, 100, 8_004)];
    run.faults = vec![fault(8_900, None, "kill", "ben")];
    run.writes = vec![write(4_000, 0, token, true, true), write(8_500, 1, token + 9, true, true)];
    run.said = "Renewed three times; the lock was never free while the work went on.".to_owned();
    run
}

fn failover(store: &str, token: u64, control: bool) -> Run {
    let kind = if control { Kind::Control } else { Kind::Story };
    let mut run = empty(store, "failover", kind);
    run.clients = names(&["ada", "ben"]);
    run.nanos = 8_000 * MS;
    run.grants = 2;
    let second = if control { 2_700 } else { 5_900 };
    run.holds = vec![
        hold(0, token, 200, 4_800, End::Lost),
        hold(1, token + 2_650_000, second, 7_600, End::Open),
    ];
    run.waits = vec![wait(1, 900, second)];
    run.faults = vec![
        fault(500, Some(1_500), "cut off", "replica 1"),
        fault(1_500, None, "kill -9", "primary"),
        fault(2_600, None, "promoted", "replica 1"),
    ];
    run.writes = vec![write(400, 0, token, true, true)];
    run.writes.push(write(second + 200, 1, token + 2_650_000, true, true));
    run.said = "The new primary waited out the old one's locks before it granted.".to_owned();
    if control {
        run.expect = Expect::Violates;
        run.writes.push(write(3_300, 0, token, false, true));
        run.overlaps = vec![Overlap { lock: 0, from: 2_700 * MS, until: 4_800 * MS }];
        run.said =
            "Both held the lock for 2.1 s; the resource refused the older one's write.".to_owned();
        run.violations = vec![Violation {
            checker: "C2".to_owned(),
            what: "two guards of orders/42 were valid at once for 2.1 s".to_owned(),
            at: Some(2_700 * MS),
        }];
    }
    run
}

fn herd(store: &str, token: u64) -> Run {
    let mut run = empty(store, "herd", Kind::Story);
    run.clients = (1..=200).map(|n| format!("waiter {n}")).collect();
    run.nanos = 4_200 * MS;
    run.grants = 200;
    for client in 0..200 {
        let from = 150 + client as u64 * 20;
        run.waits.push(wait(client, client as u64 / 3, from));
        run.holds.push(hold(client, token + from, from, from + 19, End::Released));
    }
    run.said = "199 releases woke 199 waiters, one each.".to_owned();
    run
}

fn storm(store: &str, token: u64, dice: &mut Dice) -> Run {
    let mut run = empty(store, "storm", Kind::Story);
    run.clients = (1..=8).map(|n| format!("task {n}")).collect();
    let mut now = 10;
    for n in 0..6_000 {
        let client = dice.below(8) as usize;
        let until = now + 1 + dice.below(4);
        run.holds.push(hold(client, token + n, now, until, End::Released));
        run.writes.push(write(now, client, token + n, true, true));
        run.waits.push(wait(client, now.saturating_sub(3), now));
        now = until + 1;
    }
    run.grants = 6_000;
    run.nanos = now * MS;
    run.said = "6,000 grants, 5,812 attempts cancelled, nothing left behind.".to_owned();
    run
}

/// Three locks, five clients, faults of every kind.
fn random(store: &str, token: u64, round: u32, dice: &mut Dice) -> Run {
    let mut run = empty(store, "counter and register", Kind::Random);
    (run.round, run.seed) = (round, dice.next());
    run.clients = names(&["c1", "c2", "c3", "c4", "c5"]);
    run.locks = names(&["cart", "stock", HOSTILE]);
    for lock in 0..3 {
        let mut now = 20 + dice.below(200);
        for n in 0..12 {
            let client = dice.below(5) as usize;
            let until = now + 100 + dice.below(700);
            let end = if dice.below(6) == 0 { End::Lost } else { End::Released };
            let token = token + 100 * n + lock as u64;
            run.holds.push(Hold { lock, ..hold(client, token, now, until, end) });
            let from = now.saturating_sub(dice.below(400));
            run.waits.push(Wait { lock, ..wait((client + 1) % 5, from, until) });
            run.writes.push(Write { lock, ..write(now + 50, client, token, true, true) });
            // The same owner enters again: the same token, inside the first hold.
            if n == 4 {
                run.holds.push(Hold { lock, ..hold(client, token, now + 20, until - 20, end) });
            }
            now = until + 5;
        }
        run.nanos = run.nanos.max((now + 100) * MS);
    }
    for _ in 0..7 {
        let at = dice.below(6_000);
        let (what, whom) = [
            ("kill", "c2"),
            ("pause", "c3"),
            ("cut", "server 1"),
            ("lose replies", "server 1"),
            ("clock +60 s", "server 1"),
            ("restart", "server 1"),
        ][dice.below(6) as usize];
        let until = (dice.below(3) > 0).then(|| at + 300 + dice.below(900));
        run.faults.push(fault(at, until, what, whom));
    }
    run.grants = 36;
    run.said = "Clean.".to_owned();
    run
}

/// A small generator, so that the page is the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
