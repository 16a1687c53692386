//! Nothing stays in line: not what was dropped, not what was undone, not what got no answer.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Due, Force, Forced, Released};
use distlock_core::{FullName, Kind, Mode, Name};
use distlock_testkit::doubles::Fault;

use crate::scene::{Asking, Scene, TTL, ask, granted, name, poll_once, waiting};

/// Dropped before its join arrived, and undone before that: the late join stays out.
#[tokio::test]
async fn an_undo_that_overtakes_its_join_wins() {
    let scene = Scene::new();
    let (a, mine) = (scene.client(), waiting());
    let warm = ask();
    scene.lock(&a, &warm).await;
    let _ = scene.run(a.release(&warm.key())).await.expect("an answer");
    scene.store.fault(Fault::Late(Duration::from_secs(1)));
    let mut asking = Box::pin(a.acquire(Arc::new(mine.clone()), None));
    assert!(poll_once(asking.as_mut()).await.is_none());
    drop(asking);
    scene.store.fault(Fault::None);
    let start = scene.store.calls();
    scene.run(a.abandon(&mine.key())).await.expect("an answer");
    scene.until("the join arrived", || scene.store.calls() == start + 2).await;
    assert_eq!(scene.line(), []);
    let e = scene.run(a.acquire(Arc::new(mine.clone()), None)).await.expect_err("it was undone");
    assert_eq!(e.kind(), Kind::Cancelled);
}

/// The answer to a join is lost, and it is asked again: one entry, and it is granted.
#[tokio::test]
async fn s22_a_lost_answer_is_not_a_second_entry() {
    let scene = Scene::new();
    let (a, mine) = (scene.client(), ask());
    let warm = ask();
    scene.lock(&a, &warm).await;
    let _ = scene.run(a.release(&warm.key())).await.expect("an answer");
    scene.store.fault(Fault::Mute);
    let mut asking = Box::pin(a.acquire(Arc::new(mine.clone()), None));
    assert!(poll_once(asking.as_mut()).await.is_none());
    drop(asking);
    scene.store.fault(Fault::None);
    assert_eq!(scene.line(), [mine.req]);
    scene.lock(&a, &mine).await;
    assert_eq!(scene.line(), [mine.req]);
}

/// A waiter that nobody polls and nobody undoes leaves, though its session lives on.
#[tokio::test]
async fn an_orphan_leaves_after_its_ttl() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), Ask { ttl: TTL * 100, ..ask() });
    scene.lock(&a, &holder).await;
    let (lost, lives) = (waiting(), waiting());
    let orphan = scene.stands(&b, &lost).await;
    let living = scene.stands(&b, &lives).await;
    drop(orphan);
    leaves_after_its_ttl(&scene, &lost, living).await;
    assert_eq!(scene.line(), [holder.req, lives.req]);
}

/// A forgotten request leaves the line after its TTL, while another waits on.
async fn leaves_after_its_ttl(scene: &Scene, lost: &Ask, mut living: Asking<'_>) {
    let start = scene.clock.now();
    while scene.line().contains(&lost.req) {
        assert!(poll_once(living.as_mut()).await.is_none());
        scene.tick().await;
        assert!(scene.clock.now().since(start) < TTL * 2, "it stays");
    }
    assert!(scene.clock.now().since(start) >= TTL, "it may yet ask again");
}

/// The same for one that was dropped before the answer to its join came: nobody here knows its
/// place, and it would stand in everybody's way for as long as its client lives.
#[tokio::test]
async fn an_orphan_whose_join_was_unanswered_leaves_too() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), Ask { ttl: TTL * 100, ..ask() });
    scene.lock(&a, &holder).await;
    let warm = waiting();
    drop(scene.stands(&b, &warm).await);
    scene.run(b.abandon(&warm.key())).await.expect("an answer");
    let (lost, lives) = (waiting(), waiting());
    scene.store.fault(Fault::Mute);
    let mut asking = Box::pin(b.acquire(Arc::new(lost.clone()), None));
    assert!(poll_once(asking.as_mut()).await.is_none());
    drop(asking);
    scene.store.fault(Fault::None);
    assert_eq!(scene.line(), [holder.req, lost.req]);
    let living = scene.stands(&b, &lives).await;
    leaves_after_its_ttl(&scene, &lost, living).await;
    assert_eq!(scene.line(), [holder.req, lives.req]);
}

/// A release without an answer goes on in the background, also when the last to release is not the
/// request the store knows.
#[tokio::test]
async fn s11_a_release_without_an_answer_goes_on() {
    let scene = Scene::new();
    let (a, one) = (scene.client(), ask());
    let two = Ask { owner: one.owner.clone(), ..ask() };
    scene.lock(&a, &one).await;
    scene.lock(&a, &two).await;
    let first = scene.run(a.release(&one.key())).await.expect("an answer");
    assert_eq!((first, scene.line()), (Released::Released, vec![one.req]));
    scene.store.fault(Fault::Down);
    scene.run(a.release(&two.key())).await.expect_err("the store is down");
    assert_eq!(scene.line(), [one.req]);
    scene.store.fault(Fault::None);
    let up = scene.clock.now();
    scene.until("it left", || scene.line().is_empty()).await;
    assert!(scene.clock.now().since(up) < TTL / 5, "left to end with its session");
}

