//! A store that stalls, refuses and forgets to answer: what the drivers, the keeper and the guards
//! must make of it. On memory, with the clock held wherever time matters.

use std::time::Duration;

use distlock_core::backend::Attempt;
use distlock_core::memory::Memory;
use distlock_core::{Clock, Kind, Locks, LossReason, Outcome, Patience, Released};

use super::replay::ask;
use crate::StoreUnderTest;
use crate::faulty::{Call, Faults, Faulty};
use crate::wait::{LONG, all_free, busy, give_back, line_of, soon, take, task, until};

const TTL: Duration = Duration::from_secs(9);

struct Setting {
    clock: Clock,
    faults: Faults,
    /// The client whose calls misbehave.
    faulty: Locks,
    /// Another client of the same locks, undisturbed.
    other: Locks,
}

fn setting(clock: Clock) -> Setting {
    let memory = Memory::on(clock.clone());
    let store = Faulty::over(memory.clone());
    let faults = store.faults();
    let (faulty, other) = (Locks::from_store(store), Locks::from_store(memory));
    Setting { clock, faults, faulty, other }
}

/// The reply arrives after the acquire was dropped: the hold is given back and never renewed.
pub async fn s01_a_late_grant_of_a_dropped_acquire_is_never_renewed(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    s.faults.stall_replies();
    let lock = s.faulty.lock(&name).ttl(TTL);
    let acquiring = task(async move { lock.await.map(drop) });
    soon("the grant", s.faults.until_done(Call::Acquire, 1)).await;
    busy(&s.other, &name).await;
    acquiring.abort();
    all_free(&s.other, &name).await;
    s.faults.resume();
    s.clock.advance(TTL);
    give_back(take(&s.other, &name).await).await;
    assert_eq!(s.faults.asked(Call::Renew), 0, "a dropped acquire was renewed");
}

/// Dropped after the store granted, before the reply, and then cut off: gone within a TTL, and the
/// cancel that arrives at last hurts nobody.
pub async fn s02_dropped_between_grant_and_reply(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    s.faults.stall_replies();
    let lock = s.faulty.lock(&name).ttl(TTL);
    let acquiring = task(async move { lock.await.map(drop) });
    soon("the grant", s.faults.until_done(Call::Acquire, 1)).await;
    s.faults.stall();
    acquiring.abort();
    soon("the undoing", s.faults.until_asked(Call::Cancel, 1)).await;
    s.clock.advance(TTL - Duration::from_millis(1));
    busy(&s.other, &name).await;
    s.clock.advance(Duration::from_millis(1));
    let next = take(&s.other, &name).await;
    s.faults.resume();
    soon("the late cancel", s.faults.until_done(Call::Cancel, 1)).await;
    assert!(next.check().is_ok());
    busy(&s.faulty, &name).await;
    give_back(next).await;
    assert_eq!(s.faults.asked(Call::Renew), 0, "a dropped acquire was renewed");
}

/// Every call pauses before and after it takes effect: an acquire dropped at each of these moments
/// leaves nothing.
pub async fn dropped_at_every_poll_of_a_slow_store(site: &StoreUnderTest) {
    let s = setting(Clock::system());
    s.faults.take_time();
    super::line::at_every_poll(&s.other, &s.faulty, &site.name()).await;
}

/// Nothing gets through any more, and nothing says so: lost at the deadline, to the moment, and
/// not before.
pub async fn s04_silence_ends_a_hold_before_its_lease(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    let guard = s.faulty.lock(&name).ttl(TTL).await.expect("a grant");
    let work = task({
        let (lock, cancelled) = (guard.held(), guard.cancellation_token());
        async move {
            cancelled.cancelled().await;
            lock.lost().await
        }
    });
    s.faults.stall();
    s.clock.advance(TTL / 3);
    soon("a renewal", s.faults.until_asked(Call::Renew, 1)).await;
    s.clock.advance(TTL * 2 / 3 - Duration::from_millis(1));
    assert!(guard.check().is_ok(), "lost before its deadline");
    busy(&s.other, &name).await;
    s.clock.advance(Duration::from_millis(1));
    assert_eq!(guard.check().expect_err("its deadline").why, LossReason::Expired);
    assert_eq!(soon("the work is told", work).await.expect("no panic").why, LossReason::Expired);
    let next = take(&s.other, &name).await;
    assert!(next.token() > guard.token());
    s.faults.resume();
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    assert!(next.check().is_ok());
    give_back(next).await;
}

