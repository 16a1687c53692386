//! Acquiring: joining, waiting for one's turn, and giving up.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::driver::Inner;
use super::inspect::{look_again, status};
use super::registry::{Cause, HeldEntry, Leaving, Reentry, Waiter};
use super::snapshot::{Snapshot, Spot, Turn, turn};
use super::store::{Joined, Proven, QueueStore};
use super::tokens;
use crate::{
    Ask, Attempt, BootInstant, Error, Grant, Kept, Kind, Lease, LossReason, Outcome, Patience,
    QueueStatus, Token, Watcher, engine,
};

/// After a question without an answer the next one waits this long; a quarter of the lease when
/// that is less.
const PAUSE: Duration = Duration::from_millis(250);
/// A request that neither asks again nor is undone leaves the queue after this long; after its TTL
/// when that is less.
const ORPHANED: Duration = Duration::from_secs(10);

/// One request on its way: until it holds or has left, its drop sees to its entry.
struct Stand<'a, S: QueueStore> {
    inner: &'a Arc<Inner<S>>,
    waiter: Arc<Waiter<S::Place>>,
}

impl<S: QueueStore> Stand<'_, S> {
    fn joined(&self, place: S::Place, lease: Lease) {
        self.waiter.state.lock().joined = Some((place, lease));
    }

    /// Whether its place can still be believed in.
    ///
    /// # Errors
    /// When it is gone, or its session may be over: it must never be granted then.
    fn alive(&self) -> Result<(), Error> {
        let state = self.waiter.state.lock();
        if let Some(why) = state.lost {
            return Err(out_of_line(why));
        }
        let over = |(_, lease): &(_, Lease)| lease.left(self.inner.reading()).is_zero();
        if state.joined.as_ref().is_some_and(over) {
            return Err(out_of_line(LossReason::Expired));
        }
        Ok(())
    }

    /// When its session may be over, unless it is kept.
    fn end(&self) -> BootInstant {
        let state = self.waiter.state.lock();
        state.joined.as_ref().map_or(BootInstant::FAR, |(_, lease)| lease.until().boot)
    }
}

impl<S: QueueStore> Drop for Stand<'_, S> {
    /// Takes effect in the background, and only if nobody undoes the request sooner.
    fn drop(&mut self) {
        if !self.inner.registry.unstand(&self.waiter) {
            return;
        }
        let (key, ttl, now) = (self.waiter.key.clone(), self.waiter.ttl, self.inner.reading());
        // Not joined: its join was sent, and the answer did not find it any more.
        let joined = self.waiter.state.lock().joined.take();
        let left = Leaving::unjoined(key, joined, ttl, now);
        let at = now.boot.plus(ttl.min(ORPHANED));
        self.inner.leave_later(Leaving { at, cause: Cause::Orphan, ..left });
    }
}

impl<S: QueueStore> Inner<S> {
    pub(super) async fn acquire(
        self: &Arc<Self>,
        ask: &Ask,
        seen: Option<Watcher<'_>>,
    ) -> Result<Attempt, Error> {
        if let Some(grant) = self.enter_again(ask).await? {
            return Ok(Attempt::Granted(grant));
        }
        let until = ask.patience.until(self.clock().now());
        // On the list before it is sent: news may come before its answer.
        let stand = Stand { inner: self, waiter: self.registry.stand(ask) };
        // In a box of its own, so that a waiter does not carry the call's state while it sleeps.
        let joined = Box::pin(self.bounded(self.store.join(ask))).await;
        let (place, line, lease) = match joined {
            Ok(Joined::In { place, queue: line, lease }) => (place, line, lease),
            // It does not stand in the queue, and never will.
            Ok(Joined::Refused(line)) => {
                self.registry.unstand(&stand.waiter);
                return Ok(Attempt::Busy(status(&line, None)));
            }
            Ok(Joined::Tombstoned) => {
                self.registry.unstand(&stand.waiter);
                return Err(Error::tombstoned());
            }
            Err(e) => {
                if e.outcome() == Outcome::NotApplied {
                    self.registry.unstand(&stand.waiter);
                }
                return Err(e);
            }
        };
        stand.joined(place.clone(), lease);
        if turn(&line, self.store.token(&place)) == Turn::Mine {
            // The answer itself shows that it is first: nothing is left to prove.
            return Ok(self.grant(ask, place, lease, &line));
        }
        self.tend(self.clock().now().plus(lease.ttl / 3));
        self.wait(ask, &stand, place, line, until, seen).await
    }

