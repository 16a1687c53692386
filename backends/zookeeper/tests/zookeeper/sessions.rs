//! Sessions: how long, how many, and what becomes of them.

use distlock_core::LossReason;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Server, four_letters, zookeeper, zookeeper_with};

use crate::kit::{
    LONG, Named, Site, connect, crowd, crowd_of, give_back, ms, run, server, soon, take, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("the_servers_say_how_long_a_session_is", granted),
    ("a_restart_of_the_server_keeps_what_is_held", restart),
    ("a_broken_connection_is_an_event_and_no_loss", broken),
    ("one_session_for_all_of_a_ttl", one_session),
    ("ttls_that_differ_little_share_a_session", one_class),
    ("a_session_survives_whoever_had_it_opened", survives),
    ("a_request_given_up_unanswered_is_undone_and_stays_out", given_up),
    ("what_arrives_too_late_is_swept", swept),
    ("a_place_is_proved_by_what_is_there", proved),
];

fn granted() {
    run(async {
        let short = Server::start(zookeeper_with(&["maxSessionTimeout=3000"])).await.unwrap();
        let site = Site::new();
        let locks = site.client(short.addr()).await;
        let held = take(&locks, "a", LONG).await;
        assert_eq!(held.ttl(), ms(3000));
        assert!(held.remaining() < ms(3000));
        give_back(held).await;
        drop(short);
        // Two ticks of two seconds are the least: a lease needs four to be kept.
        let long = Server::start(zookeeper_with(&["tickTime=2000"])).await.unwrap();
        let locks = connect(&format!("zookeeper://{}{}", long.addr(), site.0)).await.unwrap();
        let asked = distlock_core::Clock::system().now();
        let held = take(&locks, "a", ms(1000)).await;
        assert_eq!(held.ttl(), ms(8000));
        // A tenth and a tick less.
        let left = held.remaining();
        let since = distlock_core::Clock::system().now().since(asked);
        assert!(left <= ms(5200) && left + since >= ms(5200), "{left:?} after {since:?}");
        until("it was renewed", async || {
            held.check().unwrap();
            held.remaining() < ms(3000)
        })
        .await;
    });
}

fn restart() {
    run(async {
        let server = Server::start(zookeeper()).await.unwrap();
        let site = Site::new();
        let locks = site.client(server.addr()).await;
        let held = take(&locks, "a", LONG).await;
        let token = held.token();
        server.kill();
        server.again().await.unwrap();
        until("it answers again", async || crowd(&locks, "a").await == 1).await;
        held.check().unwrap();
        give_back(held).await;
        let next = take(&locks, "a", LONG).await;
        assert!(next.token() > token);
    });
}

fn broken() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let locks = site.strict(proxy.addr()).await;
        let held = take(&locks, "a", ms(10_000)).await;
        let waits = locks.lock("a").ttl(ms(10_000));
        let waiting = crate::kit::task(async move { waits.acquire().await });
        crowd_of(&locks, "a", 2).await;
        for _ in 0..3 {
            let before = proxy.accepted();
            proxy.reset();
            until("it connects again", async || proxy.accepted() > before).await;
            held.check().unwrap();
        }
        give_back(held).await;
        let next = soon("its turn, in the same session", waiting).await.unwrap().unwrap();
        next.check().unwrap();
    });
}

/// How many connections a server has, the one that asks among them.
async fn connections_of(server: &Server) -> u32 {
    let all = four_letters(server.addr(), "mntr").await.unwrap();
    let line = all.lines().find(|l| l.starts_with("zk_num_alive_connections")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// As a program has them whose TTL is what is left of some other time.
fn one_class() {
    run(async {
        let server = Server::start(zookeeper_with(&["maxSessionTimeout=10000"])).await.unwrap();
        let site = Site::new();
        let locks = site.client(server.addr()).await;
        let before = connections_of(&server).await;
        let mut all = Vec::new();
        for i in 0..20 {
            let ttl = ms(7001 + i * 37);
            let held = take(&locks, &i.to_string(), ttl).await;
            assert!(held.ttl() >= ttl, "{:?}", held.ttl());
            all.push(held);
        }
        // Beyond the longest session of the servers they are all the same.
        for i in 0..20 {
            all.push(take(&locks, &format!("long {i}"), ms(60_000 + i * 40_000)).await);
        }
        assert!(connections_of(&server).await <= before + 3);
    });
}

/// Callers with too little patience for a session, again and again.
fn survives() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let locks = site.client(proxy.addr()).await;
        give_back(take(&locks, "a", LONG).await).await;
        proxy.delay(ms(100));
        let (clock, before) = (distlock_core::Clock::system(), proxy.accepted());
        // Each is given up before a session can be open.
        for _ in 0..5 {
            let lock = locks.lock("a").ttl(ms(20_000));
            assert!(clock.timeout(ms(100), lock.acquire()).await.is_none());
        }
        let lock = locks.lock("a").ttl(ms(20_000));
        let held = soon("a grant", lock.acquire()).await.unwrap();
        assert_eq!(proxy.accepted(), before + 1, "connections");
        proxy.heal();
        give_back(held).await;
    });
}

