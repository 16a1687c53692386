//! Acquiring: attempts, and what lies between them.
//!
//! Whoever waits stands in every node's line under one ticket, so that all nodes agree on who is
//! next. A wake-up from a majority of nodes, or from one and a moment's grace, is a hint to ask; a
//! bounded poll, different for each request, is the net below it. An attempt that failed is undone
//! at every node that may have something of it, before the next one starts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Inner;
use super::attempt::{Tally, Verdict};
use super::holds::Slot;
use super::node::{Bid, Place, QuorumNode, Round, Vote};
use super::unacknowledged::Ending;
use super::waiters::Bell;
use crate::backend::{Ask, Attempt, Grant, Kept, Watcher};
use crate::busy::QueueStatus;
use crate::clock::BootInstant;
use crate::error::{Error, Kind};
use crate::token::TokenRange;
use crate::ttl::Patience;

/// A waiter that is silent for longer leaves the line; never longer than its TTL.
const WAIT_LEASE: Duration = Duration::from_secs(10);
/// How long after the end of a lease the next in line asks.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// Who is next, or has no place in line, asks again within these bounds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// The longest pause after a split vote.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often somebody who does not wait tries again when contenders split the vote.
const SPLITS: u32 = 4;

/// What a waiter remembers between two attempts.
struct Wait {
    place: Place,
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
        let until = match ask.patience {
            Patience::Never => start,
            Patience::For(d) => start.plus(d),
            Patience::Forever => BootInstant::FAR,
        };
        let patient = ask.patience != Patience::Never;
        if let Some(replay) = self.replay(&ask) {
            return Ok(Attempt::Granted(replay));
        }
        let enough = u32::try_from(self.majority).unwrap_or(u32::MAX);
        let hung = self.bells.hang(&ask, enough);
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
            hung.bell.reset();
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
            if tally.spent() > 0 && tally.spent() + tally.granted() >= self.majority {
                if !std::mem::take(&mut wait.blind) {
                    return Err(spent());
                }
                // A later round was asked for by another client: their answers have told the time.
                wait.round = self.next_round();
                continue;
            }
            // Who does not wait has nothing to be told meanwhile: the answer says it all.
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
            self.doze(&hung.bell, again, until, patient).await;
        }
    }

    async fn doze(&self, bell: &Bell, again: Duration, until: BootInstant, patient: bool) {
        let at = self.clock().now().plus(again);
        // Who does not wait still gives way for a moment when the vote was split.
        bell.doze(self.clock(), if patient { at.min(until) } else { at }).await;
    }

    /// The same request once more: what it holds, counted from now and no longer than before.
    fn replay(&self, ask: &Ask) -> Option<Grant> {
        let slot = self.holds.of(&ask.req)?;
        let now = self.moment();
        let state = slot.state();
        state.sound(now).then(|| Grant {
            req: ask.req,
            tokens: TokenRange::one(slot.token),
            sent: now,
            ttl: state.left_at(now),
            margin: state.margin,
            waiters: 0,
        })
    }

    /// Enters what the same owner holds through this client, if a majority of nodes confirms it.
    async fn enter_again(&self, ask: &Arc<Ask>, asked: bool) -> Option<Grant> {
        let slot = self.holds.of_owner(ask, self.moment())?;
        let kept = Box::pin(self.renew_slot(&slot, ask.ttl)).await;
        let Kept::Until { sent, ttl, margin, waiters } = kept else { return None };
        // The others may have asked for a longer lease: one that is not renewed ends with its own.
        let ttl = ttl.min(ask.ttl);
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
        Some(Grant { req: ask.req, tokens, sent, ttl, margin, waiters })
    }

    fn granted(&self, slot: Arc<Slot>, ask: &Ask, waiters: u32) -> Grant {
        let state = slot.state();
        let (sent, ttl, margin) = (state.sent, state.left, state.margin);
        drop(state);
        let tokens = TokenRange::one(slot.token);
        self.holds.insert(slot, ask.req, self.clock().now());
        self.bells.ring_owner(&ask.lock, &ask.owner);
        Grant { req: ask.req, tokens, sent, ttl, margin, waiters }
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

    /// Patience is over: leaves every line.
    async fn give_up(&self, ask: &Ask) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.tell(&ask.key(), Ending::Cancel(Round::ALL), ask.ttl, &all, 0).await;
    }

    /// Takes in what the nodes said; how long to wait before asking again, unless rung.
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
        if changed(&wait.last, &status) {
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
        // The nodes are told soon that a majority has it in line.
        let poll =
            if news == wait.place.backed { jittered(poll.min(most)) } else { jittered(POLL.0) };
        match left {
            Some(left) if next => poll.min(left + AFTER_EXPIRY),
            _ => poll,
        }
    }

    fn fresh_place(&self, ask: &Ask) -> Place {
        let ticket = self.drift.now(self.clock());
        Place { ticket, wait: ask.ttl.min(WAIT_LEASE), backed: false }
    }

    /// Rounds are numbered by the nodes' time, so that a later call of the same request has later
    /// ones, also on another host. Until a node has told its time they count from one: too low a
    /// number is answered as spent, and that answer tells the time. Textbook nodes tell no time and
    /// remember no rounds: there the numbers only have to differ.
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

/// Whether people would call it news: another holder or another place.
fn changed(last: &QueueStatus, now: &QueueStatus) -> bool {
    let token = |s: &QueueStatus| s.holder.as_ref().map(|h| h.token);
    let note = |s: &QueueStatus| s.note.is_some();
    token(last) != token(now)
        || last.ahead != now.ahead
        || note(last) != note(now)
        || *last == QueueStatus::default()
}

fn spent() -> Error {
    Error::new(Kind::Cancelled, "this request was cancelled or taken away")
        .with_hint("ask again: a new acquire is a new request")
}