    /// Enters what the same owner holds through this client. A hold that was not renewed for a
    /// while is renewed first, or its lease could end before the renewer's first renewal is
    /// answered.
    ///
    /// The renewal runs on the library's thread and to its end: others may need its answer.
    async fn enter_again(self: &Arc<Self>, ask: &Ask) -> Result<Option<Grant>, Error> {
        let keeping = match self.registry.enter(ask, self.reading(), false)? {
            Reentry::Granted(grant) => return Ok(Some(grant)),
            Reentry::Nothing => return Ok(None),
            Reentry::Stale(keeping) => keeping,
        };
        let (tell, told) = tokio::sync::oneshot::channel();
        let inner = self.clone();
        engine::spawn(async move { drop(tell.send(inner.renew(keeping).await)) });
        if let Ok(Kept::Unknown(e)) = Box::pin(told).await {
            return Err(e);
        }
        match self.registry.enter(ask, self.reading(), true)? {
            Reentry::Granted(grant) => Ok(Some(grant)),
            Reentry::Stale(_) | Reentry::Nothing => Ok(None),
        }
    }

    async fn wait(
        self: &Arc<Self>,
        ask: &Ask,
        stand: &Stand<'_, S>,
        place: S::Place,
        mut line: Snapshot,
        until: BootInstant,
        seen: Option<Watcher<'_>>,
    ) -> Result<Attempt, Error> {
        let (me, mut last) = (self.store.token(&place), QueueStatus::default());
        let mut proof = None;
        loop {
            let watch = match turn(&line, me) {
                Turn::Mine => {
                    let lease = match proof.take() {
                        Some(proven) => self.proven(stand, &place, proven)?,
                        None => Box::pin(self.prove(stand, &place, until)).await?,
                    };
                    return Ok(self.grant(ask, place, lease, &line));
                }
                Turn::Behind(watch) => watch,
                Turn::Gone => return Err(out_of_line(LossReason::Gone)),
                Turn::Refused(n) => {
                    // At once: others wait behind it.
                    let _ = Box::pin(self.leave(&stand.waiter.key, Some(&place))).await?;
                    self.registry.unstand(&stand.waiter);
                    return Err(Error::permits_differ(n));
                }
            };
            last = self.told(ask, last, &line, me, seen);
            if self.clock().now() >= until {
                let _ = Box::pin(self.leave(&stand.waiter.key, Some(&place))).await?;
                self.registry.unstand(&stand.waiter);
                return Ok(Attempt::Busy(last));
            }
            let since = std::mem::take(&mut line).seen;
            let look = look_again(ask.ttl, seen.is_some());
            let look = self.clock().now().plus(look - ask.req.jitter(look / 4)).min(until);
            let called = self.doze(stand, &watch, since, look).await;
            stand.alive()?;
            // Trouble that passes while the place is kept costs nothing.
            let entered = loop {
                match self.enter_again(ask).await {
                    Ok(entered) => break entered,
                    Err(e) => Box::pin(self.pause(stand, until, e)).await?,
                }
            };
            if let Some(grant) = entered {
                // Its owner holds the lock, and it shares that hold: its own place is for others.
                self.give_up_place(stand, place);
                return Ok(Attempt::Granted(grant));
            }
            (line, proof) = Box::pin(self.look(stand, &place, until, called)).await?;
        }
    }

    /// Sleeps until one of those watched is gone, or rung, or until a moment; false for that.
    async fn doze(
        &self,
        stand: &Stand<'_, S>,
        watch: &[Spot],
        since: u64,
        until: BootInstant,
    ) -> bool {
        let until = until.min(stand.end());
        let gone = Box::pin(self.store.gone(&stand.waiter.key.lock, watch, since));
        let timer = Box::pin(self.clock().sleep_until(until));
        tokio::select! {
            biased;
            () = stand.waiter.wake_up.notified() => true,
            () = gone => true,
            () = timer => false,
        }
    }

    /// The queue as it is now; for a waiter that was called up with its proof, if the store has it.
    /// Trouble that passes while the place is kept costs nothing.
    async fn look(
        &self,
        stand: &Stand<'_, S>,
        place: &S::Place,
        until: BootInstant,
        called: bool,
    ) -> Result<(Snapshot, Option<Proven>), Error> {
        let key = &stand.waiter.key;
        if called {
            return self.asked(stand, until, || self.store.queue_and_proof(key, place)).await;
        }
        let line = self.asked(stand, until, || self.store.queue(&key.lock, place)).await?;
        Ok((line, None))
    }

