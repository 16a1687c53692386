use std::time::{Duration, Instant};

use distlock_core::info::Query;
use distlock_core::session::SessionStore;
use distlock_core::{Clock, Patience};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::agent::Agent;
use crate::util::*;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("min_hold_outlives_the_process_that_released", min_hold_exit),
        trial("min_hold_is_kept_to_the_moment", min_hold),
        trial("min_hold_does_not_let_the_next_lose_its_turn", min_hold_order),
    ]
}

fn min_hold_exit() {
    let dir = tempdir().unwrap();
    run(async {
        let store = open(dir.path());
        let start = Instant::now();
        let mut agent = Agent::new(dir.path());
        agent.ask("lock x 6000 0");
        agent.ask("unlock");
        agent.finish();
        let busy = attempt(&store, "x").await.err().expect("it lingers");
        assert!(busy.left.unwrap() <= Duration::from_millis(6000));
        let seen = store.inspect(&Query::Name(name("x"))).await.unwrap();
        assert!(seen[0].holds[0].lingering);
        let (_conn, _) = lock(&store, "x").await;
        assert!(start.elapsed() >= Duration::from_millis(6000));
    });
}

fn min_hold() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let (a, b) = (open_at(dir.path(), &clock), open_at(dir.path(), &clock));
        let mut want = ask("x", Patience::Forever);
        want.min_hold = Duration::from_secs(50);
        let (conn, _) = with(&a, &want).await.unwrap();
        clock.advance(Duration::from_secs(10));
        assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
        for store in [&a, &b] {
            let busy = attempt(store, "x").await.err().expect("it lingers");
            assert_eq!(busy.left, Some(Duration::from_secs(40)));
            assert_eq!(busy.holder.unwrap().age, Duration::from_secs(10));
        }
        clock.advance(Duration::from_micros(39_999_999));
        assert!(attempt(&b, "x").await.is_err());
        clock.advance(Duration::from_micros(1));
        let (conn, _) = attempt(&b, "x").await.unwrap();
        // Held long enough, a release frees at once.
        assert_eq!(b.unlock(conn).await.unwrap(), RELEASED);
        attempt(&a, "x").await.unwrap();
    });
}

fn min_hold_order() {
    let dir = tempdir().unwrap();
    let clock = Clock::held();
    run(async {
        let (a, b) = (open_at(dir.path(), &clock), open_at(dir.path(), &clock));
        let mut want = ask("x", Patience::Forever);
        want.min_hold = Duration::from_secs(50);
        let (conn, _) = with(&a, &want).await.unwrap();
        assert_eq!(a.unlock(conn).await.unwrap(), RELEASED);
        // One gives up while the lock is kept for it; the next must get it all the same.
        let short = ask("x", Patience::For(Duration::from_secs(20)));
        let long = ask("x", Patience::Forever);
        let one = with(&a, &short);
        let two = async {
            until_in_line(dir.path(), "x", 1);
            clock.advance(Duration::from_micros(1));
            with(&b, &long).await
        };
        let drive = async {
            while in_line(dir.path(), "x") < 2 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(20));
            while in_line(dir.path(), "x") > 1 {
                tokio::task::yield_now().await;
            }
            assert!(attempt(&a, "x").await.is_err());
            clock.advance(Duration::from_secs(30));
        };
        let (one, two, ()) = tokio::join!(one, two, drive);
        assert!(one.err().unwrap().left.is_some());
        two.unwrap();
    });
}
