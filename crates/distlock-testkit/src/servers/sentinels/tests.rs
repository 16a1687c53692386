use super::super::raw;
use super::*;

async fn said(addr: SocketAddr, command: &[&str]) -> String {
    raw(addr, command).await.expect("an answer").to_string()
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_keeps_what_was_replicated() {
    let set = Sentinels::start().await.unwrap();
    let primary = set.primary().await.unwrap();
    let mut wire = Wire::to(primary.addr()).await.unwrap();
    assert_eq!(wire.call(&["SET", "k", "v"]).await.unwrap().to_string(), "OK");
    assert_eq!(wire.call(&["WAIT", "2", "0"]).await.unwrap().int(), Some(2));
    primary.kill();
    let next = set.failed_over(primary.addr()).await.unwrap();
    assert_ne!(next.addr(), primary.addr());
    assert_eq!(said(next.addr(), &["GET", "k"]).await, "v");
    assert_eq!(said(next.addr(), &["SET", "k", "w"]).await, "OK");
    // Started again, the new one is still what the sentinels made it.
    next.restart().await.unwrap();
    assert!(said(next.addr(), &["ROLE"]).await.starts_with("[master"));
}

#[tokio::test]
async fn what_a_primary_accepts_while_cut_from_its_replicas_is_lost_with_it() {
    let set = Sentinels::start().await.unwrap();
    let primary = set.primary().await.unwrap();
    set.cut_replicas().await.unwrap();
    assert_eq!(said(primary.addr(), &["SET", "k", "lost"]).await, "OK");
    assert_eq!(set.primary().await.unwrap().addr(), primary.addr());
    primary.kill();
    let next = set.failed_over(primary.addr()).await.unwrap();
    assert_eq!(said(next.addr(), &["GET", "k"]).await, "nil");
}

#[tokio::test]
async fn an_isolated_primary_lives_on_beside_the_next_until_it_heals() {
    let set = Sentinels::with(">secret", Redis::durable).await.unwrap();
    let old = set.primary().await.unwrap();
    let mut client = Wire::to(old.addr()).await.unwrap();
    assert_eq!(client.call(&["AUTH", "secret"]).await.unwrap().to_string(), "OK");
    set.isolate_primary().await.unwrap();
    let next = set.failed_over(old.addr()).await.unwrap();
    assert_eq!(client.call(&["SET", "k", "old"]).await.unwrap().to_string(), "OK");
    assert_eq!(set.ask(next, &["SET", "k", "new"]).await.unwrap().to_string(), "OK");
    set.heal().await.unwrap();
    set.demote(old).await.unwrap();
    eventually("the old one follows", async || {
        match set.ask(old, &["GET", "k"]).await.map_err(|e| e.to_string())?.to_string().as_str() {
            "new" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await
    .unwrap();
    assert_eq!(set.replicas().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_paused_primary_is_replaced_and_wakes_as_a_primary() {
    let set = Sentinels::start().await.unwrap();
    let old = set.primary().await.unwrap();
    old.pause();
    let next = set.failed_over(old.addr()).await.unwrap();
    old.resume();
    assert_eq!(said(old.addr(), &["SET", "k", "old"]).await, "OK");
    assert_eq!(said(next.addr(), &["GET", "k"]).await, "nil");
}
