//! What a store says about a hold without being asked.

use super::*;

#[tokio::test]
async fn doubt_about_a_hold_that_is_not_renewed_does_not_renew_it() {
    let s = scene();
    let guard = s.locks.lock("a").without_renewal().await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    let end = s.memory.peek(guard.lock()).unwrap().holds[0].expires;
    s.clock.advance(TTL / 3);
    s.spy.news.send(Event::InDoubt(guard.held().0.key.clone())).unwrap();
    until("it is asked about", || s.spy.batches() == [1]).await;
    pass(&s.clock, TTL * 2 / 3).await;
    assert_eq!(guard.check().unwrap_err().why, LossReason::Expired);
    pass(&s.clock, TTL).await;
    assert_eq!(s.spy.batches(), [1], "asked about once, and not renewed");
    let at_store = s.memory.peek(guard.lock()).map(|s| s.holds).unwrap_or_default();
    assert!(at_store.iter().all(|h| h.expires == end), "its lease was made longer");
}

#[tokio::test]
async fn doubt_about_a_hold_that_is_not_renewed_finds_out_that_it_is_gone() {
    let s = scene();
    let guard = s.locks.lock("a").without_renewal().await.unwrap();
    s.memory.wipe(guard.lock());
    s.spy.news.send(Event::InDoubt(guard.held().0.key.clone())).unwrap();
    // The clock stands still: only the answer can tell it.
    assert_eq!(heard(&guard).await, LossReason::Gone);
}

/// Waits for word of a loss, in real time.
async fn heard(guard: &Guard) -> LossReason {
    tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("word of it").why
}

#[tokio::test]
async fn a_loss_that_comes_before_its_guard_is_not_forgotten() {
    let s = scene();
    s.spy.lost_first.store(true, Ordering::SeqCst);
    let guard = s.locks.lock("a").await.unwrap();
    assert_eq!(heard(&guard).await, LossReason::Disconnected);
    assert!(guard.check().is_err());
    // Another request is another matter.
    s.spy.lost_first.store(false, Ordering::SeqCst);
    let other = s.locks.lock("b").await.unwrap();
    other.check().unwrap();
}

#[tokio::test]
async fn a_loss_that_comes_while_a_hold_is_resumed_is_not_forgotten() {
    let s = scene();
    let ticket = s.locks.lock("a").await.unwrap().detach().unwrap();
    s.spy.lost_first.store(true, Ordering::SeqCst);
    let guard = s.locks.resume(&ticket).await.unwrap();
    assert_eq!(heard(&guard).await, LossReason::Disconnected);
}
