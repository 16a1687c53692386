//! The longest TTL that all clients of a server agree on: the quarantine lasts as long, so no lease
//! may be longer, whoever asks for it and however.

use std::time::Duration;

use distlock_core::backend::{Due, Kept, Key};
use distlock_core::url::StoreUrl;
use distlock_core::{Kind, Locks};
use distlock_testkit::servers::{Redis, Server, raw};

use crate::errors::refused;
use crate::kit::{Named, client, give_back, ms, run, said, take_for, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_client_without_quarantine_agrees_on_max_ttl_too", off),
    ("a_resumed_hold_gets_no_longer_lease_than_agreed_on", resumed),
    ("the_marker_lives_as_long_as_a_client_is_connected", refreshed),
    ("a_client_whose_max_ttl_is_not_the_markers_any_more_gets_no_lease", replaced),
    ("a_marker_deleted_by_hand_is_written_anew", deleted),
];

const ALGORITHMS: [&str; 2] = ["", "&algorithm=plain"];

fn off() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let _first = client(&server, "max_ttl=2s").await;
        for algorithm in ALGORITHMS {
            let url = format!("redis://{}?quarantine=off&max_ttl=1h{algorithm}", server.addr());
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        }
        // And the other way round: whoever comes first says what all must say.
        let server = Redis::new().durable().start().await.unwrap();
        let _first = client(&server, "quarantine=off&max_ttl=1h").await;
        refused(&format!("redis://{}?max_ttl=2s", server.addr())).await;
    });
}

/// What the server knows to be left of a lock.
async fn left(locks: &Locks, name: &str) -> Duration {
    let seen = locks.show(name).await.unwrap().expect("held");
    seen.holds[0].holder.left.expect("it ends")
}

fn resumed() {
    run(async {
        for algorithm in ALGORITHMS {
            let server = Redis::new().start().await.unwrap();
            let query = format!("quarantine=off&max_ttl=4s{algorithm}");
            let locks = client(&server, &query).await;
            let held = take_for(&locks, "a", ms(4000)).await;
            let mut ticket = held.detach().unwrap();
            ticket.ttl = Duration::from_secs(12 * 3600);
            let e = locks.resume(&ticket).await.expect_err("a ticket that is refused");
            assert_eq!(e.kind(), Kind::Usage, "{e:?}");
            // The client refuses it; so does the server's script, whoever asks.
            let url = StoreUrl::parse(&format!("redis://{}?{query}", server.addr())).unwrap();
            let store = distlock_redis::open(url).await.unwrap();
            let key = Key { lock: ticket.lock.clone(), req: ticket.req };
            let kept = store.keep(&[Due { key, ttl: ticket.ttl }]).await;
            assert!(matches!(kept[..], [Kept::Until { .. }]), "{kept:?}");
            let left = left(&locks, "a").await;
            assert!(left <= ms(4000), "a lease of {left:?} where the longest is 4 s");
        }
    });
}

async fn marker_left(server: &Server) -> i64 {
    raw(server.addr(), &["PTTL", "dl:epoch"]).await.unwrap().int().unwrap()
}

fn refreshed() {
    run(async {
        let server = Redis::new().durable().start().await.unwrap();
        let _locks = client(&server, "max_ttl=2s").await;
        assert!(marker_left(&server).await > 60_000);
        assert_eq!(said(&server, &["PEXPIRE", "dl:epoch", "60000"]).await, "1");
        until("its end is put off", async || marker_left(&server).await > 60_000).await;
    });
}

fn replaced() {
    run(async {
        for algorithm in ALGORITHMS {
            let server = Redis::new().durable().start().await.unwrap();
            let long = client(&server, &format!("max_ttl=20s&timeout=1s{algorithm}")).await;
            let held = take_for(&long, "held", ms(20_000)).await;
            // By hand, or by a clock that went on for a week.
            assert_eq!(said(&server, &["DEL", "dl:epoch"]).await, "1");
            let short = client(&server, &format!("max_ttl=2s&timeout=1s{algorithm}")).await;
            // A quarantine of two seconds would not outlast this one.
            let e = long.lock("a").ttl(ms(20_000)).try_acquire().await.expect_err("refused");
            assert_eq!(e.kind(), Kind::Refused, "{e:?}");
            let ticket = held.detach().unwrap();
            let e = long.resume(&ticket).await.expect_err("refused");
            assert_eq!(e.kind(), Kind::Refused, "{e:?}");
            give_back(take_for(&short, "a", ms(2000)).await).await;
        }
    });
}

fn deleted() {
    run(async {
        for algorithm in ALGORITHMS {
            let server = Redis::new().durable().start().await.unwrap();
            let locks = client(&server, &format!("max_ttl=5s&timeout=1s{algorithm}")).await;
            let held = take_for(&locks, "a", ms(5000)).await;
            assert_eq!(said(&server, &["DEL", "dl:epoch"]).await, "1");
            // Nobody notices, and the agreement is there again.
            give_back(take_for(&locks, "b", ms(5000)).await).await;
            assert!(marker_left(&server).await > 0);
            give_back(held).await;
        }
    });
}
