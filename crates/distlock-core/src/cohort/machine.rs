//! The state machine of a cohort: whom a lock is handed to, and when it is given up. No I/O, no
//! locks, no clock: the driver performs what it decides, and a model checks it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::BootInstant;

/// Max hand-overs once somebody elsewhere waits.
pub(crate) const MAX_BYPASS: u32 = 64;
/// How long hand-overs go on once somebody elsewhere waits.
pub(crate) const MAX_BYPASS_TIME: Duration = Duration::from_millis(20);
/// An offer passes on when its waiter has not taken it in this time: its task is not polled.
pub(crate) const UNTAKEN: Duration = Duration::from_secs(1);

/// The waiters of one client for one lock, and the one request or lease that they share. `W` is a
/// waiter; two are the same if and only if they are equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Machine<W> {
    state: State<W>,
    /// Served from the front. While the request is at the store, its leader is among them.
    queue: VecDeque<W>,
    /// Counts requests: the number of the request that is asked for, or whose lease is shared.
    turn: u64,
    /// Max hand-overs once somebody elsewhere waits.
    bypass: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum State<W> {
    /// Nothing at the store.
    Idle,
    /// One request at the store, or about to be sent.
    Asking,
    /// A task holds the lock.
    Held(Feed),
    /// The lock is kept for this waiter until it is polled.
    Offered { feed: Feed, to: W, until: BootInstant },
    /// Nobody wants the lock; its lease is kept until then, in case somebody here does again.
    Parked { feed: Feed, until: BootInstant },
    /// The client was closed.
    Closed,
}

/// What is left of a lease for hand-overs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Feed {
    /// Tokens of the block that nobody has had.
    tokens: u32,
    /// Hand-overs since somebody elsewhere is known to wait.
    bypasses: u32,
    /// Since when somebody elsewhere is known to wait.
    awaited: Option<BootInstant>,
}

/// What an arrival comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// It is the first: it sends the request with this number.
    Asks(u64),
    /// A request is at the store: it must not depend on its leader being polled any more.
    Joins,
    /// A task of this client has the lock.
    Waits,
    /// A parked lease is its own: it takes the lock at once.
    Offered,
    /// A parked lease is not good for it: that is given back, and then the request with this number
    /// is sent.
    Leaves(u64),
    Closed,
}

/// What follows from the end of a hold, of an offer or of a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next<W> {
    /// Nothing, for the cohort.
    Nothing,
    /// The lock is offered to this waiter: wake it.
    Offer(W),
    /// The lease is given back, and then the request with this number is sent for those who wait.
    Leave(Option<u64>),
    /// The request at the store is cancelled: nobody waits for it.
    Cancel,
}

impl<W: PartialEq + Clone> Machine<W> {
    pub(crate) fn new() -> Self {
        Self::with_bypass(MAX_BYPASS)
    }

    /// With another bound on hand-overs: a model has few.
    pub(crate) fn with_bypass(bypass: u32) -> Self {
        Self { state: State::Idle, queue: VecDeque::new(), turn: 0, bypass }
    }