/// Released before its `min_hold`: in line until then, for many leases if need be, and free then.
#[tokio::test]
async fn min_hold_outlasts_many_leases() {
    let scene = Scene::new();
    let (a, b, next) = (scene.client(), scene.client(), waiting());
    let short = Ask { min_hold: TTL * 3, ..ask() };
    let start = scene.clock.now();
    scene.lock(&a, &short).await;
    for _ in 0..2 {
        let released = scene.run(a.release(&short.key())).await.expect("an answer");
        assert_eq!(released, Released::Released);
    }
    scene.run(a.abandon(&short.key())).await.expect("an answer");
    let mut asking = scene.stands(&b, &next).await;
    granted(scene.run(asking.as_mut()).await);
    let waited = scene.clock.now().since(start);
    assert!(waited >= TTL * 3 && waited < TTL * 3 + TTL / 10, "free after {waited:?}");
}

/// A revoked hold leaves when its lease ends, or as soon as its holder has let go.
#[tokio::test]
async fn a_revoked_hold_leaves_when_its_holder_knows() {
    let scene = Scene::new();
    let (a, b) = (scene.client(), scene.client());
    let mut events = a.events().expect("the stream");
    for lets_go in [true, false] {
        let mine = ask();
        let start = scene.clock.now();
        scene.lock(&a, &mine).await;
        let forced = scene.run(b.force(&name(), None, Force::Revoke)).await.expect("an answer");
        assert_eq!(forced, Forced::Done);
        let told = events.recv().await.expect("word of it");
        assert!(format!("{told:?}").contains("Revoked"), "{told:?}");
        assert_eq!(scene.line(), [mine.req], "it may not know yet");
        if lets_go {
            let released = scene.run(a.release(&mine.key())).await.expect("an answer");
            assert_eq!((released, scene.line()), (Released::WasLost, vec![]));
        } else {
            scene.until("its lease ended", || scene.line().is_empty()).await;
            assert!(scene.clock.now().since(start) >= TTL);
        }
    }
}

/// A waiter enters its owner's hold and releases before its own place in line was given up: the
/// hold it shared is free when its last request is gone, though the session lives on.
#[tokio::test]
async fn a_reentry_that_leaves_before_its_own_place_frees_the_hold() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), ask());
    scene.lock(&a, &holder).await;
    let one = waiting();
    let two = Ask { owner: one.owner.clone(), ..waiting() };
    let mut first = scene.stands(&b, &one).await;
    let mut second = scene.stands(&b, &two).await;
    let _ = scene.run(a.release(&holder.key())).await.expect("an answer");
    granted(scene.run(first.as_mut()).await);
    // Nobody gives up the second's place as long as the library's thread is busy.
    let busy = library_thread_is_busy();
    let entered = poll_once(second.as_mut()).await.expect("it enters with the first");
    granted(entered);
    for ask in [&one, &two] {
        let key = ask.key();
        let released = poll_once(b.release(&key).as_mut()).await.expect("no waiting");
        assert_eq!(released.expect("an answer"), Released::Released);
    }
    drop(busy);
    let start = scene.clock.now();
    scene.until("the lock is free", || scene.line().is_empty()).await;
    assert!(scene.clock.now().since(start) < TTL / 5, "left to end with its session");
}

/// Blocks the library's own thread until the answer is dropped.
fn library_thread_is_busy() -> std::sync::mpsc::Sender<()> {
    let (until, dropped) = std::sync::mpsc::channel::<()>();
    let (runs, started) = std::sync::mpsc::channel();
    distlock_core::engine::spawn(async move {
        let _ = runs.send(());
        let _ = dropped.recv();
    });
    started.recv().expect("the library's thread runs");
    until
}

/// An entry whose leave fails for long leaves all the same: its session is kept for another lock,
/// so it would never end by itself.
#[tokio::test]
async fn a_leave_is_repeated_as_long_as_its_session_lives() {
    let scene = Scene::new();
    let (a, mine) = (scene.client(), ask());
    let other = named("another");
    scene.lock(&a, &other).await;
    scene.lock(&a, &mine).await;
    scene.store.refuse_leaves(true);
    scene.run(a.release(&mine.key())).await.expect_err("no answer");
    let due = [Due { key: other.key(), ttl: TTL }];
    passes(&scene, TTL * 3, || a.keep(&due)).await;
    assert_eq!(scene.line(), [mine.req]);
    scene.store.refuse_leaves(false);
    let start = scene.clock.now();
    scene.until("it left", || scene.line().is_empty()).await;
    assert!(scene.clock.now().since(start) < TTL / 5, "nobody tries any more");
}

