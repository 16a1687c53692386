//! Getting in.

use std::time::Duration;

use distlock_core::Kind;
use distlock_testkit::servers::{Certs, Redis, Server};

use super::{LAWS, Nodes, connect, give_back, held_at, take, until};

const TTL: Duration = Duration::from_secs(10);

pub(crate) async fn opening_needs_a_majority_and_names_the_rest() {
    let nodes = Nodes::start(3).await.unwrap();
    let addrs: Vec<String> = nodes.0.iter().map(|s| s.addr().to_string()).collect();
    nodes.0[0].kill();
    nodes.0[1].kill();
    let e = connect(&nodes.url(LAWS)).await.expect_err("one of three");
    assert_eq!(e.kind(), Kind::Unreachable);
    assert!(e.to_string().contains("1 of 3 nodes answer"), "{e}");
    assert!(addrs[..2].iter().all(|a| e.message().contains(a)) && e.hint().is_some(), "{e:?}");
    assert!(!e.message().contains(&addrs[2]), "{e}");
    // Two of three will do, and the third is taken in when it comes.
    nodes.0[1].again().await.unwrap();
    let a = nodes.client(LAWS).await;
    let guard = take(&a, "x", TTL).await;
    assert!(held_at(&nodes.0[1], "x").await && held_at(&nodes.0[2], "x").await);
    nodes.0[0].again().await.unwrap();
    until("the third has it too", async || held_at(&nodes.0[0], "x").await).await;
    give_back(guard).await;
}

pub(crate) async fn a_server_has_one_vote() {
    let nodes = Nodes::start(2).await.unwrap();
    let (a, b) = (nodes.0[0].addr(), nodes.0[1].addr());
    let url = format!("redlock://{a},localhost:{},{b}?{LAWS}", a.port());
    let e = connect(&url).await.expect_err("two names of one server");
    assert_eq!(e.kind(), Kind::Usage);
    assert!(e.to_string().contains("are one server"), "{e}");
}

pub(crate) async fn each_node_may_have_its_own_login() {
    let mut servers: Vec<Server> = Vec::new();
    for i in 0..3 {
        servers.push(Redis::new().password(&format!("secret{i}")).start().await.unwrap());
    }
    let url = |wrong: usize| {
        let nodes = servers.iter().enumerate().map(|(i, server)| {
            let word = if i < wrong { "nonsense" } else { "secret" };
            format!("node=redis://:{word}{i}@{}", server.addr())
        });
        format!("redlock:?{}&{LAWS}", nodes.collect::<Vec<_>>().join("&"))
    };
    let a = connect(&url(0)).await.unwrap();
    give_back(take(&a, "x", TTL).await).await;
    assert!(!a.site().contains("secret"), "{}", a.site());
    // A majority lets us in.
    connect(&url(1)).await.unwrap();
    let e = connect(&url(2)).await.expect_err("two refuse us");
    assert_eq!(e.kind(), Kind::Credentials);
    assert!(!format!("{e:?}").contains("nonsense") && e.hint().is_some(), "{e:?}");
}

pub(crate) async fn tls_nodes_are_entered() {
    let certs = Certs::new().unwrap();
    let mut servers: Vec<Server> = Vec::new();
    for _ in 0..3 {
        servers.push(Redis::new().tls(&certs).start().await.unwrap());
    }
    let hosts: Vec<String> =
        servers.iter().map(|s| format!("localhost:{}", s.addr().port())).collect();
    let hosts = hosts.join(",");
    let ca = certs.ca();
    let a = connect(&format!("redlocks://{hosts}?ca={}&{LAWS}", ca.display())).await.unwrap();
    give_back(take(&a, "x", TTL).await).await;
    let e = connect(&format!("redlocks://{hosts}?{LAWS}")).await.expect_err("unknown authority");
    assert_eq!(e.kind(), Kind::Refused, "{e:?}");
}
