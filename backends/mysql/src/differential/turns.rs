//! Turns that one statement may confirm, and those that it must leave to the long way.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{Claim, Now};
use distlock_core::{Force, FullName, LockState, Micros, Mode, Name, Op, Reply};

use super::scene::{START, Scene};
use super::{claim, name};
use crate::record::rules;

const LONG: Option<Duration> = Some(Duration::from_secs(300));

/// A store and the specification side by side.
struct Both {
    scene: Scene,
    spec: LockState,
    name: FullName,
    now: u64,
}

impl Both {
    async fn new() -> Self {
        Self::at(Scene::new().await)
    }

    fn at(scene: Scene) -> Self {
        Self { scene, spec: LockState::default(), name: name(), now: START }
    }

    /// One operation on both, a millisecond later: the same answer, and the same state.
    async fn step(&mut self, op: Op) -> Reply {
        self.now += 1_000;
        self.scene.at(self.now).await;
        let now = Micros(self.now);
        let want = self.spec.step(&op, Now { lease: now, wall: now }, &rules()).reply;
        let got = self.scene.one(&self.name.clone(), op.clone(), "").await;
        assert_eq!(got, want, "{op:?}");
        let mut state = self.scene.state(&self.name.clone()).await;
        state.tombstones.retain(|s| s.until > now);
        assert_eq!(state, self.spec, "after {op:?}");
        got
    }

    async fn ask(&mut self, claim: &Claim, wait: Option<Duration>) -> Reply {
        self.step(Op::Acquire { claim: claim.clone(), wait }).await
    }

    async fn join(&mut self, claim: &Claim) {
        let got = self.ask(claim, LONG).await;
        assert!(matches!(got, Reply::Waiting { .. }), "{got:?}");
    }

    async fn take(&mut self, claim: &Claim) {
        let got = self.ask(claim, None).await;
        assert!(matches!(got, Reply::Granted { .. }), "{got:?}");
    }

    async fn release(&mut self, claim: &Claim) {
        self.step(Op::Release { req: claim.req }).await;
    }

    /// Some join the line of a lock that is held, which is then given back: the turn of the first.
    async fn hand_over(&mut self, line: &[&Claim]) {
        let holder = alone(1);
        self.take(&holder).await;
        for claim in line {
            self.join(claim).await;
        }
        self.release(&holder).await;
    }

    /// Its turn, confirmed; whether by the one statement.
    async fn confirm(&mut self, claim: &Claim) -> bool {
        let before = self.scene.confirmed;
        self.take(claim).await;
        self.scene.confirmed > before
    }

    async fn sql(&mut self, sql: &str) {
        let lock = self.scene.tables().lock;
        self.scene.sql(sql.replace("LOCK", &lock)).await;
    }
}

fn alone(n: u128) -> Claim {
    claim(n, Mode::Exclusive)
}

/// Whether the turn of one in a crowd is confirmed by one statement; its answers are right either way.
async fn is_short(waiter: Claim) -> bool {
    let mut both = Both::new().await;
    let last = alone(3);
    both.hand_over(&[&waiter, &last]).await;
    let short = both.confirm(&waiter).await;
    // What the row says now is good for what comes next, too.
    both.ask(&waiter, None).await;
    both.release(&waiter).await;
    both.now += 10_000_000;
    both.ask(&last, LONG).await;
    short
}

#[tokio::test]
async fn the_turn_of_one_in_a_crowd_is_confirmed_by_one_statement() {
    assert!(is_short(alone(2)).await);
}

#[tokio::test]
async fn a_turn_with_a_least_time_of_holding_is_confirmed_the_long_way() {
    assert!(!is_short(Claim { min_hold: Duration::from_secs(5), ..alone(2) }).await);
}

#[tokio::test]
async fn a_turn_with_many_tokens_is_confirmed_the_long_way() {
    let block = NonZeroU32::new(3_000_000).unwrap();
    assert!(!is_short(Claim { block, ..alone(2) }).await);
}

