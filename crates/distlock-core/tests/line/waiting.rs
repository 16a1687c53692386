//! Standing in line while sessions end, watches get lost and the store is silent.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Backend, Due, Kept, Released};
use distlock_core::{Kind, Patience};
use distlock_testkit::doubles::Fault;

use crate::scene::{Scene, TTL, ask, granted, poll_once, waiting};

/// One question for a free lock, one for its release: the join's own answer is proof enough.
#[tokio::test]
async fn a_join_that_is_first_is_granted_without_a_further_question() {
    let scene = Scene::new();
    let a = scene.client();
    let warm = ask();
    scene.lock(&a, &warm).await;
    let _ = scene.run(a.release(&warm.key())).await.expect("an answer");
    let before = scene.store.calls();
    let mine = ask();
    scene.lock(&a, &mine).await;
    assert_eq!(scene.store.calls() - before, 1);
    let released = scene.run(a.release(&mine.key())).await.expect("an answer");
    assert_eq!((released, scene.store.calls() - before), (Released::Released, 2));
}

/// Its session is over while it waits: an error at once, by the store's own word.
#[tokio::test]
async fn s17_a_waiter_whose_session_ends_is_told_at_once() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    let mut asking = scene.stands(&b, &mine).await;
    let start = scene.clock.now();
    b.store().expire();
    let e = scene.run(asking.as_mut()).await.expect_err("its place is gone");
    assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
    assert!(e.hint().is_some() && e.is_transient());
    assert_eq!(scene.clock.now(), start, "it took its time");
    // The same client then acquires again.
    drop(asking);
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    scene.lock(&b, &waiting()).await;
}

/// The same without any word: its turn comes by an answer that was right when it was given, but
/// took so long that its session is over. The proof of its place is what finds out.
#[tokio::test]
async fn s17_who_waited_is_not_granted_by_an_old_answer() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    let mut asking = scene.stands(&b, &mine).await;
    scene.store.deaf(true);
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    scene.store.lose_watches();
    scene.store.fault(Fault::Tardy(Duration::from_secs(1)));
    // It looks, and the answer that it is first is on its way.
    assert!(poll_once(asking.as_mut()).await.is_none());
    scene.store.fault(Fault::None);
    b.store().expire();
    let e = scene.run(asking.as_mut()).await.expect_err("granted without a place");
    assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
}

/// The store is silent: its own deadline ends the wait, before its session can have ended.
#[tokio::test]
async fn s17_a_waiter_that_hears_nothing_ends_by_its_own_deadline() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    let start = scene.clock.now();
    let mut asking = scene.stands(&b, &mine).await;
    scene.store.fault(Fault::Down);
    let e = scene.run(asking.as_mut()).await.expect_err("the store is down");
    assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
    let waited = scene.clock.now().since(start);
    assert!(waited > TTL * 8 / 10 && waited < TTL, "ended after {waited:?}");
}

/// A question that is never answered is given up with the lease, though it might be waited for
/// longer: the look of one who waits, and the proof of one whose turn has come.
#[tokio::test]
async fn s17_an_unanswered_question_ends_with_the_lease() {
    for proving in [false, true] {
        let scene = Scene::new();
        let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
        scene.lock(&a, &holder).await;
        let start = scene.clock.now();
        let mut asking = scene.stands(&b, &mine).await;
        if proving {
            let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
            // It looks, and the answer that it is first comes; the proof is asked for in vain.
            scene.store.fault(Fault::Tardy(Duration::from_secs(1)));
            assert!(poll_once(asking.as_mut()).await.is_none());
        }
        scene.store.fault(Fault::Silent);
        let e = scene.run(asking.as_mut()).await.expect_err("granted without a place");
        assert_eq!(e.kind(), Kind::Cancelled, "{e:?}");
        let waited = scene.clock.now().since(start);
        assert!(waited > TTL * 8 / 10 && waited < TTL, "ended after {waited:?}");
    }
}

/// Trouble that passes while its place is kept costs a waiter nothing but time.
#[tokio::test]
async fn trouble_in_line_is_waited_out() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    let mut asking = scene.stands(&b, &mine).await;
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    scene.store.fault(Fault::Down);
    let down = scene.clock.now().plus(TTL / 2);
    while scene.clock.now() < down {
        assert!(poll_once(asking.as_mut()).await.is_none());
        scene.tick().await;
    }
    scene.store.fault(Fault::None);
    granted(scene.run(asking.as_mut()).await);
}

/// Waiters are kept for as long as they wait.
#[tokio::test]
async fn a_waiter_outlasts_many_leases() {
    let scene = Scene::new();
    let (a, b, mine) = (scene.client(), scene.client(), waiting());
    let holder = Ask { ttl: TTL * 100, ..ask() };
    scene.lock(&a, &holder).await;
    let mut asking = scene.stands(&b, &mine).await;
    let long = scene.clock.now().plus(TTL * 3);
    while scene.clock.now() < long {
        assert!(poll_once(asking.as_mut()).await.is_none());
        scene.tick().await;
    }
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    granted(scene.run(asking.as_mut()).await);
}

