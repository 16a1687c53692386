//! Requests that take effect and whose answers are late or never come, on the store's own wire.
//!
//! One client comes through proxies that misbehave (for a quorum, those of a majority of its
//! nodes, unless the law says otherwise); another looks on undisturbed.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::backend::Attempt;
use distlock_core::capability::{Family, Fence};
use distlock_core::{Clock, Guard, Kind, Lock, Locks, LossReason, Outcome, Patience, Released};
use tokio::sync::{Notify, oneshot};

use super::replay::ask;
use crate::StoreUnderTest;
use crate::road::ProxiedRoute;
use crate::wait::{LONG, all_free, give_back, line_of, soon, take, task, until};

/// Shorter than any bound on a call.
const MIDWAY: Duration = Duration::from_millis(50);

struct Scene {
    road: ProxiedRoute,
    /// The client that comes by the road.
    far: Locks,
    /// Another, undisturbed.
    look: Locks,
    name: String,
}

async fn scene(site: &StoreUnderTest) -> Scene {
    on(site, site.road().await).await
}

async fn on(site: &StoreUnderTest, road: ProxiedRoute) -> Scene {
    let name = site.name();
    let locks = site.client().await;
    warm(&locks, &name).await;
    locks.close().await;
    let (far, look) = (site.client_by(&road).await, site.client().await);
    // So does each connection, where statements are prepared for it.
    warm(&far, &name).await;
    // Of several servers, the one that keeps this lock is connected to.
    assert!(far.show(&name).await.expect("an answer by the road").is_none());
    Scene { road, far, look, name }
}

/// Every move has been made once where this lock is kept: a store that runs scripts by their hash
/// is otherwise first answered that it does not know them, and that answer would be the lost one.
async fn warm(locks: &Locks, name: &str) {
    let held = take(locks, name).await;
    let (lock, told) = waiting_for(locks, name, LONG);
    let asking = task(async move { lock.acquire().await.map(drop) });
    soon("it waits", told.notified()).await;
    asking.abort();
    give_back(held).await;
    all_free(locks, name).await;
}

/// An acquire to be, and what tells that it waits.
fn waiting_for(locks: &Locks, name: &str, ttl: Duration) -> (Lock, Arc<Notify>) {
    let told = Arc::new(Notify::new());
    let tells = told.clone();
    (locks.lock(name).ttl(ttl).on_wait(move |_| tells.notify_one()), told)
}