/// Nobody's turn is confirmed by another, nor by the same who now asks for something else; and not
/// twice.
#[tokio::test]
async fn a_turn_is_confirmed_once_by_whose_it_is() {
    let mut both = Both::new().await;
    let (next, last) = (alone(2), alone(3));
    both.hand_over(&[&next, &last]).await;
    both.join(&last).await;
    let again = Claim { ttl: Duration::from_secs(1), ..next.clone() };
    assert_eq!(both.scene.confirm(&name(), &again).await, None, "another claim");
    assert!(both.confirm(&next).await);
    both.now += 1_000_000;
    assert!(!both.confirm(&next).await, "a replay: what is left is less than its TTL");
}

/// A lock of another name has the same turn, as no two ever have: it is not touched.
#[tokio::test]
async fn a_turn_is_confirmed_at_its_own_lock_only() {
    let mut both = Both::new().await;
    let mut specs = Vec::new();
    for lock in ["a", "b"] {
        both.name.name = Name::new(lock).unwrap();
        both.hand_over(&[&alone(2)]).await;
        specs.push((both.name.clone(), std::mem::take(&mut both.spec)));
    }
    let [(first, before), (_, spec)] = <[_; 2]>::try_from(specs).unwrap();
    both.spec = spec;
    assert!(both.confirm(&alone(2)).await);
    assert_eq!(both.scene.state(&first).await, before);
}

/// Two seconds later a turn has passed; its waiter, heard of again, gets another, with a new token.
#[tokio::test]
async fn a_turn_that_is_over_is_not_confirmed_by_one_statement() {
    let mut both = Both::new().await;
    let (next, last) = (alone(2), alone(3));
    both.hand_over(&[&next, &last]).await;
    both.now += 2_000_000;
    let got = both.ask(&next, LONG).await;
    assert!(matches!(got, Reply::Granted { .. }), "{got:?}");
    assert_eq!(both.scene.confirmed, 0);
}

/// A hold that was taken away is nobody's turn, though it blocks others until its lease ends.
#[tokio::test]
async fn what_was_taken_away_is_no_turn() {
    let mut both = Both::new().await;
    let (holder, next) = (alone(1), alone(2));
    both.take(&holder).await;
    both.join(&next).await;
    both.step(Op::Force { token: None, how: Force::Revoke }).await;
    let got = both.ask(&holder, None).await;
    assert!(matches!(got, Reply::Tombstoned(_)), "{got:?}");
}

/// Somebody behind it has not been heard of: it is dropped from the line, and not counted.
#[tokio::test]
async fn a_line_with_somebody_who_is_over_is_cleared_first() {
    let mut both = Both::new().await;
    let (holder, next, silent) = (alone(1), alone(2), alone(3));
    both.take(&holder).await;
    both.join(&next).await;
    both.ask(&silent, Some(Duration::from_millis(100))).await;
    both.release(&holder).await;
    both.now += 200_000;
    assert!(!both.confirm(&next).await);
}

/// Another of the same owner is let in with it, whether it was there before the turn or came after.
#[tokio::test]
async fn those_of_the_same_owner_are_let_in_the_long_way() {
    for late in [false, true] {
        let mut both = Both::new().await;
        let (holder, next) = (alone(1), alone(2));
        let second = Claim { owner: next.owner.clone(), ..alone(3) };
        both.take(&holder).await;
        both.join(&next).await;
        if !late {
            both.join(&second).await;
        }
        both.release(&holder).await;
        if late {
            both.join(&second).await;
        }
        assert!(!both.confirm(&next).await, "late: {late}");
        assert_eq!(both.spec.holds.len(), 2);
    }
}

/// A turn before a line that is too long to be read, and whether it is confirmed by one statement
/// after so many microseconds: somebody far back is waited for so long, or of that owner.
async fn is_short_in_a_long_line(far: Claim, wait: Duration, after: u64) -> bool {
    let mut both = Both::at(Scene::with_long_lines().await);
    let (holder, next) = (alone(1), alone(2));
    both.take(&holder).await;
    for n in 2..30 {
        both.join(&alone(n)).await;
    }
    both.ask(&far, Some(wait)).await;
    both.join(&alone(31)).await;
    both.release(&holder).await;
    both.now += after;
    let short = both.confirm(&next).await;
    let others = usize::from(far.owner == next.owner);
    assert_eq!(both.spec.holds.len(), 1 + others);
    short
}