/// A renewal takes effect but its answer hangs past the deadline: lost, and the late answer does
/// not change that.
pub async fn s05_a_late_renewal_does_not_revive(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    let guard = s.faulty.lock(&name).ttl(TTL).await.expect("a grant");
    s.faults.stall_replies();
    s.clock.advance(TTL / 3);
    soon("a renewal", s.faults.until_done(Call::Renew, 1)).await;
    // As after a suspended machine: the deadline has passed and the answer is there, both before
    // the renewing thread looks again.
    let (blocked, go_on) = block_the_library();
    soon("the library's thread stands still", blocked).await.expect("it says so");
    s.clock.advance(TTL * 2 / 3);
    s.faults.resume();
    drop(go_on);
    soon("the loss", guard.lost()).await;
    assert_eq!(guard.check().expect_err("its deadline").why, LossReason::Expired);
    // The store still counts it as held: only its holder knows better, and gives it back.
    busy(&s.other, &name).await;
    assert!(guard.check().is_err() && guard.remaining().is_zero(), "a late answer revived it");
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    all_free(&s.other, &name).await;
}

/// Holds up the library's own thread until the second value is dropped.
fn block_the_library() -> (tokio::sync::oneshot::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let (said, blocked) = tokio::sync::oneshot::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    distlock_core::engine::spawn(async move {
        let _ = said.send(());
        let _ = wait.recv();
    });
    (blocked, go_on)
}

/// However long the answer took, the deadline counts from before the question.
pub async fn deadlines_count_from_before_the_question(site: &StoreUnderTest) {
    let (s, late) = (setting(Clock::held()), Duration::from_secs(2));
    for replies in [true, false] {
        let name = site.name();
        let before = s.faults.asked(Call::Acquire);
        if replies {
            s.faults.stall_replies();
        } else {
            s.faults.stall();
        }
        let lock = s.faulty.lock(&name).ttl(TTL).without_renewal();
        let acquiring = task(async move { lock.await.expect("a grant") });
        soon("the question", s.faults.until_asked(Call::Acquire, before + 1)).await;
        if replies {
            soon("the grant", s.faults.until_done(Call::Acquire, before + 1)).await;
        }
        s.clock.advance(late);
        s.faults.resume();
        let guard = soon("the answer", acquiring).await.expect("no panic");
        assert_eq!(guard.remaining(), TTL - late, "the deadline counts from the answer");
        give_back(guard).await;
    }
    // Renewals likewise.
    let guard = s.faulty.lock(site.name()).ttl(TTL).await.expect("a grant");
    let before = s.faults.asked(Call::Renew);
    s.faults.stall_replies();
    s.clock.advance(TTL / 3);
    soon("a renewal", s.faults.until_done(Call::Renew, before + 1)).await;
    s.clock.advance(late);
    s.faults.resume();
    until("the renewal counts", async || guard.remaining() > TTL / 3 * 2).await;
    assert_eq!(guard.remaining(), TTL - late, "a renewal counts from its answer");
    give_back(guard).await;
}

/// A release whose answers are lost: unknown, can be tried again, nothing is stuck.
pub async fn s11_a_release_without_answer_can_be_repeated(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::system()), site.name());
    let mut guard = take(&s.faulty, &name).await;
    s.faults.drop_replies(1);
    let released = guard.give_back().await.expect("a second try gets an answer");
    assert_eq!(released, Released::Released);
    let mut guard = take(&s.faulty, &name).await;
    s.faults.drop_replies(100);
    let e = guard.give_back().await.expect_err("no answer at all");
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::Unknown), "{e:?}");
    s.faults.drop_replies(0);
    let released = guard.give_back().await.expect("an answer at last");
    assert_eq!(released, Released::Released, "it had been released by an earlier try");
    all_free(&s.other, &name).await;
    // Not repeated by its holder: the background does.
    let guard = take(&s.faulty, &name).await;
    s.faults.refuse();
    assert!(guard.release().await.is_err());
    busy(&s.other, &name).await;
    s.faults.accept();
    all_free(&s.other, &name).await;
}

/// A waiter that was silent past its wait-lease has lost its place: when it comes back it is not
/// "acquired" while another holds the lock, but stands at the end of the line or fails.
pub async fn s17_a_silent_waiter_loses_its_place(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    let held = take(&s.other, &name).await;
    let lock = s.faulty.lock(&name).ttl(TTL);
    let silent = task(async move { lock.await });
    line_of(&s.other, &name, 1).await;
    s.faults.stall();
    s.clock.advance(TTL + Duration::from_secs(1));
    line_of(&s.other, &name, 0).await;
    let lock = s.other.lock(&name).ttl(LONG);
    let living = task(async move { lock.await.expect("a grant") });
    line_of(&s.other, &name, 1).await;
    give_back(held).await;
    let living = soon("the living one's turn", living).await.expect("no panic");
    s.faults.resume();
    until("it is back in line, or failed", async || {
        s.clock.advance(Duration::from_millis(100));
        let shown = s.other.show(&name).await.expect("an answer").expect("it is held");
        assert!(shown.holds.len() == 1 && shown.holds[0].holder.token == living.token());
        silent.is_finished() || shown.waiters.len() == 1
    })
    .await;
    assert!(living.check().is_ok());
    give_back(living).await;
    if let Ok(guard) = soon("its end", silent).await.expect("no panic") {
        give_back(guard).await;
    }
}