    /// Whether nothing is at the store and nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && matches!(self.state, State::Idle | State::Closed)
    }

    /// Whether this is the number of the request that is asked for.
    pub(crate) fn asks(&self, turn: u64) -> bool {
        self.turn == turn && self.state == State::Asking
    }

    /// Whether a task holds the lock by the lease of this number.
    pub(crate) fn holds(&self, turn: u64) -> bool {
        self.turn == turn && matches!(self.state, State::Held(_))
    }

    /// Whether the lock is offered to this waiter.
    pub(crate) fn is_offered(&self, w: &W) -> bool {
        matches!(&self.state, State::Offered { to, .. } if to == w)
    }

    /// Whether the lease of this number is offered.
    pub(crate) fn offers(&self, turn: u64) -> bool {
        self.turn == turn && matches!(self.state, State::Offered { .. })
    }

    /// Whether the lease of this number is parked.
    pub(crate) fn parks(&self, turn: u64) -> bool {
        self.turn == turn && self.is_parked()
    }

    /// Whether a lease is parked.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.state, State::Parked { .. })
    }

    /// When the offer passes on, or the parked lease is given back.
    pub(crate) fn kept_until(&self) -> Option<BootInstant> {
        match &self.state {
            State::Offered { until, .. } | State::Parked { until, .. } => Some(*until),
            _ => None,
        }
    }

    pub(crate) fn waiters(&self) -> usize {
        self.queue.len()
    }

    /// How many waiters are ahead of this one.
    pub(crate) fn place(&self, w: &W) -> Option<usize> {
        self.queue.iter().position(|other| other == w)
    }

    /// Whether the lease is known to be waited for elsewhere.
    pub(crate) fn is_awaited(&self) -> bool {
        match &self.state {
            State::Held(feed) | State::Offered { feed, .. } | State::Parked { feed, .. } => {
                feed.awaited.is_some()
            }
            _ => false,
        }
    }

    fn ask(&mut self) -> u64 {
        self.state = State::Asking;
        self.turn += 1;
        self.turn
    }

    /// A waiter arrives; one that was passed over comes back to the front. `live` says that a lease is
    /// good for a hand-over.
    pub(crate) fn arrive(&mut self, w: W, back: bool, now: BootInstant, live: bool) -> Arrival {
        let arrival = match &self.state {
            State::Closed => return Arrival::Closed,
            State::Idle => Arrival::Asks(self.ask()),
            State::Asking => Arrival::Joins,
            State::Held(_) | State::Offered { .. } => Arrival::Waits,
            State::Parked { feed, .. } if live => {
                let (feed, until) = (feed.clone(), now.plus(UNTAKEN));
                self.state = State::Offered { feed, to: w, until };
                return Arrival::Offered;
            }
            State::Parked { .. } => Arrival::Leaves(self.ask()),
        };
        match back {
            true => self.queue.push_front(w),
            false => self.queue.push_back(w),
        }
        arrival
    }

    /// A waiter is dropped or out of patience. `live` says that the lease is good for a hand-over.
    pub(crate) fn leave(&mut self, w: &W, now: BootInstant, live: bool) -> Next<W> {
        if self.is_offered(w) {
            return self.pass_on(now, live);
        }
        if let Some(place) = self.place(w) {
            self.queue.remove(place);
        }
        match self.state {
            State::Asking if self.queue.is_empty() => {
                self.state = State::Idle;
                Next::Cancel
            }
            _ => Next::Nothing,
        }
    }

    /// The request was granted, with so many tokens: offered to the first waiter. `None` when nobody
    /// waits for that request any more.
    pub(crate) fn granted(
        &mut self,
        turn: u64,
        tokens: u32,
        awaited: bool,
        now: BootInstant,
    ) -> Option<W> {
        if !self.asks(turn) {
            return None;
        }
        let to = self.queue.pop_front()?;
        let feed =
            Feed { tokens: tokens.saturating_sub(1), bypasses: 0, awaited: awaited.then_some(now) };
        self.state = State::Offered { feed, to: to.clone(), until: now.plus(UNTAKEN) };
        Some(to)
    }

    /// The request failed: everybody who waits is told.
    pub(crate) fn failed(&mut self, turn: u64) -> VecDeque<W> {
        if !self.asks(turn) {
            return VecDeque::new();
        }
        self.state = State::Idle;
        std::mem::take(&mut self.queue)
    }

    /// The request came to nothing and is made anew: its new number.
    pub(crate) fn again(&mut self, turn: u64) -> Option<u64> {
        self.asks(turn).then(|| self.ask())
    }

    /// The waiter takes what it is offered.
    pub(crate) fn take(&mut self, w: &W) -> bool {
        if !self.is_offered(w) {
            return false;
        }
        if let State::Offered { feed, .. } = std::mem::replace(&mut self.state, State::Idle) {
            self.state = State::Held(feed);
        }
        true
    }

    /// The parked lease is taken, without a wait.
    pub(crate) fn take_parked(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Parked { feed, .. } => {
                self.state = State::Held(feed);
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Whether a release can leave the lease parked: nobody here or elsewhere is known to want it.
    pub(crate) fn may_park(&self, turn: u64, live: bool) -> bool {
        match &self.state {
            State::Held(feed) if self.turn == turn => {
                live && feed.tokens > 0 && feed.awaited.is_none() && self.queue.is_empty()
            }
            _ => false,
        }
    }

    /// The holder releases, and the lease is kept until then. The next token is the next holder's.
    pub(crate) fn park(&mut self, turn: u64, until: BootInstant) {
        if self.may_park(turn, true)
            && let State::Held(mut feed) = std::mem::replace(&mut self.state, State::Idle)
        {
            feed.tokens -= 1;
            self.state = State::Parked { feed, until };
        }
    }

    /// Whether a release hands the lock to a waiter here. `live` says that the lease is good for it.
    pub(crate) fn may_feed(&self, turn: u64, now: BootInstant, live: bool) -> bool {
        match &self.state {
            State::Held(feed) if self.turn == turn => {
                live && feed.tokens > 0
                    && feed.in_bounds(self.bypass, now)
                    && !self.queue.is_empty()
            }
            _ => false,
        }
    }

    /// The holder releases. [`Next::Nothing`] leaves the release to it: the lease is not shared, or
    /// nobody waits.
    pub(crate) fn release(&mut self, turn: u64, now: BootInstant, live: bool) -> Next<W> {
        let feeds = self.may_feed(turn, now, live);
        match &mut self.state {
            State::Held(feed) if self.turn == turn => {
                if feeds && let Some(to) = self.queue.pop_front() {
                    feed.tokens -= 1;
                    feed.bypasses += u32::from(feed.awaited.is_some());
                    let (feed, until) = (feed.clone(), now.plus(UNTAKEN));
                    self.state = State::Offered { feed, to: to.clone(), until };
                    return Next::Offer(to);
                }
            }
            _ => return Next::Nothing,
        }
        match self.queue.is_empty() {
            true => {
                self.state = State::Idle;
                Next::Nothing
            }
            false => Next::Leave(Some(self.ask())),
        }
    }

    /// The lease ended without a release, or left the cohort: the number of the request that is sent
    /// for those who wait.
    pub(crate) fn gone(&mut self, turn: u64) -> Option<u64> {
        let shared = match &self.state {
            State::Held(_) | State::Offered { .. } | State::Parked { .. } => true,
            State::Idle | State::Asking | State::Closed => false,
        };
        if self.turn != turn || !shared {
            return None;
        }
        let before = std::mem::replace(&mut self.state, State::Idle);
        if let State::Offered { to, .. } = before {
            self.queue.push_front(to);
        }
        (!self.queue.is_empty()).then(|| self.ask())
    }

    /// Somebody elsewhere waits for the lease of this number: one that is parked is given back.
    pub(crate) fn contended(&mut self, turn: u64, now: BootInstant) -> Next<W> {
        if self.parks(turn) {
            return self.give_up();
        }
        if self.turn == turn
            && let State::Held(feed) | State::Offered { feed, .. } = &mut self.state
        {
            feed.awaited.get_or_insert(now);
        }
        Next::Nothing
    }

    /// The parked lease is given back, if there is one.
    pub(crate) fn give_up(&mut self) -> Next<W> {
        if !self.is_parked() {
            return Next::Nothing;
        }
        self.state = State::Idle;
        Next::Leave(None)
    }

    /// A lease that was parked for long enough is given back.
    pub(crate) fn unpark(&mut self, now: BootInstant) -> Next<W> {
        match &self.state {
            State::Parked { until, .. } if *until <= now => self.give_up(),
            _ => Next::Nothing,
        }
    }

    /// Nobody elsewhere waited for it when the store answered a question sent at this moment. What is
    /// known since then counts for more: the answer may be the older of the two.
    pub(crate) fn uncontended(&mut self, turn: u64, sent: BootInstant) {
        if self.turn == turn
            && let State::Held(feed) | State::Offered { feed, .. } = &mut self.state
            && feed.awaited.is_some_and(|since| since < sent)
        {
            (feed.awaited, feed.bypasses) = (None, 0);
        }
    }

    /// The offer was not taken in time: passes it on. Its waiter is out of the queue until it is
    /// polled again.
    pub(crate) fn overdue(&mut self, now: BootInstant, live: bool) -> Option<(W, Next<W>)> {
        match &self.state {
            State::Offered { to, until, .. } if *until <= now => {
                let late = to.clone();
                Some((late, self.pass_on(now, live)))
            }
            _ => None,
        }
    }

    /// From a waiter that did not take its offer to the next. The token was not used.
    fn pass_on(&mut self, now: BootInstant, live: bool) -> Next<W> {
        let State::Offered { feed, to, until } = &mut self.state else { return Next::Nothing };
        if live
            && feed.in_bounds(self.bypass, now)
            && let Some(next) = self.queue.pop_front()
        {
            (*to, *until) = (next.clone(), now.plus(UNTAKEN));
            return Next::Offer(next);
        }
        match self.queue.is_empty() {
            true => {
                self.state = State::Idle;
                Next::Leave(None)
            }
            false => Next::Leave(Some(self.ask())),
        }
    }

    /// The client is closed: everybody who waits is told.
    pub(crate) fn close(&mut self) -> Vec<W> {
        let offered = match std::mem::replace(&mut self.state, State::Closed) {
            State::Offered { to, .. } => Some(to),
            _ => None,
        };
        offered.into_iter().chain(self.queue.drain(..)).collect()
    }
}

impl Feed {
    /// Whether those who wait elsewhere have been bypassed less often, and for less time, than they
    /// may be.
    fn in_bounds(&self, most: u32, now: BootInstant) -> bool {
        self.awaited.is_none_or(|since| self.bypasses < most && now.since(since) < MAX_BYPASS_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> BootInstant {
        BootInstant::from_nanos(1_000_000_000).plus(MS * ms)
    }

    fn arrive(m: &mut Machine<u8>, w: u8, back: bool) -> Arrival {
        m.arrive(w, back, at(0), true)
    }

    /// One holds, the others wait: granted at the first moment with so many tokens.
    fn held(tokens: u32, awaited: bool, waiters: u8) -> Machine<u8> {
        let mut m = Machine::new();
        assert_eq!(arrive(&mut m, 0, false), Arrival::Asks(1));
        for w in 1..=waiters {
            assert_eq!(arrive(&mut m, w, false), Arrival::Joins);
        }
        assert_eq!(m.granted(1, tokens, awaited, at(0)), Some(0));
        assert!(m.take(&0) && m.holds(1));
        m
    }

    #[test]
    fn the_first_asks_and_the_others_are_served_in_order_without_asking() {
        let mut m = held(10, false, 2);
        assert_eq!(arrive(&mut m, 3, false), Arrival::Waits);
        for w in 1..=3 {
            assert_eq!(m.release(1, at(1), true), Next::Offer(w));
            assert!(!m.holds(1) && !m.take(&9) && m.take(&w));
        }
        assert_eq!(m.release(1, at(1), true), Next::Nothing, "nobody waits: the holder releases");
        assert!(m.is_idle());
    }

    #[test]
    fn a_lease_without_tokens_or_that_is_not_live_is_given_back_and_asked_for_anew() {
        let mut m = held(1, false, 1);
        assert_eq!(m.release(1, at(0), true), Next::Leave(Some(2)));
        assert!(
            m.asks(2) && m.granted(1, 5, false, at(0)).is_none(),
            "an answer to an old request"
        );
        let mut m = held(9, false, 1);
        assert_eq!(m.release(1, at(0), false), Next::Leave(Some(2)));
    }

    #[test]
    fn who_waits_elsewhere_is_bypassed_64_times_or_for_20_ms() {
        let mut m = held(1024, true, 100);
        let passed =
            (1..=100).take_while(|w| m.release(1, at(0), true) == Next::Offer(*w) && m.take(w));
        assert_eq!(passed.count(), 64);
        let mut m = held(1024, false, 3);
        m.contended(1, at(5));
        assert_eq!(m.release(1, at(24), true), Next::Offer(1));
        assert!(m.take(&1));
        assert_eq!(m.release(1, at(25), true), Next::Leave(Some(2)));
        let mut m = held(1024, true, 1);
        m.uncontended(1, at(1));
        assert_eq!(m.release(1, at(25), true), Next::Offer(1));
    }

    #[test]
    fn an_answer_to_a_question_sent_before_does_not_take_a_waiter_elsewhere_back() {
        let mut m = held(1024, false, 1);
        m.contended(1, at(2));
        m.uncontended(1, at(1));
        assert_eq!(m.release(1, at(22), true), Next::Leave(Some(2)));
    }

    #[test]
    fn an_offer_that_is_not_taken_passes_on_and_its_waiter_comes_back_to_the_front() {
        let mut m = held(9, false, 2);
        assert_eq!(m.release(1, at(0), true), Next::Offer(1));
        assert_eq!(m.overdue(at(999), true), None);
        assert_eq!(m.overdue(at(1000), true), Some((1, Next::Offer(2))));
        assert!(!m.take(&1), "it is another's by now");
        assert_eq!(arrive(&mut m, 1, true), Arrival::Waits);
        assert_eq!(arrive(&mut m, 3, false), Arrival::Waits);
        assert_eq!(m.leave(&2, at(1001), true), Next::Offer(1));
        assert_eq!(m.overdue(at(2001), true), Some((1, Next::Offer(3))));
        assert_eq!(m.leave(&3, at(2001), true), Next::Leave(None));
        assert!(m.is_idle());
    }

    #[test]
    fn a_lost_lease_feeds_nobody_and_those_who_wait_ask_anew() {
        let mut m = held(9, false, 2);
        assert_eq!(m.gone(1), Some(2));
        assert_eq!(m.release(1, at(0), true), Next::Nothing);
        assert_eq!(m.gone(1), None);
        assert_eq!(m.granted(2, 9, false, at(0)), Some(1));
        assert_eq!(m.gone(2), Some(3), "lost while it was offered");
        assert!(!m.take(&1));
        assert_eq!(m.granted(3, 9, false, at(0)), Some(1));
        assert_eq!(arrive(&mut m, 1, false), Arrival::Waits);
    }

    #[test]
    fn the_last_to_leave_cancels_and_a_failure_is_told_to_all() {
        let mut m = Machine::new();
        assert_eq!(arrive(&mut m, 0, false), Arrival::Asks(1));
        assert_eq!(arrive(&mut m, 1, false), Arrival::Joins);
        assert_eq!(m.leave(&0, at(0), true), Next::Nothing);
        assert_eq!(m.leave(&1, at(0), true), Next::Cancel);
        assert!(m.is_idle());
        assert_eq!(arrive(&mut m, 0, false), Arrival::Asks(2));
        assert_eq!(arrive(&mut m, 1, false), Arrival::Joins);
        assert!(m.failed(1).is_empty());
        assert_eq!(m.failed(2), [0, 1]);
        assert!(m.is_idle());
    }

    #[test]
    fn a_close_tells_everybody_and_nothing_follows() {
        let mut m = held(9, false, 2);
        assert_eq!(m.release(1, at(0), true), Next::Offer(1));
        assert_eq!(m.close(), [1, 2]);
        assert!(!m.take(&1));
        assert_eq!(arrive(&mut m, 4, false), Arrival::Closed);
        assert_eq!(m.release(1, at(0), true), Next::Nothing);
        assert_eq!(m.gone(1), None);
    }

    #[test]
    fn a_parked_lease_is_the_next_comers_until_somebody_elsewhere_waits_or_its_time_is_over() {
        let mut m = held(3, false, 0);
        assert!(m.may_park(1, true) && !m.may_park(1, false) && !m.may_park(2, true));
        m.park(1, at(50));
        assert!(m.parks(1) && !m.is_idle() && m.kept_until() == Some(at(50)));
        assert_eq!(m.unpark(at(49)), Next::Nothing);
        assert_eq!(m.arrive(1, false, at(49), true), Arrival::Offered);
        assert!(m.take(&1) && m.holds(1));
        m.park(1, at(90));
        assert!(m.take_parked() && m.holds(1) && !m.take_parked());
        assert!(!m.may_park(1, true), "no token is left");
        let mut m = held(9, false, 0);
        m.park(1, at(50));
        assert_eq!(m.contended(2, at(1)), Next::Nothing, "another lease");
        assert_eq!(m.contended(1, at(1)), Next::Leave(None));
        assert!(m.is_idle());
        let mut m = held(9, false, 0);
        m.park(1, at(50));
        assert_eq!(m.unpark(at(50)), Next::Leave(None));
        let mut m = held(9, false, 0);
        m.park(1, at(50));
        assert_eq!(m.arrive(1, false, at(1), false), Arrival::Leaves(2), "not live any more");
        let mut m = held(9, false, 0);
        m.contended(1, at(0));
        assert!(!m.may_park(1, true), "somebody elsewhere waits");
        let mut m = held(9, false, 0);
        m.park(1, at(50));
        assert_eq!(m.gone(1), None);
        assert!(m.is_idle() && !m.take_parked());
    }
}