/// The same for a waiter that was undone.
#[tokio::test]
async fn an_undo_is_repeated_as_long_as_its_session_lives() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), Ask { ttl: TTL * 100, ..ask() });
    scene.lock(&a, &holder).await;
    let (other, mine) = (named("another"), waiting());
    scene.lock(&b, &other).await;
    drop(scene.stands(&b, &mine).await);
    scene.store.refuse_leaves(true);
    scene.run(b.abandon(&mine.key())).await.expect_err("no answer");
    let due = [Due { key: other.key(), ttl: TTL }];
    passes(&scene, TTL * 3, || b.keep(&due)).await;
    assert_eq!(scene.line(), [holder.req, mine.req]);
    scene.store.refuse_leaves(false);
    let start = scene.clock.now();
    scene.until("it left", || scene.line() == [holder.req]).await;
    assert!(scene.clock.now().since(start) < TTL / 5, "nobody tries any more");
}

/// Whoever cannot leave does not keep its session by asking whether it lives.
#[tokio::test]
async fn a_leave_that_fails_keeps_no_session() {
    let scene = Scene::new();
    let (a, mine) = (scene.client(), ask());
    let start = scene.clock.now();
    scene.lock(&a, &mine).await;
    scene.store.refuse_leaves(true);
    scene.run(a.release(&mine.key())).await.expect_err("no answer");
    scene.until("its session ended", || scene.line().is_empty()).await;
    assert!(scene.clock.now().since(start) < TTL * 3 / 2);
}

/// An owner whose shared requests were under way at once has several entries: when the newest has
/// left it still enters again by another, past a writer that waits for it.
#[tokio::test]
async fn an_owner_with_several_entries_enters_again_by_what_is_left() {
    let scene = Scene::new();
    let (a, b) = (scene.client(), scene.client());
    scene.lock(&a, &named("warm")).await;
    let one = Ask { mode: Mode::Shared, ..waiting() };
    let two = Ask { owner: one.owner.clone(), mode: Mode::Shared, ..waiting() };
    scene.store.fault(Fault::Tardy(Duration::from_millis(1)));
    let (first, second) = scene
        .run(async {
            tokio::join!(
                a.acquire(Arc::new(one.clone()), None),
                a.acquire(Arc::new(two.clone()), None)
            )
        })
        .await;
    assert!(granted(first).tokens != granted(second).tokens, "two entries");
    scene.store.fault(Fault::None);
    let writer = waiting();
    let _waits = scene.stands(&b, &writer).await;
    let _ = scene.run(a.release(&two.key())).await.expect("an answer");
    let again = Ask { owner: one.owner.clone(), mode: Mode::Shared, ..ask() };
    granted(scene.run(a.acquire(Arc::new(again.clone()), None)).await);
}

/// Lets time pass in larger steps, with a call now and then.
async fn passes<F: Future>(scene: &Scene, time: Duration, call: impl Fn() -> F) {
    let (end, step) = (scene.clock.now().plus(time), Duration::from_millis(99));
    let mut next = scene.clock.now();
    while scene.clock.now() < end {
        if scene.clock.now() >= next {
            scene.run(call()).await;
            next = scene.clock.now().plus(TTL / 4);
        }
        scene.clock.advance(step);
        scene.tick().await;
    }
}

fn named(name: &str) -> Ask {
    let name = Name::new(name).expect("a name");
    Ask { lock: FullName { space: Default::default(), name }, ..ask() }
}

/// A request that has left the hold it shares, and is given back or undone once more, takes nothing
/// from who is still there: also when it is the one the store knows the entry by.
#[tokio::test]
async fn leaving_twice_takes_nothing_from_who_shares_the_hold() {
    let scene = Scene::new();
    let (a, one) = (scene.client(), ask());
    let two = Ask { owner: one.owner.clone(), ..ask() };
    scene.lock(&a, &one).await;
    scene.lock(&a, &two).await;
    for _ in 0..2 {
        let released = scene.run(a.release(&one.key())).await.expect("an answer");
        assert_eq!((released, scene.line()), (Released::Released, vec![one.req]));
        scene.run(a.abandon(&one.key())).await.expect("an answer");
        assert_eq!(scene.line(), [one.req], "the entry of who is still there");
    }
    let released = scene.run(a.release(&two.key())).await.expect("an answer");
    assert_eq!((released, scene.line()), (Released::Released, vec![]));
}

/// A client that closes leaves the lines in which nobody wants its place any more: nobody would do it
/// later, and its session may be long.
#[tokio::test]
async fn closing_leaves_what_nobody_has_undone_yet() {
    let scene = Scene::new();
    let (a, b, holder) = (scene.client(), scene.client(), ask());
    scene.lock(&a, &holder).await;
    let lost = Ask { ttl: TTL * 100, ..waiting() };
    let orphan = scene.stands(&b, &lost).await;
    drop(orphan);
    scene.run(b.close()).await;
    assert_eq!(scene.line(), [holder.req]);
}
