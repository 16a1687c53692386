//! The server's wall clock is stepped: the fence stays right, exclusion only backwards.

use std::time::Duration;

use distlock_core::Clock;
use distlock_testkit::servers::{Redis, WallClock};

use crate::kit::{Named, busy, client, give_back, ms, run, take, take_for};

pub(crate) const TRIALS: &[Named] = &[
    ("a_step_forward_lets_a_second_holder_in_and_the_fence_tells_them_apart", forward),
    ("a_step_back_only_prolongs_and_tokens_never_fall", back),
];

const HOUR: Duration = Duration::from_secs(3600);
const ALGORITHMS: [&str; 2] = ["quarantine=off", "quarantine=off&algorithm=plain"];

fn forward() {
    run(async {
        for query in ALGORITHMS {
            let clock = WallClock::new().unwrap();
            let server = Redis::new().clock(&clock).start().await.unwrap();
            let (one, other) = (client(&server, query).await, client(&server, query).await);
            let older = take_for(&one, "a", ms(20_000)).await;
            clock.forward(HOUR);
            let younger = take_for(&other, "a", ms(20_000)).await;
            assert!(older.check().is_ok() && younger.check().is_ok(), "as the capability says");
            assert!(younger.token() > older.token());
            assert!(other.capability().notes.iter().any(|n| n.contains("wall clock")));
            give_back(younger).await;
            assert!(take(&other, "a").await.token() > older.token());
        }
    });
}

fn back() {
    run(async {
        for query in ALGORITHMS {
            let clock = WallClock::new().unwrap();
            let server = Redis::new().clock(&clock).start().await.unwrap();
            let (one, other) = (client(&server, query).await, client(&server, query).await);
            let ttl = ms(5000);
            let held = take_for(&one, "a", ttl).await;
            let left = one.lock("left").ttl(ttl).acquire().await.unwrap();
            let (token, ticket) = (held.token(), left.detach().unwrap());
            clock.back(HOUR);
            Clock::system().sleep(ttl + ms(1000)).await;
            held.check().unwrap();
            busy(&other, "a").await;
            // One that nobody renews stays for as long as the clock was moved.
            busy(&other, "left").await;
            let resumed = other.resume(&ticket).await;
            if let Ok(resumed) = resumed {
                assert_eq!(resumed.token(), ticket.token);
                give_back(resumed).await;
            }
            give_back(held).await;
            let mut last = token;
            for _ in 0..5 {
                let next = take(&other, "a").await;
                assert!(next.token() > last, "{} after {last}", next.token());
                last = next.token();
                give_back(next).await;
                clock.back(Duration::from_secs(60));
            }
            // Right again, and forward after that: still rising.
            clock.shift(-clock.shifted());
            let now = take(&other, "a").await;
            assert!(now.token() > last);
        }
    });
}
