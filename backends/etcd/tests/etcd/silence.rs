//! A connection that falls silent without an end: who notices, and how soon.

use std::net::SocketAddr;

use distlock_core::{Clock, Locks};
use distlock_testkit::proxy::Proxy;

use crate::kit::{
    LONG, Named, client, connect, give_back, line_of, ms, run, scene, server, soon, take, task,
    timed, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_call_that_is_given_up_early_moves_on_to_another_member", given_up_early),
    ("a_hold_is_kept_by_another_member_when_its_connection_falls_silent", held),
    ("an_idle_connection_that_falls_silent_is_noticed", idle),
    ("many_who_need_a_session_of_a_dead_cluster_wait_once", one_wait),
    ("who_began_a_session_and_does_not_run_keeps_nobody_waiting", not_polled),
    ("clients_spread_over_the_members", spread),
];

/// A client whose calls go by way of the proxy. The other member of its URL is the same server by a
/// way of its own: to the client they are two.
async fn by_way_of(proxy: &Proxy, other: SocketAddr, options: &str) -> Locks {
    let url = format!("etcd://{},{other}{options}", proxy.addr());
    loop {
        let before = proxy.accepted();
        let locks = connect(&url).await.unwrap();
        if proxy.accepted() > before {
            return locks;
        }
    }
}

/// Asked with less patience than one member is given, again and again.
fn given_up_early() {
    run(async {
        let (server, proxy) = scene().await;
        let locks = by_way_of(&proxy, server.addr(), "").await;
        give_back(take(&locks, "a", LONG).await).await;
        proxy.cut_both();
        let (clock, mut tries) = (Clock::system(), 0);
        let held = loop {
            tries += 1;
            assert!(tries <= 2, "the other member was not asked in time");
            if let Some(held) = clock.timeout(ms(1000), locks.lock("b").ttl(LONG).acquire()).await {
                break held.unwrap();
            }
        };
        eprintln!("granted at try {tries}");
        give_back(held).await;
    });
}

/// Its renewal has less patience than one member is given.
fn held() {
    run(async {
        let (server, proxy) = scene().await;
        let locks = by_way_of(&proxy, server.addr(), "").await;
        let held = take(&locks, "a", ms(4000)).await;
        proxy.cut_both();
        Clock::system().sleep(ms(5000)).await; // longer than the lease: it must have been renewed
        held.check().unwrap();
        give_back(held).await;
    });
}

/// Nobody asks anything: its next look at the line is half a minute away.
fn idle() {
    run(async {
        let (server, proxy) = scene().await;
        let (locks, other) = (by_way_of(&proxy, server.addr(), "").await, client(&server).await);
        let held = take(&other, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&other, "a", 1).await;
        // It watches, and for a while nothing else is said.
        Clock::system().sleep(ms(500)).await;
        proxy.cut_both();
        give_back(held).await;
        let turn = within(ms(15_000), "its turn", waiting).await.unwrap().unwrap();
        give_back(turn).await;
    });
}

/// One after the other they would wait for twenty times as long as one.
fn one_wait() {
    run(async {
        let server = server().await;
        let locks = connect(&format!("etcd://{}?timeout=1s", server.addr())).await.unwrap();
        server.pause();
        let tries: Vec<_> = (0..20)
            .map(|i| {
                let lock = locks.lock(i.to_string()).ttl(LONG);
                task(async move { lock.try_acquire().await })
            })
            .collect();
        let (took, ()) = timed(async {
            for t in tries {
                let _ = t.await.unwrap().expect_err("nobody answers");
            }
        })
        .await;
        assert!(took < ms(5000), "{took:?}");
        server.resume();
    });
}

fn not_polled() {
    run(async {
        let (_server, proxy) = scene().await;
        let locks = connect(&format!("etcd://{}?timeout=2s", proxy.addr())).await.unwrap();
        let mut idle = Box::pin(locks.lock("a").ttl(LONG).acquire());
        let clock = Clock::system();
        proxy.cut_both();
        // Its first question is out, and from here on it does not run.
        tokio::select! {
            biased;
            _ = &mut idle => panic!("nobody answers"),
            () = clock.sleep(ms(100)) => {}
        }
        proxy.heal();
        let other = locks.lock("b").ttl(LONG);
        give_back(soon("a grant", other.acquire()).await.unwrap()).await;
        give_back(soon("a grant", idle).await.unwrap()).await;
    });
}

fn spread() {
    run(async {
        let (server, one) = scene().await;
        let two = Proxy::to(server.addr()).await.unwrap();
        let url = format!("etcd://{},{}", one.addr(), two.addr());
        for _ in 0..24 {
            drop(connect(&url).await.unwrap());
        }
        let (one, two) = (one.accepted(), two.accepted());
        assert!(one > 0 && two > 0, "{one} and {two} of 24 began there");
    });
}
