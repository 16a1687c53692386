//! Acquiring: attempts, and what lies between them.
//!
//! A waiter stands in every node's queue under one ticket, so that all nodes agree on the next one.
//! A wake-up from a majority of nodes, or from one and a moment's grace, is a hint to ask; a
//! bounded poll, different for each request, is the net below it. An attempt that failed is undone
//! at every node that may have something of it, before the next one starts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attempt::{Tally, Verdict};
use super::{Bid, Ending, Inner, Position, QuorumNode, Round, Slot, Vote};
use crate::{
    Ask, Attempt, BootInstant, Error, Grant, Kept, Patience, QueueStatus, TokenRange, Watcher,
};

/// A waiter that is silent for longer leaves the queue; never longer than its TTL.
const WAIT_LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a lease the next in the queue asks.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// A waiter that is next, or has no place in the queue, asks again within these bounds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// The longest pause after a split vote.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often a request without patience tries again when contenders split the vote.
const SPLITS: u32 = 4;

/// What a waiter remembers between two attempts.
struct Wait {
    place: Position,
    last: QueueStatus,
    round: Round,
    /// The round was numbered before any node had told its time.
    blind: bool,
    splits: u32,
    polls: u32,
    /// When a majority last answered.
    heard: BootInstant,
    /// Something of this request may be at a node.
    asked: bool,
    /// A bid left, in this attempt or an earlier one, and was not answered.
    unsure: bool,
}

impl<N: QuorumNode> Inner<N> {
    pub(super) async fn acquire(
        &self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'_>>,
    ) -> Result<Attempt, Error> {
        let start = self.clock().now();
        let until = ask.patience.until(start);
        let patient = ask.patience != Patience::Never;
        if let Some(replay) = self.replay(&ask) {
            return Ok(Attempt::Granted(replay));
        }
        let enough = u32::try_from(self.majority).unwrap_or(u32::MAX);
        let registered = self.waiters.register(&ask, enough);
        let mut wait = Wait {
            place: self.fresh_place(&ask),
            last: QueueStatus::default(),
            blind: self.drift.latest(self.clock()).is_none(),
            round: self.next_round(),
            splits: 0,
            polls: 0,
            heard: start,
            asked: false,
            unsure: false,
        };
        loop {
            registered.waiter.reset();
            if let Some(grant) = self.enter_again(&ask, wait.asked).await {
                return Ok(Attempt::Granted(grant));
            }
            let token = self.drift.proposal(self.clock());
            let place = (patient && self.ordered).then_some(wait.place);
            let bid = Bid { ask: ask.clone(), round: wait.round, token, place };
            wait.asked = true;
            let tally = match Box::pin(self.attempt(&bid)).await? {
                Verdict::Granted(slot, waiters) => {
                    // No await from here on: a grant that nobody could undo must not exist.
                    return Ok(Attempt::Granted(self.granted(slot, &ask, waiters)));
                }
                Verdict::Refused(tally) => tally,
            };
            wait.unsure |= tally.unsure;
            self.undo_round(&ask, &mut wait, &tally).await;
            if tally.tombstoned() > 0 && tally.tombstoned() + tally.granted() >= self.majority {
                if !std::mem::take(&mut wait.blind) {
                    return Err(Error::tombstoned());
                }
                // A later round was asked for by another client: their answers have told the time.
                wait.round = self.next_round();
                continue;
            }
            // A request without patience is told by its answer alone.
            let again = self.learn(&ask, &mut wait, &tally, seen.filter(|_| patient));
            let now = self.clock().now();
            if tally.answered() < self.majority {
                let keeps_place = patient && now.since(wait.heard) < wait.place.wait;
                if !keeps_place {
                    Box::pin(self.give_up(&ask)).await;
                    let e = self.unheard(&tally).during("acquire");
                    return Err(if wait.unsure { e.unknown() } else { e });
                }
            }
            let split = tally.split(self.majority) && wait.splits <= SPLITS;
            if now >= until && (patient || !split) {
                if patient {
                    Box::pin(self.give_up(&ask)).await;
                }
                return Ok(Attempt::Busy(wait.last));
            }
            let at = self.clock().now().plus(again);
            // A request without patience still gives way for a moment when the vote was split.
            let at = if patient { at.min(until) } else { at };
            registered.waiter.doze(self.clock(), at).await;
        }
    }

    /// The same request once more: what it holds, counted from now and no longer than before.
    fn replay(&self, ask: &Ask) -> Option<Grant> {
        let slot = self.holds.of(&ask.req)?;
        let now = self.reading();
        let state = slot.state.lock();
        state.sound(now).then(|| Grant {
            req: ask.req,
            tokens: TokenRange::one(slot.token),
            lease: state.lease.recounted(now),
            waiters: 0,
        })
    }

