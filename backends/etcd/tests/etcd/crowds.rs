//! What many cost: readers in one line, holds to be renewed; and a force that is asked twice.

use std::num::NonZeroU32;
use std::sync::Arc;

use distlock_core::backend::{Ask, Force, Forced, Kept};
use distlock_core::info::Query;
use distlock_core::queue::{Joined, Keeping, QueueStore, Turn, turn};
use distlock_core::{Clock, Mode};
use distlock_etcd::{Etcd, EtcdEntry};
use distlock_testkit::proxy::Way;
use distlock_testkit::servers::{Server, etcd_metric};

use crate::kit::{
    LONG, Named, give_back, line_of, ms, run, scene, server, soon, strict, take, task,
};
use crate::steps::{self, ask, leave, patient_store, store};

pub(crate) const TRIALS: &[Named] = &[
    ("a_reader_joins_many_readers_for_the_price_of_few", readers),
    ("readers_behind_a_writer_see_it_go_for_the_price_of_few", behind_a_writer),
    ("whoever_waits_for_a_permit_reads_no_more_than_it_must", permits),
    ("a_reader_sees_every_writer_ahead", writers_between),
    ("what_is_known_of_many_renewals_in_time_is_told", slow_road),
    ("a_force_asked_twice_leaves_the_next_holder_alone", force_twice),
];

async fn sent(server: &Server) -> f64 {
    etcd_metric(server, "etcd_network_client_grpc_sent_bytes_total").await.unwrap()
}

fn shared(name: &str) -> Ask {
    Ask { mode: Mode::Shared, ..ask(name, LONG) }
}

async fn join(store: &Etcd, ask: &Ask) -> (EtcdEntry, Turn) {
    match store.join(ask).await.unwrap() {
        Joined::In { place, queue: line, .. } => {
            let turn = turn(&line, store.token(&place));
            (place, turn)
        }
        _ => panic!("not in line"),
    }
}

/// The second hundred cost about as much as the first, not three times as much.
fn readers() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let mut cost = Vec::new();
        for _ in 0..3 {
            let before = sent(&server).await;
            for _ in 0..100 {
                assert_eq!(join(&store, &shared("a")).await.1, Turn::Mine);
            }
            cost.push(sent(&server).await - before);
        }
        assert!(cost[2] < cost[0] * 1.5, "bytes for each hundred: {cost:?}");
    });
}

fn behind_a_writer() {
    run(async {
        let server = server().await;
        let (other, store) = (store(server.addr()).await, store(server.addr()).await);
        let writer = ask("a", LONG);
        let (held, mine) = join(&other, &writer).await;
        assert_eq!(mine, Turn::Mine);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let me = shared("a");
            let (place, turn) = join(&store, &me).await;
            assert!(matches!(turn, Turn::Behind(watch) if watch.len() == 1));
            waiting.push((me, place));
        }
        leave(&other, &writer, &held).await;
        let before = sent(&server).await;
        for (me, place) in &waiting {
            let line = store.queue(&me.lock, place).await.unwrap();
            assert_eq!(turn(&line, store.token(place)), Turn::Mine, "{line:?}");
        }
        let each = (sent(&server).await - before) / 100.0;
        assert!(each < 1500.0, "{each} bytes for each");
    });
}

fn permits() {
    run(async {
        let server = server().await;
        let store = store(server.addr()).await;
        let two = Mode::Permit(NonZeroU32::new(2).unwrap());
        let mut places = Vec::new();
        for n in 0..100 {
            let before = sent(&server).await;
            let me = Ask { mode: two, ..ask("a", LONG) };
            let (place, turn) = join(&store, &me).await;
            assert_eq!(turn == Turn::Mine, n < 2, "{n}: {turn:?}");
            let cost = sent(&server).await - before;
            assert!(cost < 10_000.0, "{n}: {cost} bytes");
            places.push((me, place));
        }
        // One leaves, and the next in line has its turn, and nobody else.
        leave(&store, &places[0].0, &places[0].1).await;
        for (n, (me, place)) in places.iter().enumerate().skip(1) {
            let line = store.queue(&me.lock, place).await.unwrap();
            assert_eq!(turn(&line, store.token(place)) == Turn::Mine, n < 3, "{n}: {line:?}");
        }
    });
}

