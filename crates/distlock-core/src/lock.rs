//! Asking for a lock.

use std::future::{Future, IntoFuture};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::client::{Client, Undo, Waits};
use crate::cohort::{TOO_LATE, Terms, Wait, Waited, too_late};
use crate::{
    Ask, Attempt, BootInstant, Busy, Error, Family, Fut, Grant, Guard, Held, Kind, Label, Mode,
    Name, Owner, Patience, QueueStatus, Released, ReqId, Ttl,
};

/// How much longer than its patience a timed acquire may last: for the last call, which takes the
/// request out of the queue and reads the queue's status.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How long one call to a store may take: drivers wait no longer for an answer.
const ONE_CALL: Duration = Duration::from_secs(10);

/// What an acquire comes to: the lock, or "busy", which is no error.
type Attempted = Result<Result<Guard, Busy>, Error>;

type OnWait = Arc<dyn Fn(&QueueStatus) + Send + Sync>;

/// A lock that is about to be asked for. Await it to wait for its turn.
///
/// Nothing happens until it is awaited or one of its acquiring methods is.
#[must_use = "a lock is asked for only when it is awaited"]
#[derive(Clone)]
pub struct Lock(Box<Spec>);

/// What is wanted. In a box, because futures keep several copies of what they are made of, and a
/// thousand waiting tasks keep a thousand of those.
#[derive(Clone)]
struct Spec {
    client: Arc<Client>,
    name: Result<Name, Error>,
    ttl: Result<Ttl, Error>,
    owner: Option<Owner>,
    mode: Mode,
    label: Label,
    min_hold: Duration,
    max_hold: Option<Duration>,
    lock_delay: Duration,
    renew: bool,
    linger: Duration,
    on_wait: Option<OnWait>,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name, Error>) -> Self {
        Self(Box::new(Spec {
            name,
            ttl: Ok(client.ttl),
            owner: None,
            mode: Mode::Exclusive,
            label: client.label.clone(),
            min_hold: Duration::ZERO,
            max_hold: None,
            lock_delay: Duration::ZERO,
            renew: true,
            linger: Duration::ZERO,
            on_wait: None,
            client,
        }))
    }

    /// How long the lock outlives a holder that fell silent: 100 ms to 24 h, 10 s by default. Not
    /// a bound on the work: a living holder's lock is renewed.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = Ttl::new(ttl);
        self
    }

    /// What others see while they wait.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.0.label = Label::new(label);
        self
    }

    /// Who asks. The same owner may enter a lock it holds again, and gets the same token.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.0.owner = Some(owner.clone());
        self
    }

    /// How the lock is to be held; exclusive by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.0.mode = mode;
        self
    }

    /// Held together with other shared holders.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// One of `n` permits. Everybody who uses this lock must say the same `n`.
    pub fn permits(self, n: NonZeroU32) -> Self {
        self.mode(Mode::Permit(n))
    }

    /// A release before this age frees the lock only then: a short job that ten hosts start at the
    /// same minute runs once.
    pub fn min_hold(mut self, d: Duration) -> Self {
        self.0.min_hold = d;
        self
    }

    /// Renewal ends at this age and the lock is lost: bounds a holder that never lets go.
    pub fn max_hold(mut self, d: Duration) -> Self {
        self.0.max_hold = Some(d);
        self
    }

    /// After an *expiry* nobody is granted for this long: for resources that cannot check a token,
    /// time for the writes of a dead holder to arrive.
    pub fn lock_delay(mut self, d: Duration) -> Self {
        self.0.lock_delay = d;
        self
    }

    /// Does not renew: the lock is lost when its TTL ends.
    pub fn without_renewal(mut self) -> Self {
        self.0.renew = false;
        self
    }

    /// Once it is released and no task of this client wants it, the lease stays for this long: the next
    /// acquire here then asks nobody. It is given back at once when somebody elsewhere waits for the
    /// lock; off by default.
    ///
    /// For a lock that one process takes again and again. Meanwhile the lock is not free for others:
    /// a [`try_acquire`](Self::try_acquire) elsewhere answers busy, since it does not wait. Asking fails with
    /// [`Kind::Unsupported`] on a store that cannot tell its holders that somebody waits, and with
    /// [`Kind::Usage`] for a request that cannot share a lease: with an owner, a mode, `min_hold`,
    /// `on_wait`, without renewal, or of a client in strict order.
    pub fn linger(mut self, d: Duration) -> Self {
        self.0.linger = d;
        self
    }

    /// Hears who holds the lock and how many are ahead, whenever that changes while waiting. Called
    /// on the waiting task: be quick.
    pub fn on_wait(mut self, hear: impl Fn(&QueueStatus) + Send + Sync + 'static) -> Self {
        self.0.on_wait = Some(Arc::new(hear));
        self
    }

    /// Waits for its turn, as long as it takes. The same as awaiting the lock itself.
    ///
    /// # Errors
    /// Store trouble, or bad input. Busy is never an answer here.
    ///
    /// # Cancel safety
    /// Dropping the future at any moment leaves neither lock nor place in the queue.
    pub async fn acquire(self) -> Result<Guard, Error> {
        Ok(self.attempt_within(Patience::Forever, None).await??)
    }

    /// Takes the lock if it is free; busy is an answer, not an error. It lasts as long as one call to
    /// the store, and eleven seconds at most; [`Lock::try_acquire_for`] of nothing bounds that to a
    /// second.
    ///
    /// # Errors
    /// Store trouble, or bad input. [`Kind::Unreachable`] with an unknown outcome when the store gave
    /// no answer in that time, as for [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    /// Dropping the future at any moment leaves neither lock nor place in the queue.
    pub async fn try_acquire(self) -> Result<Result<Guard, Busy>, Error> {
        self.attempt_within(Patience::Never, Some(ONE_CALL)).await
    }

    /// Waits for its turn for at most `d`; busy is an answer, not an error. It ends within `d` and a
    /// second, whatever the store does.
    ///
    /// # Errors
    /// Store trouble, or bad input. [`Kind::Unreachable`] with an unknown outcome when the store gave
    /// no answer in that time: what is left of the request is then cancelled in the background, as
    /// soon as the store answers again, and ends with its TTL if it does not.
    ///
    /// # Cancel safety
    /// Dropping the future at any moment leaves neither lock nor place in the queue.
    pub async fn try_acquire_for(self, d: Duration) -> Result<Result<Guard, Busy>, Error> {
        self.attempt_within(Patience::at_most(d), Some(d)).await
    }

    /// Waits for its turn, runs `work` under the lock, and releases it. If the lock is lost, the
    /// work is dropped at its next await and the answer is an error of kind
    /// [`Kind::Lost`]; requests it had sent are not recalled by that, only a fence refuses them.
    ///
    /// # Errors
    /// Store trouble, bad input, or the loss of the lock during the work.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T>(self, work: impl AsyncFnOnce(Held) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let value = tokio::select! {
            biased;
            lost = guard.lost() => return Err(lost.into()),
            value = work(guard.held()) => value,
        };
        // Finished is not enough: it must have been finished under the lock.
        guard.check()?;
        let held = guard.held();
        // No answer is no loss: it was held when the work ended, and the reaper sees to the rest.
        match guard.release().await {
            Ok(Released::WasLost) => Err(held.gone().into()),
            Ok(Released::Released) | Err(_) => Ok(value),
        }
    }

    async fn attempt_within(self, patience: Patience, bound: Option<Duration>) -> Attempted {
        let spec = &self.0;
        let site = spec.client.backend.site();
        let shown = spec.name.as_ref().map_or("", Name::as_str);
        let span = tracing::info_span!("acquire", lock = %shown, store = %site);
        spec.attempt(patience, bound).instrument(span).await.map_err(|e| {
            let e = e.during("acquire").store(site);
            if shown.is_empty() { e } else { e.lock(shown) }
        })
    }
}

