//! A server without memory, without disk, and one that would throw locks away.

use distlock_core::{Clock, Kind, Outcome};
use distlock_testkit::servers::Redis;

use crate::errors::refused;
use crate::kit::{
    Named, client, give_back, keys, line_of, ms, run, said, soon, take, take_for, until, waiter,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_full_memory_grants_nothing_and_keeps_and_frees_what_is_held", memory),
    ("a_failing_disk_is_told_and_what_is_held_can_be_given_back_later", disk),
    ("an_eviction_policy_is_refused_with_what_to_set", eviction),
    ("an_eviction_policy_set_later_is_found_out", eviction_later),
];

fn memory() {
    run(async {
        for query in ["quarantine=off", "quarantine=off&algorithm=plain"] {
            let server = Redis::new().maxmemory(1 << 30, "noeviction").start().await.unwrap();
            let locks = client(&server, query).await;
            let ttl = ms(5000);
            let (kept, freed) = (take_for(&locks, "kept", ttl).await, take(&locks, "freed").await);
            let waits = waiter(&locks, "freed", ms(10_000));
            if query.contains("plain") {
                let waits = |(k, _): &(String, i64)| k == "dl:{:freed}:l";
                until("it waits", async || keys(&server).await.iter().any(waits)).await;
            } else {
                line_of(&locks, "freed", 1).await;
            }
            said(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
            let e = soon("an answer", locks.lock("new").try_acquire()).await.unwrap_err();
            assert_eq!((e.kind(), e.outcome()), (Kind::Store, Outcome::NotApplied), "{e:?}");
            assert!(e.is_transient() && e.hint().unwrap().contains("maxmemory"), "{e:?}");
            // A newcomer can connect, look and be told, and what is held is renewed and released.
            let other = client(&server, query).await;
            assert!(other.show("kept").await.unwrap().is_some());
            assert!(other.lock("kept").try_acquire().await.is_err());
            Clock::system().sleep(ttl + ms(1000)).await;
            kept.check().unwrap();
            give_back(freed).await;
            assert!(locks.show("kept").await.unwrap().is_some());
            give_back(kept).await;
            assert!(keys(&server).await.iter().all(|(_, left)| *left > 0));
            said(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
            soon("a turn when there is memory again", waits).await.unwrap();
        }
    });
}

fn disk() {
    run(async {
        for query in ["quarantine=off", "quarantine=off&algorithm=plain"] {
            let server = Redis::new().start().await.unwrap();
            let locks = client(&server, query).await;
            let held = take(&locks, "held").await;
            Redis::break_disk(&server).await.unwrap();
            let e = soon("an answer", locks.lock("new").try_acquire()).await.unwrap_err();
            assert_eq!((e.kind(), e.outcome()), (Kind::Store, Outcome::NotApplied), "{e:?}");
            assert!(e.is_transient() && e.hint().unwrap().contains("disk"), "{e:?}");
            // Reading goes on, and so does connecting without the quarantine's marker.
            assert!(client(&server, query).await.show("held").await.unwrap().is_some());
            let e = soon("an answer", held.release()).await.unwrap_err();
            assert!(e.hint().unwrap().contains("disk"), "{e:?}");
            Redis::mend_disk(&server).await.unwrap();
            // The release is repeated in the background.
            until("it is free", async || locks.show("held").await.unwrap().is_none()).await;
            give_back(take(&locks, "new").await).await;
        }
        let server = Redis::new().start().await.unwrap();
        Redis::break_disk(&server).await.unwrap();
        let e = refused(&format!("redis://{}", server.addr())).await;
        assert!(e.kind() == Kind::Store && e.hint().unwrap().contains("disk"), "{e:?}");
        assert_eq!(keys(&server).await, []);
    });
}

fn eviction() {
    run(async {
        for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
            let server = Redis::new().maxmemory(64 << 20, policy).start().await.unwrap();
            let url = format!("redis://{}", server.addr());
            for url in [url.clone(), url + "?algorithm=plain&quarantine=off"] {
                let e = refused(&url).await;
                assert_eq!(e.kind(), Kind::Refused, "{e:?}");
                assert!(e.to_string().contains(policy), "{e}");
                assert!(e.hint().unwrap().contains("maxmemory-policy noeviction"), "{e:?}");
            }
            assert_eq!(keys(&server).await, []);
            said(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
            give_back(take(&client(&server, "quarantine=off").await, "a").await).await;
        }
    });
}

fn eviction_later() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off&max_ttl=6s").await;
        give_back(take_for(&locks, "a", ms(5000)).await).await;
        said(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
        until("it is refused", async || {
            let answer = locks.lock("a").ttl(ms(5000)).try_acquire().await;
            answer.is_err_and(|e| e.hint().is_some_and(|h| h.contains("noeviction")))
        })
        .await;
    });
}