    /// Proves that a place is still owned, by a write, and tells the lease it leaves.
    async fn prove(
        &self,
        stand: &Stand<'_, S>,
        place: &S::Place,
        until: BootInstant,
    ) -> Result<Lease, Error> {
        let proven =
            self.asked(stand, until, || self.store.prove(&stand.waiter.key, place)).await?;
        self.proven(stand, place, proven)
    }

    /// Asks until there is an answer, for as long as the place can be believed in: after that no
    /// answer could make it good, and its client is told at once.
    async fn asked<T, F: Future<Output = Result<T, Error>>>(
        &self,
        stand: &Stand<'_, S>,
        until: BootInstant,
        ask: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            let answer = {
                let mut call = pin!(self.bounded(ask()));
                loop {
                    tokio::select! {
                        biased;
                        answer = &mut call => break answer,
                        // It may have been kept meanwhile, and lasts longer now.
                        () = self.clock().sleep_until(stand.end()) => stand.alive()?,
                    }
                }
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(e) => self.pause(stand, until, e).await?,
            }
        }
    }

    /// What a proof means. It may come late: then nothing is proven by it.
    fn proven(
        &self,
        stand: &Stand<'_, S>,
        place: &S::Place,
        proven: Proven,
    ) -> Result<Lease, Error> {
        match proven {
            Proven::Mine(lease) => {
                stand.joined(place.clone(), lease);
                stand.alive()?;
                Ok(lease)
            }
            Proven::Lost(why) => Err(out_of_line(why)),
        }
    }

    /// After a question without an answer: a while later it may be asked again, if the place can
    /// then still be believed in and patience lasts.
    async fn pause(&self, stand: &Stand<'_, S>, until: BootInstant, e: Error) -> Result<(), Error> {
        if !e.is_transient() {
            return Err(e);
        }
        tracing::debug!(lock = %stand.waiter.key.lock, error = %e, "asking again");
        let now = self.clock().now();
        let at = now.plus(PAUSE.min(stand.waiter.ttl / 4)).min(stand.end());
        self.clock().sleep_until(at.min(until.max(now))).await;
        stand.alive()?;
        if self.clock().now() >= until { Err(e) } else { Ok(()) }
    }

    fn told(
        &self,
        ask: &Ask,
        last: QueueStatus,
        line: &Snapshot,
        me: Token,
        seen: Option<Watcher<'_>>,
    ) -> QueueStatus {
        let now = status(line, Some(me));
        // A request without patience is told by its answer alone.
        if now.is_news_after(&last) && ask.patience != Patience::Never {
            tracing::debug!(lock = %ask.lock, status = %now, "waiting");
            if let Some(seen) = seen {
                seen(&now);
            }
        }
        now
    }

    /// From here on there is no await: a grant that nobody could undo must not exist.
    fn grant(&self, ask: &Ask, place: S::Place, lease: Lease, line: &Snapshot) -> Attempt {
        let token = self.store.token(&place);
        let tokens = tokens::range(token, ask.block, S::LOCAL_BITS);
        let mut hold = HeldEntry {
            key: ask.key(),
            owner: ask.owner.clone(),
            mode: ask.mode,
            place,
            tokens,
            lease,
            free_at: BootInstant::from_nanos(0),
            promised: BootInstant::from_nanos(0),
            reqs: Vec::new(),
        };
        hold.share(ask, self.reading());
        let grant = hold.grant(ask.req, line.waiting_behind(token));
        self.registry.hold(hold);
        Attempt::Granted(grant)
    }

    fn give_up_place(self: &Arc<Self>, stand: &Stand<'_, S>, place: S::Place) {
        if !self.registry.unstand(&stand.waiter) {
            return;
        }
        let (key, ttl) = (stand.waiter.key.clone(), stand.waiter.ttl);
        let joined = stand.waiter.state.lock().joined.take();
        let joined = joined.map(|(_, lease)| (place, lease));
        self.leave_later(Leaving::unjoined(key, joined, ttl, self.reading()));
    }
}

fn out_of_line(why: LossReason) -> Error {
    let what = match why {
        LossReason::Revoked => "an operator took its place in the queue away",
        LossReason::Gone => "its place in the queue is gone",
        _ => "its session with the store ended while it waited",
    };
    let e = Error::new(Kind::Cancelled, what)
        .transient()
        .with_hint("ask again: a new acquire joins the end of the queue");
    // Its turn may have come while nothing could be heard of it.
    if matches!(why, LossReason::Revoked | LossReason::Gone) { e } else { e.unknown() }
}
