use std::time::Duration;

use distlock_core::session::SessionStore;
use distlock_core::{Clock, Patience};
use distlock_file::{FileOptions, FileStore};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("tokens_rise_over_crash_reopening_and_a_wall_clock_set_back", wall),
        trial("tokens_rise_over_a_sweep", swept),
        trial("tokens_rise_over_a_reboot_that_lost_the_last_writes", reboot),
        trial("a_torn_record_costs_no_token", torn),
        trial("a_block_of_tokens_is_passed_over_by_the_next", block),
    ]
}

const HOUR: Duration = Duration::from_secs(3600);

fn wall() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let store = open_at(dir.path(), &clock);
        let mut last = 0;
        let mut rises = |token: u64| {
            assert!(token > last, "{token} after {last}");
            last = token;
        };
        for _ in 0..3 {
            rises(until_free(&store, "x").await);
        }
        // The agent's clock is the machine's, far ahead of the held one.
        let mut agent = Agent::new(dir.path());
        agent.say("lock x");
        rises(agent.token());
        agent.kill();
        clock.step_wall(-86_400);
        rises(until_free(&store, "x").await);
        store.close().await;
        rises(until_free(&open_at(dir.path(), &clock), "x").await);
    });
}

fn swept() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let store = open_at(dir.path(), &clock);
        let (conn, token) = lock(&store, "x").await;
        assert_eq!(store.sweep(100).await.unwrap(), 0, "it is held");
        clock.advance(2 * HOUR);
        assert_eq!(store.sweep(100).await.unwrap(), 0, "it is still held");
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        assert_eq!(store.sweep(100).await.unwrap(), 0, "it was used just now");
        clock.advance(2 * HOUR);
        clock.step_wall(-1_000_000);
        assert_eq!(store.sweep(100).await.unwrap(), 1);
        assert!(!dir.path().join("_/x.lock").exists());
        assert!(until_free(&store, "x").await > token);
        // And for a client that knew nothing of it.
        assert!(until_free(&open_at(dir.path(), &clock), "x").await > token + 1);
    });
}

fn reboot() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let store = open_at(dir.path(), &clock);
        until_free(&store, "x").await;
        let file = dir.path().join("_/x.lock");
        let synced = std::fs::read_to_string(&file).unwrap();
        let mut last = until_free(&store, "x").await;
        for _ in 0..100 {
            clock.advance(Duration::from_millis(100));
            last = until_free(&store, "x").await;
        }
        store.close().await;
        // A power cut: what was not synced is as it was, or not there; the boot is another.
        let fence = dir.path().join("fence");
        let text = std::fs::read_to_string(&fence).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let other = |text: &str| text.replace(boot.trim(), "another boot");
        assert_ne!(other(&text), text);
        for lost in [other(&synced), String::new()] {
            std::fs::write(&fence, other(&text)).unwrap();
            std::fs::write(&file, lost).unwrap();
            clock.step_wall(-100_000);
            let store = open_at(dir.path(), &clock);
            let token = until_free(&store, "x").await;
            assert!(token > last, "{token} after {last}");
            assert!(token < last + 30_000_000, "but not far ahead of the clock");
            store.close().await;
        }
    });
}

fn torn() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let store = open_at(dir.path(), &clock);
        let token = until_free(&store, "x").await;
        std::fs::write(dir.path().join("_/x.lock"), "{\"lock\":").unwrap();
        clock.step_wall(-100_000);
        assert!(until_free(&store, "x").await > token);
    });
}

fn block() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let options = FileOptions { clock: clock.clone(), ..Default::default() };
        let store = FileStore::open(dir.path(), options).unwrap();
        let mut want = ask("x", Patience::Never);
        want.block = 100.try_into().unwrap();
        let (conn, token) = with(&store, &want).await.unwrap();
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        assert_eq!(until_free(&store, "x").await, token + 100);
    });
}