/// The reply to a grant is lost and the request is asked again: its own hold is recognised.
pub async fn s22_a_lost_reply_is_not_a_second_entry(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::system()), site.name());
    let ask = ask(site, &name, LONG, Patience::Never);
    s.faults.drop_replies(1);
    let backend = s.faulty.backend();
    let e = backend.acquire(ask.clone(), None).await.expect_err("the reply was lost");
    assert_eq!(e.outcome(), Outcome::Unknown);
    let Ok(Attempt::Granted(grant)) = backend.acquire(ask.clone(), None).await else {
        panic!("its own entry is in its way");
    };
    let shown = s.other.show(&name).await.expect("an answer").expect("it is held");
    assert_eq!(shown.holds.len(), 1, "a second entry: {shown:?}");
    assert_eq!(shown.holds[0].holder.token, grant.tokens.first());
    assert_eq!(backend.release(&ask.key()).await.expect("an answer"), Released::Released);
    // Above the seam: the error says unknown, and what may have been granted is undone.
    s.faults.drop_replies(1);
    let e = s.faulty.lock(&name).ttl(LONG).try_acquire().await.expect_err("the reply was lost");
    assert!(e.outcome() == Outcome::Unknown && e.is_transient(), "{e:?}");
    all_free(&s.other, &name).await;
}

/// A reply lost at the moment of one's turn: asked again, and the grant is there.
pub async fn trouble_in_line_is_waited_out(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    let held = take(&s.other, &name).await;
    let lock = s.faulty.lock(&name).ttl(TTL);
    let waiting = task(async move { lock.await.expect("a grant in spite of it") });
    line_of(&s.other, &name, 1).await;
    let asked = s.faults.asked(Call::Acquire);
    s.faults.drop_replies(1);
    give_back(held).await;
    soon("the unanswered question", s.faults.until_done(Call::Acquire, asked + 1)).await;
    until("the next question", async || {
        s.clock.advance(Duration::from_millis(50));
        waiting.is_finished()
    })
    .await;
    let guard = waiting.await.expect("no panic");
    let shown = s.other.show(&name).await.expect("an answer").expect("it is held");
    assert_eq!((shown.holds.len(), shown.holds[0].holder.token), (1, guard.token()));
    give_back(guard).await;
    all_free(&s.other, &name).await;
}

/// Stolen behind its back: the holder finds out with its next renewal, and its token is the lower.
pub async fn a_stolen_lock_is_found_out(site: &StoreUnderTest) {
    let (s, name) = (setting(Clock::held()), site.name());
    let guard = s.faulty.lock(&name).ttl(TTL).await.expect("a grant");
    let thief = s.faults.steal(&name, TTL).await.expect("nobody is in line");
    assert!(thief > guard.token());
    s.clock.advance(TTL / 3);
    assert_eq!(soon("the loss", guard.lost()).await.why, LossReason::Gone);
    assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
    let holder = busy(&s.other, &name).await.status.holder.expect("the thief");
    assert_eq!(holder.token, thief);
}

/// Names nobody uses are forgotten once their tombstones are over; only their tokens go on.
pub async fn s42_old_names_are_forgotten(site: &StoreUnderTest) {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let locks = Locks::from_store(memory.client());
    let names: Vec<String> = (0..1000).map(|i| format!("one-shot/{i}")).collect();
    let mut highest = None;
    for name in &names {
        let guard = take(&locks, name).await;
        highest = highest.max(Some(guard.token()));
        give_back(guard).await;
    }
    let known =
        |names: &[String]| names.iter().filter(|n| memory.peek(&site.full(n)).is_some()).count();
    assert!(known(&names) > 0, "nothing is remembered: a late replay would be granted");
    clock.advance(Duration::from_secs(120));
    clock.step_wall(-3600);
    // A sweep is paid for by as many moves as the last one kept locks.
    for _ in 0..names.len() {
        give_back(take(&locks, "another").await).await;
    }
    assert_eq!(known(&names), 0, "old names are still remembered");
    let again = take(&locks, &names[0]).await;
    assert!(Some(again.token()) > highest, "the token was forgotten with the name");
    give_back(again).await;
}
