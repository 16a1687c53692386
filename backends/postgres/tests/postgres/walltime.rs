//! Only the database's time decides.

use std::time::Duration;

use distlock_testkit::servers::{Postgres, WallClock};

use crate::child::Child;
use crate::kit::{LONG, Named, client, give_back, run, take_for, url};

pub(crate) const TRIALS: &[Named] =
    &[("s36_a_clients_clock_that_is_off_by_five_minutes_changes_nothing", s36)];

fn s36() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let locks = client(&server, "").await;
        for query in ["", "algorithm=version", "algorithm=advisory", "algorithm=row-lock"] {
            let locks = if query.is_empty() { locks.clone() } else { client(&server, query).await };
            let mut last = 0;
            for off in [300, -300] {
                let clock = WallClock::new().unwrap();
                clock.shift(off * 1_000_000_000);
                let mine = take_for(&locks, "a", LONG).await;
                assert!(mine.token().get() > last, "tokens rise");
                // Its own clock says that mine is long over, or far in the future.
                let mut other = Child::start_with("grab", &url(server.addr(), query), &clock.env());
                assert_eq!(other.line(), "busy");
                let token = mine.token().get();
                give_back(mine).await;
                let got: u64 = other.line().parse().expect("a token");
                assert!(got > token && got - token < 200_000_000, "{got} after {token}");
                last = got;
                // It holds on until it is killed: with its TTL on the database's clock, and not
                // before, the lock passes on.
                let seen = locks.show("a").await.unwrap().expect("held");
                let left = seen.holds[0].holder.left.unwrap();
                assert!(left <= Duration::from_secs(60), "{left:?}");
                assert!(locks.lock("a").try_acquire().await.unwrap().is_err());
                other.say("release");
                assert_eq!(other.line(), "released");
            }
        }
    });
}