#[tokio::test]
async fn a_turn_before_a_long_line_is_confirmed_by_one_statement() {
    assert!(is_short_in_a_long_line(alone(30), Duration::from_secs(300), 0).await);
}

#[tokio::test]
async fn who_was_not_read_may_be_of_the_same_owner() {
    let far = Claim { owner: alone(2).owner, ..alone(30) };
    assert!(!is_short_in_a_long_line(far, Duration::from_secs(300), 0).await);
}

#[tokio::test]
async fn who_was_not_read_may_be_over() {
    assert!(!is_short_in_a_long_line(alone(30), Duration::from_millis(100), 200_000).await);
}

/// A reader has its turn while a lock-delay keeps another from joining it; both enter once it is over.
#[tokio::test]
async fn readers_are_let_in_the_long_way() {
    let mut both = Both::new().await;
    let (writer, ttl) = (alone(1), Duration::from_millis(100));
    let dies = Claim { ttl, lock_delay: ttl, ..claim(2, Mode::Shared) };
    let [next, last] = [3, 4].map(|n| claim(n, Mode::Shared));
    both.take(&writer).await;
    both.join(&dies).await;
    both.join(&next).await;
    both.release(&writer).await;
    both.ask(&dies, None).await;
    both.now += 150_000;
    both.join(&last).await;
    both.now += 150_000;
    assert!(!both.confirm(&next).await);
    assert_eq!(both.spec.holds.len(), 2);
}

/// What is remembered of those who released in another order than that of their ends stands where a
/// turn does: it is still there after the confirmation.
#[tokio::test]
async fn what_was_released_is_not_forgotten_for_a_turn() {
    let mut both = Both::new().await;
    let [slow, quick] = [1, 2].map(|n| claim(n, Mode::Shared));
    let slow = Claim { min_hold: Duration::from_millis(500), ..slow };
    let next = alone(3);
    both.take(&slow).await;
    both.take(&quick).await;
    both.join(&next).await;
    both.release(&slow).await;
    both.release(&quick).await;
    both.now += 600_000;
    both.step(Op::Settle).await;
    assert!(!both.confirm(&next).await);
    for spent in [slow, quick] {
        let got = both.ask(&spent, None).await;
        assert!(matches!(got, Reply::Tombstoned(_)), "{got:?}");
    }
}

/// However many wait: what does not fit one number with the token is told as "at least so many".
#[tokio::test]
async fn a_turn_before_thousands_is_confirmed_by_one_statement() {
    for waiters in [2_046, 2_047, 2_048, 10_000] {
        let mut both = Both::new().await;
        let next = alone(2);
        both.hand_over(&[&next]).await;
        both.sql(&format!("UPDATE LOCK SET nwait={waiters}")).await;
        let token = both.spec.holds[0].token;
        let got = both.scene.confirm(&name(), &next).await;
        let Some(Reply::Granted { waiters: told, token: got, .. }) = got else { panic!("{got:?}") };
        assert_eq!((told, got.get()), (waiters.min(2_047), token));
    }
}

/// A token that does not fit one number with the number of waiters is told the long way.
#[tokio::test]
async fn what_does_not_fit_one_number_is_told_the_long_way() {
    let mut both = Both::new().await;
    let [next, last] = [2, 3].map(alone);
    both.hand_over(&[&next]).await;
    assert!(both.confirm(&next).await);
    both.sql("UPDATE LOCK SET hi=4503599627370495").await;
    both.spec = both.scene.state(&name()).await;
    both.join(&last).await;
    both.release(&next).await;
    assert_eq!(both.spec.hi, 1 << 52);
    assert!(!both.confirm(&last).await);
}