    /// Enters what the same owner holds through this client, if a majority of nodes confirms it.
    async fn enter_again(&self, ask: &Arc<Ask>, asked: bool) -> Option<Grant> {
        let slot = self.holds.of_owner(ask, self.reading())?;
        let kept = Box::pin(self.renew_slot(&slot, ask.ttl)).await;
        let Kept::Until { mut lease, waiters } = kept else { return None };
        // The others may have asked for a longer lease: one that is not renewed ends with its own.
        lease.ttl = lease.ttl.min(ask.ttl);
        // The hold may have been given back meanwhile: then this request bids on, and no cancel of
        // it may be under way.
        if !self.holds.join(&slot, ask, self.clock().now()) {
            return None;
        }
        if asked {
            // It shares the other request's hold: nothing of its own may stay at the nodes.
            self.owe_all(&ask.key(), Ending::Cancel(Round::ALL), ask.ttl);
        }
        let tokens = TokenRange::one(slot.token);
        Some(Grant { req: ask.req, tokens, lease, waiters })
    }

    fn granted(&self, slot: Arc<Slot>, ask: &Ask, waiters: u32) -> Grant {
        let lease = slot.state.lock().lease;
        let tokens = TokenRange::one(slot.token);
        self.holds.insert(slot, ask.req, self.clock().now());
        self.waiters.wake_owner(&ask.lock, &ask.owner);
        Grant { req: ask.req, tokens, lease, waiters }
    }

    /// Undoes what a failed attempt may have left, and numbers the next one.
    async fn undo_round(&self, ask: &Ask, wait: &mut Wait, tally: &Tally) {
        let doubtful: Vec<usize> = tally.in_doubt().collect();
        if doubtful.is_empty() {
            return;
        }
        self.tell(&ask.key(), Ending::Cancel(wait.round), ask.ttl, &doubtful, 0).await;
        wait.round = self.next_round();
    }

    /// Patience is over: leaves every queue.
    async fn give_up(&self, ask: &Ask) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.tell(&ask.key(), Ending::Cancel(Round::ALL), ask.ttl, &all, 0).await;
    }

    /// Takes in what the nodes said; how long to wait before asking again, unless woken.
    fn learn(
        &self,
        ask: &Ask,
        wait: &mut Wait,
        tally: &Tally,
        seen: Option<Watcher<'_>>,
    ) -> Duration {
        let now = self.clock().now();
        if tally.answered() >= self.majority {
            wait.heard = tally.sent.boot;
        }
        for vote in tally.votes.iter().flatten() {
            if let Vote::NotYet { why, .. } = vote {
                tracing::info!(lock = %ask.lock, store = self.site, "{why}");
            }
        }
        let mut status = tally.status(self.majority);
        if tally.answered() < self.majority {
            let (answered, all) = (tally.answered(), self.nodes.len());
            status = QueueStatus::default();
            status.note = Some(format!("{answered} of {all} nodes answer; asking again").into());
        }
        if status.is_news_after(&wait.last) {
            tracing::debug!(lock = %ask.lock, %status, "waiting");
            if let Some(seen) = seen {
                seen(&status);
            }
        }
        let left = status.left;
        let next = status.ahead.is_none_or(|ahead| ahead == 0);
        wait.last = status;
        let news = wait.place.backed;
        wait.place.backed = tally.queued() >= self.majority;
        if !wait.place.backed && tally.answered() >= self.majority {
            // Too far from the nodes' time, which their answers have told by now.
            wait.place = self.fresh_place(ask);
        }
        if tally.split(self.majority) {
            wait.splits += 1;
            return back_off(now.since(tally.sent.boot), wait.splits);
        }
        wait.splits = 0;
        let poll = POLL.0 * 2u32.saturating_pow(wait.polls.min(4));
        wait.polls += 1;
        let most = if next { POLL.1 } else { wait.place.wait / 3 };
        // The nodes are told soon that a majority has it in the queue.
        let poll =
            if news == wait.place.backed { jittered(poll.min(most)) } else { jittered(POLL.0) };
        match left {
            Some(left) if next => poll.min(left + AFTER_EXPIRY),
            _ => poll,
        }
    }

    fn fresh_place(&self, ask: &Ask) -> Position {
        let ticket = self.drift.now(self.clock());
        Position { ticket, wait: ask.ttl.min(WAIT_LEASE), backed: false }
    }

    /// Rounds are numbered by the nodes' time, so that a later call of the same request has later
    /// ones, also on another host. Until a node has told its time they count from one: too low a
    /// number is answered as tombstoned, and that answer tells the time. Textbook nodes tell no
    /// time and remember no rounds: there the numbers only have to differ.
    fn next_round(&self) -> Round {
        let time = match self.ordered {
            true => self.drift.latest(self.clock()).unwrap_or(0),
            false => self.clock().wall_micros(),
        };
        let next = |last: u64| time.max(last + 1).min(Round::ALL.0 - 1);
        let last = self.rounds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |r| Some(next(r)));
        Round(last.map_or(0, next))
    }
}

/// One to three round trips, more after each split, so that contenders part.
fn back_off(round_trip: Duration, splits: u32) -> Duration {
    let unit = round_trip.max(Duration::from_millis(1)) * splits.min(8);
    let spread = unit * 2 * u32::from(random_byte()) / 255;
    (unit + spread).min(BACK_OFF + BACK_OFF * u32::from(random_byte()) / 255)
}

/// Up to a quarter more, so that pollers do not march in step.
fn jittered(d: Duration) -> Duration {
    d + d / 4 * u32::from(random_byte()) / 255
}

fn random_byte() -> u8 {
    let mut byte = [0];
    // Without randomness contenders only take longer to part.
    let _ = crate::ids::fill(&mut byte);
    byte[0]
}