impl Spec {
    /// Each in a box: the two ways of waiting should not carry room for each other.
    fn attempt(&self, patience: Patience, bound: Option<Duration>) -> Fut<'_, Attempted> {
        if let Some(guard) = self.parked() {
            return Box::pin(std::future::ready(Ok(Ok(guard))));
        }
        match self.shares() && patience != Patience::Never {
            true => Box::pin(self.share(patience, bound)),
            false => Box::pin(self.ask_alone(patience, bound)),
        }
    }

    /// Asks the store with a request of its own.
    async fn ask_alone(&self, patience: Patience, bound: Option<Duration>) -> Attempted {
        let client = &self.client;
        client.open()?;
        let terms = self.terms()?;
        if let Some(parked) = client.cohorts.leave_parked(client, &terms.lock) {
            Box::pin(parked.send()).await;
        }
        let mut ask = Arc::new(self.ask(terms, patience));
        let mut timing = Timing::new(self);
        let started = timing.started;
        let _waits = Waits::new(client.observer.clone());
        let mut end = bound.map(|d| Box::pin(client.clock().sleep(d.saturating_add(LAST_WORD))));
        let mut late = 0;
        while late < TOO_LATE {
            // Made before the request leaves: from here on a drop at any await takes it back.
            let undo = Undo::new(client.clone(), ask.clone());
            let seen = self.on_wait.as_deref();
            let answer = tokio::select! {
                biased;
                () = client.closing.cancelled() => Err(client.closed()),
                answer = client.backend.acquire(ask.clone(), seen.map(|s| s as _)) => answer,
                () = passed(&mut end) => Err(unanswered(bound.unwrap_or_default())),
            };
            timing.outcome = "error";
            match answer.map_err(|e| self.closed_or(e))? {
                Attempt::Busy(status) => {
                    undo.disarm();
                    timing.outcome = "busy";
                    let waited = match patience {
                        Patience::Never => Duration::ZERO,
                        _ => client.clock().now().since(started),
                    };
                    tracing::debug!(lock = %ask.lock, %status, "busy");
                    return Ok(Err(Busy { lock: ask.lock.clone(), status, waited }));
                }
                Attempt::Granted(grant)
                    if !grant.lease.left(client.clock().reading()).is_zero() =>
                {
                    let guard = self.guard(&ask, &grant, undo);
                    // `close` marks the client closed, then looks for holds: one of the two sees the other.
                    if client.closing.is_cancelled() {
                        return Err(client.closed());
                    }
                    timing.outcome = "granted";
                    return Ok(Ok(guard));
                }
                Attempt::Granted(grant) => {
                    tracing::warn!(lock = %ask.lock, "granted too late to be used; asking again");
                    // One without any lease was given back because this task was not polled at its
                    // turn. That is not the store's fault, and may happen any number of times.
                    late += u32::from(!grant.lease.ttl.is_zero());
                    drop(undo);
                    let ask = Arc::make_mut(&mut ask);
                    ask.req = ReqId::random();
                    if let Patience::For(d) = patience {
                        let waited = client.clock().now().since(started);
                        ask.patience = Patience::at_most(d.saturating_sub(waited));
                    }
                }
            }
        }
        Err(too_late())
    }

    /// Whether this request may share a lease with others of its client: only one that nobody else
    /// can tell from theirs. Whoever wants to hear of its place wants one in the store's queue.
    fn shares(&self) -> bool {
        self.client.cohorts.are_on()
            && self.mode == Mode::Exclusive
            && self.owner.is_none()
            && self.renew
            && self.min_hold.is_zero()
            && self.on_wait.is_none()
    }

    /// Takes the lease that an earlier holder of this client left parked.
    fn parked(&self) -> Option<Guard> {
        let client = &self.client;
        // A closed client says so in the usual way.
        if !client.cohorts.has_lingered() || client.open().is_err() || !self.shares() {
            return None;
        }
        let terms = self.terms().ok()?;
        let guard = client.cohorts.take_parked(client, &terms, self.max_hold, self.linger)?;
        client.observer.waited(&terms.lock, "granted", Duration::ZERO);
        Some(guard)
    }

    /// Waits in the queue of its cohort.
    async fn share(&self, patience: Patience, bound: Option<Duration>) -> Attempted {
        let (mut wait, mut timing, _waits) = self.join(patience)?;
        let mut end =
            bound.map(|d| Box::pin(self.client.clock().sleep(d.saturating_add(LAST_WORD))));
        let waited = tokio::select! {
            biased;
            waited = &mut wait => waited,
            () = passed(&mut end) => Err(unanswered(bound.unwrap_or_default())),
        };
        timing.outcome = "error";
        match waited.map_err(|e| self.closed_or(e))? {
            Waited::Granted(guard) => {
                // `close` marks the client closed, then looks for holds: one of the two sees the other.
                if self.client.closing.is_cancelled() {
                    return Err(self.client.closed());
                }
                timing.outcome = "granted";
                Ok(Ok(guard))
            }
            // In a box: a waiter should not carry room for the end of its patience.
            Waited::Over => Box::pin(self.give_up(wait, timing, end, bound)).await,
        }
    }

    /// Into the queue of its cohort. Not in an async function, which would keep room for the terms.
    fn join(&self, patience: Patience) -> Result<(Wait, Timing<'_>, Waits), Error> {
        let client = &self.client;
        client.open()?;
        let terms = self.terms()?;
        let (timing, waits) = (Timing::new(self), Waits::new(client.observer.clone()));
        let until = patience.until(timing.started);
        let wait = Wait::new(client, terms, until, self.max_hold, self.linger)?;
        Ok((wait, timing, waits))
    }

    /// Leaves the queue of its cohort, because its patience is over.
    async fn give_up(
        &self,
        wait: Wait,
        mut timing: Timing<'_>,
        mut end: Option<Pin<Box<impl Future<Output = ()>>>>,
        bound: Option<Duration>,
    ) -> Attempted {
        let client = &self.client;
        let status = tokio::select! {
            biased;
            () = client.closing.cancelled() => Err(client.closed()),
            status = wait.give_up() => status,
            () = passed(&mut end) => Err(unanswered(bound.unwrap_or_default())),
        };
        let status = status.map_err(|e| self.closed_or(e))?;
        timing.outcome = "busy";
        let (lock, waited) = (self.terms()?.lock, client.clock().now().since(timing.started));
        tracing::debug!(%lock, %status, "busy");
        Ok(Err(Busy { lock, status, waited }))
    }

    /// Closing ends what is under way: the first error of that is reported as the close.
    fn closed_or(&self, e: Error) -> Error {
        if self.client.closing.is_cancelled() { self.client.closed() } else { e }
    }

    /// What is asked for, checked.
    fn terms(&self) -> Result<Terms, Error> {
        let capability = self.client.backend.capability();
        capability.allows(self.mode)?;
        let mut ttl = self.ttl.clone()?;
        if let Some(max) = self.max_hold {
            let max = Ttl::new(max.min(Ttl::MAX.get())).map_err(|_| {
                Error::new(Kind::Usage, format!("a max_hold of {max:?} is out of range"))
                    .with_hint("at least 100ms, the shortest TTL")
            })?;
            ttl = ttl.min(max);
        }
        if !self.lock_delay.is_zero() && !capability.lock_delay {
            return Err(Error::new(Kind::Unsupported, "this store keeps no lock-delay")
                .with_hint("`distlock check` lists what this store serves"));
        }
        self.may_linger()?;
        let most_a_day =
            [("min_hold", self.min_hold), ("lock_delay", self.lock_delay), ("linger", self.linger)];
        for (what, d) in most_a_day {
            if d > Ttl::MAX.get() {
                return Err(Error::new(Kind::Usage, format!("a {what} of {d:?} is out of range"))
                    .with_hint("at most 24h"));
            }
        }
        Ok(Terms {
            lock: self.client.full(self.name.clone()?),
            ttl: capability.grantable(ttl)?,
            lock_delay: self.lock_delay,
            label: self.label.clone(),
        })
    }

    /// Refuses a linger that this store or this request cannot have.
    fn may_linger(&self) -> Result<(), Error> {
        let capability = self.client.backend.capability();
        if self.linger.is_zero() {
            return Ok(());
        }
        if !capability.linger {
            let what = format!("{} cannot keep a lease for the next holder", capability.store);
            return Err(Error::new(Kind::Unsupported, what).with_hint(
                "linger needs a store that tells its holders when somebody waits, such as redis or \
                 sqlite",
            ));
        }
        if !self.shares() {
            let what = "linger is for requests that can share a lease";
            return Err(Error::new(Kind::Usage, what).with_hint(
                "leave out owner, mode, min_hold, on_wait, without_renewal and strict_order",
            ));
        }
        Ok(())
    }

    fn ask(&self, terms: Terms, patience: Patience) -> Ask {
        let req = ReqId::random();
        Ask {
            lock: terms.lock,
            req,
            owner: self.owner.clone().unwrap_or_else(|| Owner::of(&req)),
            mode: self.mode,
            ttl: terms.ttl,
            patience,
            min_hold: self.min_hold,
            lock_delay: terms.lock_delay,
            label: terms.label,
            block: NonZeroU32::MIN,
        }
    }

    fn guard(&self, ask: &Ask, grant: &Grant, undo: Undo) -> Guard {
        let client = &self.client;
        tracing::debug!(lock = %ask.lock, token = %grant.tokens.first(), "granted");
        let ttl = match client.backend.capability().family {
            // A session's lease is told whole, and may be shorter or longer than was asked for. The
            // others tell what is left of what was asked for.
            Family::Queue => grant.lease.ttl,
            // One that shares a connection has no longer a lease than that was opened with.
            Family::Session => grant.lease.ttl.min(ask.ttl),
            _ => ask.ttl,
        };
        let guard = Guard::of_grant(client, ask.key(), grant, ttl, self.max_hold, self.renew);
        if let Some(why) = undo.disarm() {
            guard.lost_before(why);
        }
        guard
    }
}

/// Waits for an end, if there is one.
async fn passed(end: &mut Option<Pin<Box<impl Future<Output = ()>>>>) {
    match end {
        Some(end) => end.await,
        None => std::future::pending().await,
    }
}

fn unanswered(bound: Duration) -> Error {
    let message = format!("no answer from the store within {bound:?} and {LAST_WORD:?} more");
    Error::new(Kind::Unreachable, message).unknown().with_hint(
        "see whether the store runs and can be reached; the request is cancelled in the background",
    )
}

/// Records how long an acquire took, however it ended.
struct Timing<'a> {
    spec: &'a Spec,
    started: BootInstant,
    outcome: &'static str,
}

impl<'a> Timing<'a> {
    fn new(spec: &'a Spec) -> Self {
        Self { spec, started: spec.client.clock().now(), outcome: "dropped" }
    }
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let Spec { client, name: Ok(name), .. } = self.spec else { return };
        let waited = client.clock().now().since(self.started);
        client.observer.waited(&client.full(name.clone()), self.outcome, waited);
    }
}

impl IntoFuture for Lock {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