/// Asks until there is an answer and the lock is free.
async fn again(locks: &Locks, name: &str) -> Guard {
    soon("a grant after trouble", async {
        loop {
            if let Ok(Ok(guard)) = locks.lock(name).ttl(LONG).try_acquire().await {
                return guard;
            }
            Clock::system().sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

impl Scene {
    async fn is_held(&self) -> bool {
        self.look.show(&self.name).await.expect("an answer").is_some()
    }

    /// The road is whole, and the client that comes by it has noticed.
    async fn healed(&self) {
        self.road.heal();
        until("an answer by the road", async || self.far.show(&self.name).await.is_ok()).await;
    }

    /// Nobody but this guard has the lock, and the client that comes by the road knows it.
    async fn only(&self, held: &Guard) {
        until("it is busy for who comes by the road", async || {
            let asked = self.far.lock(&self.name).ttl(LONG).try_acquire().await;
            assert!(!matches!(asked, Ok(Ok(_))), "granted twice");
            asked.is_ok()
        })
        .await;
        let shown = self.look.show(&self.name).await.expect("an answer").expect("it is held");
        assert_eq!((shown.holds.len(), shown.holds[0].holder.token), (1, held.token()));
        assert!(held.check().is_ok());
    }
}

/// Dropped after the store granted, with its answer lost or still to come: given back at once, and
/// the late answer changes nothing.
pub async fn s01_s02_an_acquire_dropped_before_its_answer_holds_nothing(site: &StoreUnderTest) {
    for silence in [ProxiedRoute::drop_answers, ProxiedRoute::hold_answers] {
        let s = scene(site).await;
        silence(&s.road);
        let lock = s.far.lock(&s.name).ttl(LONG);
        let asking = task(async move { lock.acquire().await.map(drop) });
        until("it is granted", async || s.is_held().await).await;
        asking.abort();
        if !s.road.undoes_unanswered() {
            s.road.heal();
        }
        // The answers of the cancel do not come either, but it does.
        all_free(&s.look, &s.name).await;
        let held = take(&s.look, &s.name).await;
        s.healed().await;
        s.only(&held).await;
        give_back(held).await;
        give_back(again(&s.far, &s.name).await).await;
    }
}

/// Dropped after the store granted, and cut off before the cancel could leave: over with its TTL,
/// and the cancel that arrives at last hurts nobody.
pub async fn s02_an_acquire_dropped_and_cut_off_is_over_with_its_ttl(site: &StoreUnderTest) {
    let s = scene(site).await;
    // What a client keeps for each TTL is there: the acquire is the one call that is cut off.
    give_back(s.far.lock(&s.name).ttl(site.steady()).await.expect("a grant")).await;
    s.road.hold_answers();
    let lock = s.far.lock(&s.name).ttl(site.steady());
    let asking = task(async move { lock.acquire().await.map(drop) });
    until("it is granted", async || s.is_held().await).await;
    s.road.cut();
    asking.abort();
    let next = soon("its end", s.look.lock(&s.name).ttl(LONG).acquire()).await.expect("a grant");
    s.healed().await;
    s.only(&next).await;
    give_back(next).await;
}

/// Nothing gets through any more, and nothing says so: the guard is lost and its work cancelled
/// before the store gives the lock to another.
pub async fn s04_silence_is_a_loss_before_the_lease_passes_on(site: &StoreUnderTest) {
    let s = scene(site).await;
    let lock = s.far.lock(&s.name).ttl(site.steady());
    let (tell, told) = oneshot::channel();
    let work = task(async move {
        let work = lock.run(async |held| {
            let _ = tell.send(held.clone());
            std::future::pending::<()>().await;
        });
        work.await
    });
    let held = soon("the work", told).await.expect("it runs");
    s.road.cut();
    let next = soon("it passes on", s.look.lock(&s.name).ttl(LONG).acquire()).await;
    let lost = held.check().expect_err("another holds it");
    assert_eq!(lost.why, LossReason::Expired);
    let next = next.expect("a grant");
    assert!(site.capability().fence == Fence::Unordered || next.token() > held.token());
    let ended = soon("the end of the work", work).await.expect("no panic");
    assert_eq!(ended.expect_err("cancelled").kind(), Kind::Lost);
    s.healed().await;
    assert!(held.check().is_err());
    s.only(&next).await;
    give_back(next).await;
}

/// Renewals take effect and nobody hears of it: lost at the deadline, and the answers that come
/// then bring nothing back.
pub async fn s05_a_late_renewal_brings_nothing_back(site: &StoreUnderTest) {
    let s = scene(site).await;
    let held = s.far.lock(&s.name).ttl(site.steady()).await.expect("a grant");
    renewed(&held).await;
    s.road.hold_answers();
    let lost = soon("the loss", held.lost()).await;
    assert_eq!(lost.why, LossReason::Expired);
    // In a line it leaves as soon as it is lost, which arrives as the renewals did.
    let leaves = site.capability().family == Family::Queue;
    assert!(leaves || s.is_held().await, "no renewal took effect: this law would show nothing");
    s.healed().await;
    assert!(held.check().is_err(), "a late answer revived it");
    assert_eq!(held.release().await.expect("an answer"), Released::WasLost);
    all_free(&s.look, &s.name).await;
}

/// Waits until what is left of a hold has risen.
async fn renewed(held: &Guard) {
    let mut least = held.remaining();
    until("a renewal", async || {
        let left = held.remaining();
        let risen = left > least;
        least = least.min(left);
        risen
    })
    .await;
}

/// A release whose answer is lost has an unknown outcome; repeated, it says what became of it.
pub async fn s11_a_release_without_an_answer_is_unknown_and_can_be_repeated(site: &StoreUnderTest) {
    let s = scene(site).await;
    let mut held = take(&s.far, &s.name).await;
    s.road.drop_answers();
    let e = soon("an error", held.give_back()).await.expect_err("no answer");
    assert!(e.outcome() == Outcome::Unknown && e.hint().is_some(), "{e:?}");
    all_free(&s.look, &s.name).await;
    s.healed().await;
    until("a second try", async || {
        held.give_back().await.is_ok_and(|released| {
            assert_eq!(released, Released::Released, "it had been released by the first try");
            true
        })
    })
    .await;
}

/// A release dropped before it left, or before its answer: nobody believes in the guard any more,
/// and the lock is given back all the same.
pub async fn s11_a_release_cancelled_midway_is_finished(site: &StoreUnderTest) {
    for silence in [ProxiedRoute::cut, ProxiedRoute::hold_answers] {
        let s = scene(site).await;
        let mut held = take(&s.far, &s.name).await;
        silence(&s.road);
        assert!(Clock::system().timeout(MIDWAY, held.give_back()).await.is_none());
        assert!(held.check().is_err(), "half given back, and still believed in");
        drop(held);
        // What was held back is lost: only who asks again gives it back.
        s.road.reset();
        s.road.heal();
        all_free(&s.look, &s.name).await;
        give_back(again(&s.far, &s.name).await).await;
    }
}

/// A waiter that the store has forgotten, or that could not hear of its turn, is told so and never
/// "acquired" while another holds the lock.
pub async fn s17_a_waiter_cut_off_is_told_and_never_granted(site: &StoreUnderTest) {
    let s = scene(site).await;
    let held = take(&s.look, &s.name).await;
    let (lock, told) = waiting_for(&s.far, &s.name, site.steady());
    let waiting = task(async move { lock.acquire().await });
    soon("it waits", told.notified()).await;
    s.road.cut();
    // Where there is a line it leaves it with its wait-lease, at the latest. A connection stands in
    // the server's own line until the server misses it; then it must not keep the lock for long.
    if site.capability().family != Family::Session {
        line_of_or_gone(&s, 0).await;
    }
    give_back(held).await;
    let next = soon("another's turn", s.look.lock(&s.name).ttl(LONG).acquire()).await;
    let next = next.expect("a grant");
    let e = soon("it is told", waiting).await.expect("no panic").expect_err("never granted");
    // Its turn may have come while it could not hear of it.
    assert!(e.is_transient() && e.outcome() == Outcome::Unknown && e.hint().is_some(), "{e:?}");
    s.healed().await;
    s.only(&next).await;
    // A question that the cut held back may arrive after the healing and join anew, until the cancel,
    // which is repeated until it is acknowledged, takes it out.
    line_of_or_gone(&s, 0).await;
    give_back(next).await;
}

async fn line_of_or_gone(s: &Scene, n: usize) {
    until("the line is as it should be", async || {
        s.look.show(&s.name).await.expect("an answer").map_or(0, |l| l.waiters.len()) == n
    })
    .await;
}

/// The only answer is lost: an error of unknown outcome, and what may have been granted is in
/// nobody's way, not even for its own client.
pub async fn s22_a_lost_answer_leaves_no_ghost(site: &StoreUnderTest) {
    let s = scene(site).await;
    s.road.drop_answers();
    let lock = s.far.lock(&s.name).ttl(LONG);
    let e = soon("an error", lock.try_acquire()).await.expect_err("no answer");
    assert!(e.outcome() == Outcome::Unknown && e.is_transient(), "{e:?}");
    s.road.heal();
    give_back(again(&s.far, &s.name).await).await;
    all_free(&s.look, &s.name).await;
}

/// The same request asked again after its answer was lost: its own hold is recognised.
pub async fn s22_a_request_asked_again_is_known(site: &StoreUnderTest) {
    let s = scene(site).await;
    let ask = ask(site, &s.name, LONG, Patience::Never);
    s.road.drop_answers();
    let e = s.far.backend().acquire(ask.clone(), None).await.expect_err("the answer was lost");
    assert_eq!(e.outcome(), Outcome::Unknown, "{e:?}");
    assert!(s.is_held().await, "the request did not arrive: this law would show nothing");
    s.healed().await;
    let Ok(Attempt::Granted(grant)) = s.far.backend().acquire(ask.clone(), None).await else {
        panic!("its own entry is in its way");
    };
    let shown = s.look.show(&s.name).await.expect("an answer").expect("it is held");
    assert_eq!((shown.holds.len(), shown.holds[0].holder.token), (1, grant.tokens.first()));
    let released = s.far.backend().release(&ask.key()).await.expect("an answer");
    assert_eq!(released, Released::Released);
    all_free(&s.look, &s.name).await;
}

/// In line when the answers stop: its turn comes meanwhile, and when it asks again it has it.
pub async fn s22_a_turn_that_was_not_heard_of_is_found(site: &StoreUnderTest) {
    let s = scene(site).await;
    let held = take(&s.look, &s.name).await;
    let token = held.token();
    let lock = s.far.lock(&s.name).ttl(LONG);
    let waiting = task(async move { lock.acquire().await });
    line_of(&s.look, &s.name, 1).await;
    s.road.hold_answers();
    give_back(held).await;
    until("it is promoted", async || {
        let shown = s.look.show(&s.name).await.expect("an answer");
        shown.is_some_and(|l| l.waiters.is_empty())
    })
    .await;
    s.road.heal();
    let turn = soon("its turn", waiting).await.expect("no panic").expect("a grant");
    assert!(turn.token() > token);
    let shown = s.look.show(&s.name).await.expect("an answer").expect("it is held");
    assert!(shown.holds.len() == 1 && shown.waiters.is_empty(), "{shown:?}");
    give_back(turn).await;
    all_free(&s.look, &s.name).await;
}

/// A quorum does without the answers of a minority: it grants, renews and gives back, and leaves
/// nothing where it was not answered.
pub async fn a_minority_without_answers_stops_nobody(site: &StoreUnderTest) {
    for silence in [ProxiedRoute::drop_answers, ProxiedRoute::hold_answers, ProxiedRoute::cut] {
        let s = on(site, site.road().await.minority()).await;
        silence(&s.road);
        let lock = s.far.lock(&s.name).ttl(site.steady());
        let held = soon("a grant", lock.acquire()).await.expect("a grant");
        for _ in 0..3 {
            renewed(&held).await;
        }
        let answer = s.look.lock(&s.name).ttl(LONG).try_acquire().await.expect("an answer");
        assert!(answer.is_err(), "granted twice");
        give_back(held).await;
        all_free(&s.look, &s.name).await;
        s.road.heal();
        nothing_left_there(site, &s.name).await;
    }
}

/// With others cut off, the nodes of the minority are needed: a lock can only be had if nothing is
/// left of it there.
async fn nothing_left_there(site: &StoreUnderTest, name: &str) {
    let other = on(site, site.road().await.turned().minority()).await;
    other.road.cut();
    give_back(again(&other.far, name).await).await;
}

/// A minority that a release did not reach is told of it again.
pub async fn a_minority_that_missed_a_release_is_told_again(site: &StoreUnderTest) {
    let s = on(site, site.road().await.minority()).await;
    let held = take(&s.far, &s.name).await;
    s.road.cut();
    give_back(held).await;
    // What was held back is lost.
    s.road.reset();
    s.road.heal();
    nothing_left_there(site, &s.name).await;
}
