//! What this client holds: an entry in line, and the requests that share it.

use std::time::Duration;

use crate::backend::{Ask, Grant, Key};
use crate::clock::BootInstant;
use crate::clock_reading::ClockReading;
use crate::ids::{Owner, ReqId};
use crate::loss::LossReason;
use crate::mode::Mode;
use crate::token::{Token, TokenRange};

use super::store::{Keeping, Lease};

/// One entry that holds.
#[derive(Clone)]
pub(super) struct Hold<P> {
    /// The request the store knows it by.
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) place: P,
    pub(super) token: Token,
    pub(super) lease: Lease,
    /// Before this a release frees nothing: the longest `min_hold` of all who entered.
    pub(super) free_at: BootInstant,
    /// The same, as of the last release of one that shared it: a later undo frees nothing before it.
    pub(super) promised: BootInstant,
    /// The requests that share it.
    pub(super) reqs: Vec<ReqId>,
}

impl<P: Clone> Hold<P> {
    /// Whether it may still be believed in.
    pub(super) fn sound(&self, now: ClockReading) -> bool {
        !self.lease.left(now).is_zero()
    }

    /// Whether its lease was renewed as lately as that of a session that a join finds open.
    pub(super) fn fresh(&self, now: ClockReading) -> bool {
        now.since(self.lease.sent) < self.lease.ttl / 3
    }

    /// What the store is asked to keep.
    pub(super) fn keeping(&self) -> Keeping<P> {
        let (key, place) = (self.key.clone(), self.place.clone());
        Keeping { key, place, ttl: self.lease.ttl, held: true }
    }

    /// One more request shares it.
    pub(super) fn share(&mut self, ask: &Ask, now: ClockReading) {
        if !self.reqs.contains(&ask.req) {
            self.reqs.push(ask.req);
        }
        self.free_at = self.free_at.max(now.boot.plus(ask.min_hold));
    }

    pub(super) fn grant(&self, req: ReqId, waiters: u32) -> Grant {
        let Lease { sent, ttl, margin } = self.lease;
        Grant { req, tokens: TokenRange::one(self.token), sent, ttl, margin, waiters }
    }

    /// The same grant once more, counted from now and no longer than before.
    pub(super) fn replay(&self, req: ReqId, now: ClockReading) -> Grant {
        let ttl = self.lease.ttl.saturating_sub(now.since(self.lease.sent));
        Grant { sent: now, ttl, ..self.grant(req, 0) }
    }
}

/// An entry that is to leave, and when.
#[derive(Clone)]
pub(super) struct Leaving<P> {
    pub(super) key: Key,
    /// `None` when its join was never answered.
    pub(super) place: Option<P>,
    pub(super) lease: Lease,
    pub(super) at: BootInstant,
    pub(super) cause: Cause,
    /// Somebody sees it out already.
    pub(super) under_way: bool,
    /// Several requests shared it.
    pub(super) shared: bool,
}

/// Why an entry is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Nobody waits for its turn any more, and nobody has undone it yet.
    Orphan,
    /// Released; its `min_hold` is not over.
    Lingering,
    /// An operator took it away. Its holder is told, and has until the end of its lease to stop.
    Revoked,
    /// Released or given up, without an answer.
    Unfinished,
}

impl<P> Leaving<P> {
    pub(super) fn of(hold: Hold<P>, at: BootInstant, cause: Cause) -> Self {
        let shared = hold.reqs.len() > 1;
        let (key, place, lease) = (hold.key, Some(hold.place), hold.lease);
        Self { key, place, lease, at, cause, under_way: false, shared }
    }

    /// Of a request that stood in line, or whose join may yet arrive.
    pub(super) fn unjoined(
        key: Key,
        joined: Option<(P, Lease)>,
        ttl: Duration,
        now: ClockReading,
    ) -> Self {
        let unanswered = Lease { sent: now, ttl, margin: Duration::ZERO };
        let (place, lease) = joined.map_or((None, unanswered), |(p, lease)| (Some(p), lease));
        let (at, cause) = (now.boot, Cause::Unfinished);
        Self { key, place, lease, at, cause, under_way: false, shared: false }
    }

    /// Whether it must stay until its lease ends: it was taken away from several requests of one
    /// owner, and one that gives it back cannot know that all the others were told.
    pub(super) fn outlasts_a_release(&self) -> bool {
        self.cause == Cause::Revoked && self.shared && !self.under_way
    }

    /// Whether its session is to be kept for it.
    pub(super) fn lingers(&self) -> bool {
        self.cause == Cause::Lingering && !self.under_way
    }
}

/// What a request had that leaves.
pub(super) enum Left<P> {
    /// Others share the hold still.
    Shared,
    /// The same, and it must last for the `min_hold` of one that was released.
    Promised(Hold<P>),
    /// A hold, and it was the last who shared it.
    Hold(Hold<P>),
    /// A place in line, or an entry that was to leave anyway.
    Leaving(Leaving<P>),
    /// Nothing that is known here.
    Nothing,
}

/// What became of a waiter's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits<P> {
    pub(super) joined: Option<(P, Lease)>,
    pub(super) lost: Option<LossReason>,
}

impl<P> Default for Waits<P> {
    fn default() -> Self {
        Self { joined: None, lost: None }
    }
}