fn one_session() {
    run(async {
        let server = Server::start(zookeeper()).await.unwrap();
        let site = Site::new();
        let locks = site.client(server.addr()).await;
        let connections = async || connections_of(&server).await;
        // The one that asks is one of them.
        let before = connections().await;
        let mut all = Vec::new();
        for i in 0..20 {
            all.push(take(&locks, &i.to_string(), ms(10_000)).await);
        }
        assert_eq!(connections().await, before);
        all.push(take(&locks, "another", ms(20_000)).await);
        assert_eq!(connections().await, before + 1);
        // They end together, with their session.
        server.kill();
        for held in &all[..20] {
            assert_eq!(soon("it is lost", held.lost()).await.why, LossReason::Expired);
        }
    });
}

fn given_up() {
    run(async {
        use distlock_core::queue::{Joined, QueueStore};
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let store = site.store(proxy.addr()).await;
        let look = site.client(server()).await;
        let first = crate::kit::ask("a", ms(4000));
        let Joined::In { place, .. } = store.join(&first).await.unwrap() else { panic!("in") };
        let _ = store.leave(&first.key(), Some(&place)).await.unwrap();
        // Sent, applied, never answered, and given up while nothing can be asked.
        let lost = crate::kit::ask("a", ms(4000));
        proxy.drop_replies();
        {
            let joining = std::pin::pin!(store.join(&lost));
            let seen = crowd_of(&look, "a", 1);
            tokio::select! { biased; _ = joining => panic!("answered"), () = seen => {} }
        }
        let (clock, key) = (distlock_core::Clock::system(), lost.key());
        let left = clock.timeout(ms(100), store.leave(&key, None)).await;
        assert!(left.is_none(), "no answer");
        proxy.heal();
        proxy.reset();
        // Whoever repeats the leave finds it, in the session it was made in.
        until("it can be left", async || store.leave(&lost.key(), None).await.is_ok()).await;
        crowd_of(&look, "a", 0).await;
        assert!(matches!(store.join(&lost).await.unwrap(), Joined::Tombstoned), "it stays out");
    });
}

/// A second entry of a request that is in line already, as a create leaves it that went through the
/// same server twice: here the bytes of the first are sent twice.
fn swept() {
    run(async {
        use distlock_core::queue::{Joined, QueueStore};
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let store = site.store(proxy.addr()).await;
        let look = site.client(server()).await;
        let first = crate::kit::ask("a", ms(4000));
        let Joined::In { place, .. } = store.join(&first).await.unwrap() else { panic!("in") };
        let _ = store.leave(&first.key(), Some(&place)).await.unwrap();
        let twice = crate::kit::ask("a", ms(4000));
        proxy.duplicate(distlock_testkit::proxy::Way::Requests);
        let Joined::In { place, .. } = store.join(&twice).await.unwrap() else { panic!("in") };
        // It leaves by the entry it knows of, once the connection is back that broke when its answer
        // came twice; the other one is nobody's.
        until("it leaves", async || store.leave(&twice.key(), Some(&place)).await.is_ok()).await;
        crowd_of(&look, "a", 0).await;
    });
}

fn proved() {
    run(async {
        use distlock_core::Mode;
        use distlock_core::backend::Force;
        use distlock_core::queue::{Joined, Proven, QueueStore};
        let site = Site::new();
        let (store, other) = (site.store(server()).await, crate::kit::raw(server()).await);
        let mut places = Vec::new();
        for _ in 0..3 {
            let ask = crate::kit::ask("a", LONG);
            let Joined::In { place, .. } = store.join(&ask).await.unwrap() else { panic!("in") };
            assert!(matches!(store.prove(&ask.key(), &place).await, Ok(Proven::Mine(_))));
            places.push((ask.key(), place));
        }
        let lines = store.queues(&distlock_core::info::Query::Name(crate::kit::full("a"))).await;
        let (lock, line) = lines.unwrap().remove(0);
        assert!(line.entries.iter().all(|e| e.mode == Mode::Exclusive && !e.revoked));
        let _ = store.oust(&lock, &line.entries[0], Force::Revoke).await.unwrap();
        let path = format!("{}/{}", site.node("a"), line.entries[1].spot);
        other.delete(&path, None).await.unwrap();
        let proven = async |i: usize| store.prove(&places[i].0, &places[i].1).await.unwrap();
        assert!(matches!(proven(0).await, Proven::Lost(LossReason::Revoked)));
        assert!(matches!(proven(1).await, Proven::Lost(LossReason::Gone)));
        assert!(matches!(proven(2).await, Proven::Mine(_)));
    });
}