/// A watch that never fires is made up for by a look now and then.
#[tokio::test]
async fn a_lost_watch_costs_a_third_of_a_lease() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    scene.store.deaf(true);
    let mut asking = scene.stands(&b, &mine).await;
    let start = scene.clock.now();
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    granted(scene.run(asking.as_mut()).await);
    let waited = scene.clock.now().since(start);
    assert!(waited > TTL / 5 && waited <= TTL / 3 + TTL / 20, "found out after {waited:?}");
}

/// Whoever's watch ends without a reason looks, and waits on.
#[tokio::test]
async fn a_watch_made_anew_still_fires() {
    let scene = Scene::new();
    let (a, b, holder, mine) = (scene.client(), scene.client(), ask(), waiting());
    scene.lock(&a, &holder).await;
    let mut asking = scene.stands(&b, &mine).await;
    scene.store.lose_watches();
    assert!(poll_once(asking.as_mut()).await.is_none(), "it is held");
    let start = scene.clock.now();
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    granted(scene.run(asking.as_mut()).await);
    assert_eq!(scene.clock.now(), start, "not woken");
}

/// Twenty wait; each release wakes the next one and nobody else.
#[tokio::test]
async fn one_release_is_one_wake_up() {
    let scene = Scene::new();
    let (a, holder) = (scene.client(), ask());
    scene.lock(&a, &holder).await;
    let asks: Vec<Ask> = (0..20).map(|_| waiting()).collect();
    let mut line = Vec::new();
    for ask in &asks {
        line.push(scene.stands(&a, ask).await);
    }
    let (before, mut last) = (scene.store.wakes(), &holder);
    for (mut asking, ask) in line.into_iter().zip(&asks) {
        let _ = scene.run(a.release(&last.key())).await.expect("an answer");
        granted(scene.run(asking.as_mut()).await);
        last = ask;
    }
    assert_eq!(scene.store.wakes() - before, 20);
}

/// Patience over: busy, with the holder and one's place, and nothing left in line.
#[tokio::test]
async fn who_gives_up_leaves_the_line() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), ask());
    let first = scene.lock(&a, &holder).await;
    let second = waiting();
    let _second = scene.stands(&a, &second).await;
    for patience in [Patience::Never, Patience::For(TTL / 5)] {
        let start = scene.clock.now();
        let mine = Ask { patience, ..ask() };
        let answer = scene.run(b.acquire(Arc::new(mine.clone()), None)).await.expect("an answer");
        let Attempt::Busy(status) = answer else { panic!("{answer:?}") };
        assert_eq!(status.ahead, Some(1), "{status}");
        assert_eq!(status.holder.expect("a holder").token, first.tokens.first());
        assert_eq!(scene.line(), [holder.req, second.req]);
        let waited = scene.clock.now().since(start);
        let patient = if patience == Patience::Never { Duration::ZERO } else { TTL / 5 };
        assert!(waited >= patient && waited < patient + TTL / 5, "{waited:?}");
    }
}

/// The same owner waits twice: the second enters with the first, and leaves the line.
#[tokio::test]
async fn an_owner_that_waits_twice_does_not_wait_for_itself() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), ask());
    scene.lock(&a, &holder).await;
    let one = waiting();
    let two = Ask { owner: one.owner.clone(), ..waiting() };
    let mut first = scene.stands(&b, &one).await;
    let mut second = scene.stands(&b, &two).await;
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    let first = granted(scene.run(first.as_mut()).await);
    let second = granted(scene.run(second.as_mut()).await);
    assert_eq!(first.tokens, second.tokens);
    scene.until("the place of the second is given up", || scene.line() == [one.req]).await;
    for (ask, line) in [(&one, vec![one.req]), (&two, vec![])] {
        let released = scene.run(b.release(&ask.key())).await.expect("an answer");
        assert_eq!((released, scene.line()), (Released::Released, line));
    }
}

/// Many holds are kept by several calls: one that is late costs no more than its own answers.
#[tokio::test]
async fn many_holds_are_kept_in_bounded_calls() {
    let scene = Scene::new();
    let a = scene.client();
    let mut due = Vec::new();
    for i in 0..600 {
        let mut one = ask();
        one.lock.name = distlock_core::Name::new(format!("lock {i}")).expect("a name");
        scene.lock(&a, &one).await;
        due.push(Due { key: one.key(), ttl: TTL });
    }
    let before = scene.store.calls();
    let kept = scene.run(a.keep(&due)).await;
    assert!(kept.len() == 600 && kept.iter().all(|k| matches!(k, Kept::Until { .. })));
    assert_eq!(scene.store.calls() - before, 3);
}
