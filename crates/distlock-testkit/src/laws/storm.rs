//! Processes that are killed and stopped while they contend.

use std::path::Path;
use std::time::Duration;

use distlock_core::Locks;

use super::processes::broken;
use crate::StoreUnderTest;
use crate::child::Child;
use crate::history::{self, Recorder, Rules};

const PROCESSES: usize = 6;
const FAULTS: u64 = 10;
const TTL: Duration = Duration::from_millis(500);

/// The same plan of faults every time: a number for each.
fn dice(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) >> 7
}

fn contender(site: &StoreUnderTest, name: &str, histories: &Path, n: usize) -> Child {
    let history = histories.join(n.to_string());
    let args = [
        ("url", site.url()),
        ("name", name),
        ("ttl", &TTL.as_millis().to_string()),
        ("history", history.to_str().expect("UTF-8")),
    ];
    Child::start("storm", &args)
}

/// Which of them holds the lock now.
async fn holder(locks: &Locks, name: &str, children: &[Child]) -> Option<usize> {
    let held = locks.show(name).await.expect("show")?;
    let pid = held.holds.first()?.holder.label.to_string();
    children.iter().position(|c| c.pid().to_string() == pid)
}

/// Contending processes are killed in the middle of whatever they do, or stopped for longer than
/// their TTL and resumed: no two holds are ever valid at once, tokens rise, and everybody alive is
/// served in the end.
pub async fn a_storm_of_kills_and_stops_breaks_nothing(site: &StoreUnderTest) {
    let histories = site.dir().join("histories");
    std::fs::create_dir(&histories).expect("a directory");
    let mut notes = Recorder::create(&histories.join("notes")).expect("a history");
    let name = site.name();
    let mut children: Vec<Child> =
        (0..PROCESSES).map(|n| contender(site, &name, &histories, n)).collect();
    for child in &mut children {
        child.hear("ready").await;
    }
    let (clock, locks) = (site.clock(), site.client().await);
    for fault in 0..FAULTS {
        clock.sleep(Duration::from_millis(50 + dice(fault) % 200)).await;
        // Three in four hit whoever holds the lock, the others anybody.
        let anybody = usize::try_from(dice(fault) >> 8).unwrap_or(0) % PROCESSES;
        let victim = match fault % 4 {
            0 => anybody,
            _ => holder(&locks, &name, &children).await.unwrap_or(anybody),
        };
        if fault % 2 == 0 {
            notes.kills(children[victim].pid());
            children[victim].kill().await;
            let n = PROCESSES + usize::try_from(fault).unwrap_or(0);
            children[victim] = contender(site, &name, &histories, n);
            children[victim].hear("ready").await;
        } else {
            children[victim].stop();
            clock.sleep(TTL * 2).await;
            children[victim].resume();
        }
    }
    for child in &mut children {
        child.say("serve?").await;
    }
    for child in &mut children {
        child.hear("served").await;
    }
    for mut child in children {
        child.say("stop").await;
        child.hear("done").await;
        child.ended_well().await;
    }
    let events = history::read(&histories).expect("the histories");
    // Whoever is stopped or killed in line is passed over: order is another law's affair.
    let found = broken(site, &events, Rules { fifo: false });
    assert!(found.is_empty(), "{} violations, the first: {}", found.len(), found[0]);
    let grants = events.iter().filter(|e| matches!(e.what, history::What::Granted { .. })).count();
    eprintln!("{FAULTS} faults among {PROCESSES} processes: {grants} grants, all in order");
    // A store with a long shortest TTL waits most of the time for whoever was killed.
    assert!(grants > 2 * usize::try_from(FAULTS).unwrap_or(0), "only {grants} grants");
}
