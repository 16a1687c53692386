use std::sync::Mutex;

use distlock_core::info::Query;
use distlock_core::session::{Alive, SessionStore};
use distlock_core::{Clock, Patience};
use libtest_mimic::Trial;
use rustix::process::Signal;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("processes_are_served_in_order_of_arrival", between_processes),
        trial("tasks_of_one_client_are_served_in_order_without_a_tick", inside),
        trial("clients_and_tasks_mixed_are_served_in_order", mixed),
        trial("nobody_passes_a_living_ticket", no_barging),
        trial("a_waiter_hears_where_it_stands", status),
        trial("a_line_that_was_removed_forms_again", removed_line),
    ]
}

fn between_processes() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (mut conn, mut last) = lock(&store, "x").await;
        let mut agents: Vec<_> = (0..6).map(|_| Agent::new(dir.path())).collect();
        // Their order of arrival is not that of their process ids.
        agents.rotate_left(3);
        for (i, agent) in agents.iter_mut().enumerate() {
            agent.say("once x");
            until_in_line(dir.path(), "x", i + 1);
        }
        assert!(matches!(store.alive(&mut conn).await, Alive::Yes { waiters: 6 }));
        let seen = store.inspect(&Query::Name(name("x"))).await.unwrap();
        assert_eq!((seen[0].holds.len(), seen[0].waiters.len()), (1, 6));
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        for agent in &mut agents {
            let token = agent.token();
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    });
}

fn inside() {
    let dir = tempdir().unwrap();
    // The clock stands, so no look once a second helps: every wake-up is pushed.
    let clock = Clock::held();
    run(async {
        let store = std::sync::Arc::new(open_at(dir.path(), &clock));
        let (conn, _) = lock(&store, "x").await;
        let order = std::sync::Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..50 {
            let (store, order) = (store.clone(), order.clone());
            tasks.spawn(async move {
                let (conn, token) = lock(&store, "x").await;
                order.lock().unwrap().push((i, token));
                assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
            });
            tokio::task::yield_now().await;
        }
        until_in_line(dir.path(), "x", 50);
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let order = order.lock().unwrap();
        assert!(order.iter().map(|o| o.0).eq(0..50), "{order:?}");
        assert!(order.is_sorted_by(|a, b| a.1 < b.1));
    });
}

fn mixed() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let stores: Vec<_> =
            (0..3).map(|_| std::sync::Arc::new(open_at(dir.path(), &clock))).collect();
        let (conn, _) = lock(&stores[0], "x").await;
        let order = std::sync::Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..30 {
            // Now and then two of one client in a row.
            let (store, order) = (stores[i / 2 % 3].clone(), order.clone());
            // Arrivals of different clients are ordered by the clock.
            clock.advance(std::time::Duration::from_micros(1));
            tasks.spawn(async move {
                let (conn, _) = lock(&store, "x").await;
                order.lock().unwrap().push(i);
                assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
            });
            tokio::task::yield_now().await;
            until_in_line(dir.path(), "x", i + 1);
        }
        assert_eq!(stores[0].unlock(conn).await.unwrap(), RELEASED);
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert!(order.lock().unwrap().iter().copied().eq(0..30), "{order:?}");
    });
}

fn no_barging() {
    let dir = tempdir().unwrap();
    run(async {
        let (store, other) = (open(dir.path()), open(dir.path()));
        let (conn, _) = lock(&store, "x").await;
        let mut waiter = Agent::new(dir.path());
        waiter.say("lock x");
        until_in_line(dir.path(), "x", 1);
        // Stopped, it cannot take what it is first in line for; nor may anybody else.
        waiter.signal(Signal::STOP);
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        for s in [&store, &other] {
            assert!(attempt(s, "x").await.is_err(), "past the line");
        }
        let want = ask("x", Patience::For(std::time::Duration::from_millis(50)));
        assert!(with(&other, &want).await.is_err(), "past the line");
        waiter.signal(Signal::CONT);
        waiter.token();
        waiter.ask("unlock");
        attempt(&other, "x").await.unwrap();
    });
}

fn status() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let (a, b) = (open_at(dir.path(), &clock), open_at(dir.path(), &clock));
        let (first, one) = lock(&a, "x").await;
        let seen = Mutex::new(Vec::new());
        let wants = [ask("x", Patience::Forever), ask("x", Patience::Forever)];
        let head = async {
            let (conn, token) = with(&a, &wants[0]).await.unwrap();
            // Two looks of the waiting client: whose lock it is now comes with the first.
            while seen.lock().unwrap().len() < 2 {
                clock.advance(std::time::Duration::from_secs(1));
                tokio::task::yield_now().await;
            }
            assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
            token
        };
        let note = |s: &distlock_core::QueueStatus| {
            let token = s.holder.as_ref().map(|h| h.token.get());
            seen.lock().unwrap().push((token, s.ahead));
        };
        let second = async {
            until_in_line(dir.path(), "x", 1);
            clock.advance(std::time::Duration::from_micros(1));
            b.lock(&wants[1], &note).await.unwrap()
        };
        let release = async {
            while seen.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(a.unlock(first).await.unwrap(), RELEASED);
        };
        let (two, _held, ()) = tokio::join!(head, second, release);
        let mut seen = seen.into_inner().unwrap();
        // The last status may be a free lock, seen before the waiter enters it.
        seen.pop_if(|status| *status == (None, Some(0)));
        assert_eq!(seen, [(Some(one), Some(1)), (Some(two), Some(0))]);
    });
}

fn removed_line() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let (conn, _) = lock(&store, "x").await;
        let mut agents: Vec<_> = (0..2).map(|_| Agent::new(dir.path())).collect();
        for (i, agent) in agents.iter_mut().enumerate() {
            agent.say("once x");
            until_in_line(dir.path(), "x", i + 1);
        }
        // The operator tidies up: the line, and everybody's sign of life.
        std::fs::remove_dir_all(line_of(dir.path(), "x")).unwrap();
        for entry in std::fs::read_dir(dir.path().join("sessions")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        until_in_line(dir.path(), "x", 2);
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        assert!(agents.iter_mut().all(|a| a.token() > 0));
    });
}