/// Writers before, between and behind those that the reader's client knows of.
fn writers_between() {
    run(async {
        let server = server().await;
        let (other, store) = (store(server.addr()).await, store(server.addr()).await);
        let mut line = Vec::new();
        for n in 0..24 {
            let write = matches!(n, 3 | 4 | 11 | 17);
            let (at, me) = match write {
                true => (&other, ask("a", LONG)),
                false => (&store, shared("a")),
            };
            let (place, turn) = join(at, &me).await;
            assert_eq!(turn == Turn::Mine, n < 3, "{n}: {turn:?}");
            line.push((write, me, place));
        }
        // The writers leave out of order, the nearest first: those before are still ahead.
        for gone in [17, 4, 3, 11] {
            let (_, me, place) = &line[gone];
            leave(&other, me, place).await;
            line[gone].0 = false;
            let first = line.iter().position(|(write, ..)| *write).unwrap_or(usize::MAX);
            let joins = shared("a");
            let (new, turn_of_new) = join(&store, &joins).await;
            assert_eq!(turn_of_new == Turn::Mine, first == usize::MAX, "without {gone}");
            leave(&store, &joins, &new).await;
            for (n, (_, me, place)) in line.iter().enumerate() {
                if me.mode != Mode::Shared {
                    continue;
                }
                let read = store.queue(&me.lock, place).await.unwrap();
                let mine = turn(&read, store.token(place)) == Turn::Mine;
                assert_eq!(mine, n < first, "{n} without {gone}: {read:?}");
            }
        }
    });
}

/// One after the other, the proofs of all of them would take longer than whoever renews has patience
/// for, and all answers would be thrown away with the last.
fn slow_road() {
    run(async {
        let (_server, proxy) = scene().await;
        let store = Arc::new(patient_store(proxy.addr()).await);
        let joins: Vec<_> = (0..600)
            .map(|i| {
                let (store, one) = (store.clone(), ask(&i.to_string(), ms(10_000)));
                task(async move {
                    let (place, lease) = steps::join(&store, &one).await;
                    let (key, ttl) = (one.key(), one.ttl);
                    (Keeping { key, place, ttl, held: true }, lease)
                })
            })
            .collect();
        let mut places = Vec::new();
        let mut left = LONG;
        for joined in joins {
            let (place, lease) = soon("in line", joined).await.unwrap();
            left = left.min(lease.left(Clock::system().reading()));
            places.push(place);
        }
        proxy.delay(ms(250));
        // As the keeper has it: half of what is left.
        let kept = Clock::system().timeout(left / 2, store.keep(&places)).await;
        let kept = kept.expect("what is known by then is told");
        let sure = kept.iter().filter(|k| matches!(k, Kept::Until { .. })).count();
        eprintln!("{sure} of {} were renewed within {:?}", places.len(), left / 2);
        assert!(sure >= 60, "{sure} of {}", places.len());
    });
}

/// The answer is lost after the entry was taken away, and the next in line holds by the time it is
/// asked again.
fn force_twice() {
    run(async {
        let (server, proxy) = scene().await;
        let url = format!("etcd://{}", server.addr());
        let (locks, operator) = (strict(&url).await, store(proxy.addr()).await);
        let held = take(&locks, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&locks, "a", 1).await;
        let name = Query::Name(ask("a", LONG).lock);
        let (lock, line) = operator.queues(&name).await.unwrap().remove(0);
        proxy.cut(Way::Replies);
        let force = task(async move {
            let forced = operator.oust(&lock, &line.entries[0], Force::Now).await;
            (operator, forced)
        });
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        proxy.heal();
        proxy.reset();
        let (_operator, forced) = soon("an answer", force).await.unwrap();
        assert_eq!(forced.unwrap(), Forced::Done);
        soon("it is told", held.lost()).await;
        next.check().unwrap();
        give_back(next).await;
    });
}
