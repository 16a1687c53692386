use super::super::Wire;
use super::*;

async fn said(node: &Server, command: &[&str]) -> String {
    raw(node.addr(), command).await.expect("an answer").to_string()
}

#[tokio::test]
async fn each_node_serves_a_third_and_a_slot_moves_with_its_keys() {
    let cluster = Cluster::start().await.unwrap();
    let (mut owners, nodes) = (Vec::new(), cluster.nodes());
    for slot in [0, 5460, 5461, 10_921, 10_922, 16_383] {
        owners.push(cluster.serving(slot).await.unwrap());
    }
    assert_eq!(owners, [0, 0, 1, 1, 2, 2]);

    let slot = cluster.slot("{order}:1").await.unwrap();
    assert_eq!(slot, cluster.slot("order").await.unwrap());
    let from = cluster.serving(slot).await.unwrap();
    let to = (from + 1) % 3;
    assert_eq!(said(&nodes[from], &["SET", "{order}:1", "one"]).await, "OK");
    let elsewhere = said(&nodes[to], &["GET", "{order}:1"]).await;
    assert_eq!(elsewhere, format!("-MOVED {slot} {}", nodes[from].addr()));

    // In the middle: what is there is served, what is not is asked for at the other.
    let half = cluster.begin(slot, to).await.unwrap();
    assert_eq!((half.from(), half.to()), (from, to));
    assert_eq!(said(&nodes[from], &["GET", "{order}:1"]).await, "one");
    let ask = format!("-ASK {slot} {}", nodes[to].addr());
    assert_eq!(said(&nodes[from], &["SET", "{order}:2", "two"]).await, ask);
    let mut wire = Wire::to(nodes[to].addr()).await.unwrap();
    assert_eq!(wire.call(&["ASKING"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["SET", "{order}:2", "two"]).await.unwrap().to_string(), "OK");
    assert_eq!(cluster.serving(slot).await.unwrap(), from);
    assert_eq!(half.move_keys().await.unwrap(), 1);
    assert_eq!(said(&nodes[from], &["GET", "{order}:1"]).await, ask);
    half.finish().await.unwrap();

    assert_eq!(cluster.serving(slot).await.unwrap(), to);
    assert_eq!(said(&nodes[to], &["MGET", "{order}:1", "{order}:2"]).await, "[one two]");
    for other in [from, (from + 2) % 3] {
        let moved = said(&nodes[other], &["GET", "{order}:1"]).await;
        assert_eq!(moved, format!("-MOVED {slot} {}", nodes[to].addr()));
    }
    cluster.migrate(slot, from).await.unwrap();
    assert_eq!(said(&nodes[from], &["MGET", "{order}:1", "{order}:2"]).await, "[one two]");
}

#[tokio::test]
async fn a_dead_node_takes_only_its_own_slots_along_and_comes_back() {
    let cluster = Cluster::with(0, Redis::durable).await.unwrap();
    let dead = cluster.serving(cluster.slot("a").await.unwrap()).await.unwrap();
    let key = ["b", "c", "d"];
    let mut other = None;
    for k in key {
        let at = cluster.serving(cluster.slot(k).await.unwrap()).await.unwrap();
        other = other.or((at != dead).then_some((k, at)));
    }
    let (key, alive) = other.expect("keys of several nodes");
    assert_eq!(said(&cluster.nodes()[dead], &["SET", "a", "kept"]).await, "OK");
    cluster.kill(dead).await.unwrap();
    assert_eq!(said(&cluster.nodes()[alive], &["SET", key, "v"]).await, "OK");
    let gone = said(&cluster.nodes()[alive], &["GET", "a"]).await;
    assert!(gone.starts_with("-MOVED"), "{gone}"); // to where nobody is
    let slot = cluster.slot("a").await.unwrap();
    assert!(cluster.serving(slot).await.is_err());
    cluster.again(dead).await.unwrap();
    assert_eq!(cluster.serving(slot).await.unwrap(), dead);
    assert_eq!(said(&cluster.nodes()[dead], &["GET", "a"]).await, "kept");
}

#[tokio::test]
async fn a_replica_takes_over_the_slots_of_its_primary() {
    let cluster = Cluster::with(1, |redis| redis).await.unwrap();
    let slot = cluster.slot("a").await.unwrap();
    let primary = cluster.serving(slot).await.unwrap();
    let mut wire = Wire::to(cluster.nodes()[primary].addr()).await.unwrap();
    assert_eq!(wire.call(&["SET", "a", "v"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["WAIT", "1", "0"]).await.unwrap().int(), Some(1));
    cluster.kill(primary).await.unwrap();
    let next = eventually("the replica takes over", async || {
        cluster.serving(slot).await.map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    assert_eq!(next, primary + PRIMARIES);
    eventually("it serves", async || has(&cluster.nodes()[next], &["GET", "a"], "v").await)
        .await
        .unwrap();
    let other = (primary + 1) % PRIMARIES;
    cluster.migrate(slot, other).await.unwrap();
    assert_eq!(said(&cluster.nodes()[other], &["GET", "a"]).await, "v");
}
