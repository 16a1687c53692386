use std::time::{Duration, Instant};

use distlock_core::session::SessionStore;
use distlock_core::{Clock, Patience};
use libtest_mimic::Trial;
use rustix::process::Signal;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("kill_9_of_the_holder_lets_the_next_in_at_once", kill_holder),
        trial("s19_five_dead_waiters_and_one_alive", s19),
        trial("s19_a_dead_head_and_a_dead_holder_cost_one_look", dead_both),
        trial("a_lock_delay_follows_a_crash_and_only_a_crash", lock_delay),
        trial("a_stopped_holder_keeps_its_lock", stopped),
        trial("what_dead_processes_left_is_cleared_away", cleared),
    ]
}

fn kill_holder() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let mut took = Vec::new();
        for _ in 0..10 {
            let mut holder = Agent::new(dir.path());
            holder.say("lock x");
            let token = holder.token();
            let mut next = Agent::new(dir.path());
            next.say("lock x");
            until_in_line(dir.path(), "x", 1);
            let start = Instant::now();
            holder.kill();
            assert!(next.token() > token);
            took.push(start.elapsed());
            assert!(attempt(&store, "x").await.is_err());
            next.ask("unlock");
        }
        took.sort();
        eprintln!("kill -9 to the next grant: {took:?}");
        // Most of them, however busy the machine was for one or the other.
        assert!(took[5] < Duration::from_millis(300), "by the kernel, not by the look: {took:?}");
    });
}

fn s19() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (conn, _) = lock(&store, "x").await;
        let mut doomed: Vec<_> = (0..5).map(|_| Agent::new(dir.path())).collect();
        for (i, agent) in doomed.iter_mut().enumerate() {
            agent.say("lock x");
            until_in_line(dir.path(), "x", i + 1);
        }
        let mut alive = Agent::new(dir.path());
        alive.say("lock x");
        until_in_line(dir.path(), "x", 6);
        doomed.iter_mut().for_each(Agent::kill);
        let start = Instant::now();
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        alive.token();
        eprintln!("s19: the living one is in after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(in_line(dir.path(), "x"), 0);
        assert!(attempt(&store, "x").await.is_err());
    });
}

fn dead_both() {
    let dir = tempdir().unwrap();
    let mut holder = Agent::new(dir.path());
    holder.ask("lock x");
    let mut head = Agent::new(dir.path());
    head.say("lock x");
    until_in_line(dir.path(), "x", 1);
    let mut next = Agent::new(dir.path());
    next.say("lock x");
    until_in_line(dir.path(), "x", 2);
    let start = Instant::now();
    head.kill();
    holder.kill();
    next.token();
    eprintln!("dead head and dead holder: next in after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
}

fn lock_delay() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let store = open_at(dir.path(), &clock);
        let mut agent = Agent::new(dir.path());
        agent.ask("lock x 0 10000");
        agent.ask("unlock");
        let (conn, _) = attempt(&store, "x").await.expect("no delay after a release");
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);

        agent.ask("lock x 0 10000");
        agent.kill();
        let busy = attempt(&store, "x").await.err().expect("delayed");
        assert_eq!((busy.holder, busy.left), (None, Some(Duration::from_secs(10))));
        // It does not begin again with each look, also not that of another client.
        clock.advance(Duration::from_secs(6));
        let other = open_at(dir.path(), &clock);
        let busy = attempt(&other, "x").await.err().expect("delayed");
        assert_eq!(busy.left, Some(Duration::from_secs(4)));

        let want = ask("x", Patience::Forever);
        let waiting = with(&other, &want);
        let over = async {
            until_in_line(dir.path(), "x", 1);
            clock.advance(Duration::from_millis(3999));
            assert!(attempt(&store, "x").await.is_err());
            clock.advance(Duration::from_millis(1));
        };
        let (got, ()) = tokio::join!(waiting, over);
        got.unwrap();
    });
}

fn stopped() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let mut agent = Agent::new(dir.path());
        agent.ask("lock x");
        agent.signal(Signal::STOP);
        let busy = attempt(&store, "x").await.err().expect("a stopped process keeps it");
        assert!(busy.holder.is_some());
        agent.signal(Signal::CONT);
        assert_eq!(agent.ask("unlock"), "free");
        attempt(&store, "x").await.unwrap();
    });
}

fn cleared() {
    let dir = tempdir().unwrap();
    run(async {
        let mut agent = Agent::new(dir.path());
        agent.ask("lock x");
        let mut other = Agent::new(dir.path());
        other.say("lock x");
        until_in_line(dir.path(), "x", 1);
        let sessions = || std::fs::read_dir(dir.path().join("sessions")).unwrap().count();
        assert_eq!(sessions(), 3, "two signs of life, one socket");
        other.kill();
        agent.kill();
        let store = open(dir.path());
        let (_conn, _) = attempt(&store, "x").await.unwrap();
        assert_eq!((sessions(), in_line(dir.path(), "x")), (1, 0));
    });
}
