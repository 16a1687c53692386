//! Reading lines: long ones, and such as move meanwhile.

use distlock_core::Mode;
use distlock_core::backend::{Force, Forced};
use distlock_core::info::Query;
use distlock_core::queue::{Joined, QueueStore, Turn, turn};
use distlock_testkit::proxy::{Proxy, Way};
use distlock_testkit::servers::{Server, four_letters, zookeeper};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{LONG, Named, Site, ask, crowd_of, ms, raw, run, server, soon, task, until};

pub(crate) const TRIALS: &[Named] = &[
    ("a_line_that_moves_while_it_is_read_is_read", moving),
    ("a_reader_joins_many_readers_for_the_price_of_few", readers),
    ("a_force_asked_twice_leaves_the_next_holder_alone", force_twice),
];

/// Whoever is first leaves before it can be read, each time, over a slow road.
fn moving() {
    run(async {
        let site = Site::new();
        let (proxy, other) = (Proxy::to(server()).await.unwrap(), raw(server()).await);
        let store = site.store(proxy.addr()).await;
        let first = ask("a", LONG);
        let Joined::In { place, .. } = store.join(&first).await.unwrap() else { panic!("in") };
        let made = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let mut line = Vec::new();
        for _ in 0..300 {
            let prefix = format!("{}/lock-", site.node("a"));
            let (_, number) = other.create(&prefix, b"", &made).await.unwrap();
            line.push(format!("{prefix}{number}"));
        }
        let _ = store.leave(&first.key(), Some(&place)).await.unwrap();
        proxy.delay(ms(20));
        let leaving = task(async move {
            for path in line {
                other.delete(&path, None).await.unwrap();
                distlock_core::Clock::system().sleep(ms(10)).await;
            }
        });
        let me = ask("a", LONG);
        let joined = soon("an answer", store.join(&me)).await.unwrap();
        let Joined::In { place, queue: line, .. } = joined else { panic!("in") };
        assert!(matches!(turn(&line, store.token(&place)), Turn::Behind(_)), "{line:?}");
        leaving.abort();
    });
}

/// How much a server has answered.
async fn packets(server: &Server) -> u64 {
    let all = four_letters(server.addr(), "mntr").await.unwrap();
    let line = all.lines().find(|l| l.starts_with("zk_packets_sent")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

fn readers() {
    run(async {
        let server = Server::start(zookeeper()).await.unwrap();
        let site = Site::new();
        let stores = [site.store(server.addr()).await, site.store(server.addr()).await];
        let mut asked = Vec::new();
        for n in 0..100 {
            let mut me = ask("a", LONG);
            me.mode = Mode::Shared;
            let before = packets(&server).await;
            // In turns: what is of the same client it knows by itself.
            let joined = stores[n % 2].join(&me).await.unwrap();
            assert!(matches!(joined, Joined::In { .. }));
            asked.push(packets(&server).await - before);
        }
        // Heartbeats are among them, now and then.
        let mut last = asked[80..].to_vec();
        last.sort_unstable();
        assert!(last[10] < 20, "answers for each join: {asked:?}");
    });
}

/// The answer is lost after the entry was taken away, and the next in line holds by the time it is
/// asked again.
fn force_twice() {
    run(async {
        let site = Site::new();
        let proxy = Proxy::to(server()).await.unwrap();
        let (locks, operator) = (site.strict(server()).await, site.store(proxy.addr()).await);
        let held = crate::kit::take(&locks, "a", LONG).await;
        let waits = locks.lock("a").ttl(LONG);
        let waiting = task(async move { waits.acquire().await });
        crowd_of(&locks, "a", 2).await;
        let (lock, line) =
            operator.queues(&Query::Name(crate::kit::full("a"))).await.unwrap().remove(0);
        proxy.cut(Way::Replies);
        // It reads the entry before it takes it away: that answer must come.
        let force = task(async move {
            let forced = operator.oust(&lock, &line.entries[0], Force::Now).await;
            (operator, forced)
        });
        distlock_core::Clock::system().sleep(ms(100)).await;
        proxy.heal();
        until("the first is gone", async || held.check().is_err()).await;
        proxy.reset();
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        let (_operator, forced) = soon("an answer", force).await.unwrap();
        assert_eq!(forced.unwrap(), Forced::Done);
        next.check().unwrap();
        crowd_of(&locks, "a", 1).await;
    });
}
