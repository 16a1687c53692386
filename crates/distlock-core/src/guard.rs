//! What a holder holds.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Grant, Key, Released};
use crate::client::Client;
use crate::error::{Error, Outcome};
use crate::hold::{Held, Hold};
use crate::loss::LossReason;
use crate::proof::Proof;
use crate::ticket::{Ticket, fingerprint};

/// How often a release that got no answer is tried again before the reaper takes over.
const TRIES: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(50);

/// A held lock. It is renewed in the background until it is released, dropped or lost.
///
/// Dropping it releases in the background, without blocking, also outside a runtime and while one
/// shuts down: the release is sent from the library's own thread. Use [`Guard::release`] to know
/// how it went.
///
/// A guard that is leaked (`mem::forget`) is renewed for ever; `max_hold` bounds that.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    client: Arc<Client>,
    held: Held,
    done: bool,
    /// A release was begun: the store may have done it, whatever it answered.
    giving: bool,
    /// A request to release has left, in this call or an earlier one.
    asked: bool,
}

impl Guard {
    pub(crate) fn new(client: Arc<Client>, hold: Arc<Hold>) -> Self {
        client.observer.holds(1.0);
        Self { client, held: Held(hold), done: false, giving: false, asked: false }
    }

    /// From a grant to the guard that has it, looked after from now on. No await in here: between
    /// the two nothing can be dropped. A loss that came before this is not known to it: ask for it
    /// afterwards, and say so by [`Guard::lost_before`].
    pub(crate) fn of_grant(
        client: &Arc<Client>,
        key: Key,
        grant: &Grant,
        ttl: Duration,
        max_hold: Option<Duration>,
        renew: bool,
    ) -> Self {
        let (clock, observer) = (client.clock().clone(), client.observer.clone());
        let hold = Arc::new(Hold::new(key, grant, ttl, max_hold, clock, observer));
        client.keeper.add(hold.clone(), grant.sent.boot, renew);
        Self::new(client.clone(), hold)
    }

    /// The hold was lost before there was a guard to tell.
    pub(crate) fn lost_before(&self, why: LossReason) {
        self.client.keeper.lost(self.hold(), why);
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.held.0
    }

    /// A view of this hold to pass around: token, check and loss, but not the lock itself.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Gives the lock back and says whether it was held up to this moment.
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown, and the release is repeated
    /// in the background until it is acknowledged or the lease has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background; nothing stays locked.
    pub async fn release(mut self) -> Result<Released, Error> {
        // Boxed for the sake of those who wait: a task's size is that of its largest await.
        Box::pin(self.give_back()).await
    }

    /// Like [`Guard::release`], but leaves the guard to the caller, who may try again after an
    /// error. From the first call on the lock is not held any more for all one knows, and the
    /// guard says so. Once it has succeeded, further calls answer [`Released::WasLost`].
    ///
    /// # Errors
    /// When the store does not answer; the outcome is then unknown.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release begun: call it again, or drop the guard.
    pub async fn give_back(&mut self) -> Result<Released, Error> {
        if self.done {
            return Ok(Released::WasLost);
        }
        // Before it is off the keeper's list: whoever closes sees one of the two.
        let _under_way = self.client.reaper.under_way();
        let hold = self.hold().clone();
        self.client.keeper.remove(&hold);
        // The views end before the request leaves: the store may free it any moment from then on.
        if self.held.check().is_ok() && hold.end() {
            self.giving = true;
        }
        let valid = || hold.in_time();
        // A lost lock is answered at once; what may be left of it is cleared in the background.
        if !self.giving || !valid() {
            self.finish("lost");
            self.clear(&hold);
            return Ok(Released::WasLost);
        }
        let (mut tries, mut unknown) = (0, false);
        loop {
            let again = std::mem::replace(&mut self.asked, true);
            let answer = self.client.backend.release(&hold.key).await;
            tries += 1;
            if answer.is_ok() {
                self.client.reaper.acknowledged();
            }
            match answer {
                // Nobody but ourselves could have ended it before its deadline: an earlier try,
                // unanswered, did.
                Ok(Released::WasLost) if again && valid() => {
                    self.finish("released");
                    return Ok(Released::Released);
                }
                Ok(released) => {
                    self.finish(if released == Released::Released { "released" } else { "lost" });
                    return Ok(released);
                }
                Err(e) => {
                    // What one try left open, a later one that did not leave at all does not close.
                    unknown |= e.outcome() == Outcome::Unknown;
                    if tries >= TRIES || e.outcome() == Outcome::Applied || !valid() {
                        let e = if unknown { e.unknown() } else { e };
                        return Err(e.during("release").lock(&hold.key.lock));
                    }
                    self.client.clock().sleep(BETWEEN).await;
                }
            }
        }
    }

    /// Lets go of the guard but not of the lock: it stays held until its TTL ends, and whoever has
    /// the ticket can take it up with [`Locks::resume`](crate::Locks::resume). Nothing is renewed
    /// meanwhile, so ask for a TTL that is long enough.
    ///
    /// # Errors
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) where a lock cannot outlive its process;
    /// the guard is then dropped, which releases it. [`Kind::Usage`](crate::Kind::Usage) on Redlock
    /// while its owner has entered the lock again: who releases by the ticket would end that, too.
    pub fn detach(mut self) -> Result<Ticket, Error> {
        if !self.client.backend.capability().detach {
            return Err(Error::new(
                crate::Kind::Unsupported,
                "this store's locks end with their process and cannot be detached",
            )
            .store(self.client.backend.site())
            .with_hint("use a store whose capability says detach, such as sqlite"));
        }
        if !self.client.backend.detach(&self.hold().key) {
            return Err(Error::new(
                crate::Kind::Usage,
                "this owner has entered the lock again, and shares the hold",
            )
            .store(self.client.backend.site())
            .with_hint("release its other guards before this one is detached"));
        }
        let ticket = self.ticket();
        self.client.keeper.remove(self.hold());
        let _ = self.hold().end();
        self.finish("detached");
        Ok(ticket)
    }

    /// The ticket of this hold: what [`Guard::detach`] gives, without letting go.
    ///
    /// Resumed with the same client, the hold passes to the new guard, and this one says that it
    /// was released. Resumed elsewhere while this guard lives, both hold it, and a release by one
    /// is known to the other only at its next renewal: detach before you pass a ticket on.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        let hold = self.hold();
        Ticket {
            lock: hold.key.lock.clone(),
            req: hold.key.req,
            token: hold.token,
            ttl: hold.ttl,
            store: fingerprint(self.client.backend.site()),
        }
    }

    /// What to put into one's own transaction at the very store that keeps the lock, to have that
    /// store refuse it once the lock is gone: no clock and no fence of one's own needed. `None`
    /// where the store has no such thing, or the hold is known to be lost.
    #[must_use]
    pub fn proof(&self) -> Option<Proof> {
        self.held.check().ok()?;
        self.client.backend.proof(&self.hold().key)
    }

    /// Clears in the background what may be left at the store, unless it is another guard's or
    /// closing has done so. Ends the views first: the store may free the lock any moment from then
    /// on.
    fn clear(&self, hold: &Hold) {
        if hold.end()
            || self.giving
            || !matches!(hold.why(), Some(LossReason::Released | LossReason::Closed))
        {
            self.client.reaper.release(hold.key.clone(), hold.ttl);
        }
    }

    fn finish(&mut self, outcome: &'static str) {
        self.done = true;
        let hold = self.hold();
        tracing::debug!(lock = %hold.key.lock, token = %hold.token, outcome, "ended");
        self.client.observer.held(&hold.key.lock, outcome, hold.age());
        self.client.observer.holds(-1.0);
    }
}

impl Deref for Guard {
    type Target = Held;
    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    /// Takes effect in the background: the library's thread sends the release and repeats it until
    /// it is acknowledged. In a forked copy of its process it has none: the lock is the parent's.
    fn drop(&mut self) {
        if !self.done && !self.client.reaper.forked() {
            let hold = self.hold().clone();
            self.client.keeper.remove(&hold);
            self.finish(match (self.giving, hold.is_lost()) {
                (true, _) => "unknown",
                (false, true) => "lost",
                (false, false) => "released",
            });
            self.clear(&hold);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.held, f)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::label::Label;
    use crate::lock::Lock;
    use crate::memory::Memory;
    use crate::name::{Name, Namespace};
    use crate::store::Store;
    use crate::ttl::Ttl;

    /// Looks, at the moment at which the views are told, whether a release has left or was done.
    struct Look(Arc<Client>, Memory, Held, Mutex<Option<(usize, usize)>>);

    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            let at_store = self.1.peek(self.2.lock()).map_or(0, |s| s.holds.len());
            self.3.lock().unwrap().get_or_insert((self.0.reaper.pending(), at_store));
        }
    }

    #[tokio::test]
    async fn views_of_a_dropped_guard_end_before_its_release_leaves() {
        let (space, label) = (Namespace::default(), Label::new("x"));
        let memory = Memory::new();
        let backend = memory.client().into_backend();
        let client = Arc::new(Client::new(backend, space, Ttl::DEFAULT, label, false));
        let guard = Lock::new(client.clone(), Name::new("a")).acquire().await.unwrap();
        let held = guard.held();
        let look = Arc::new(Look(client.clone(), memory, held.clone(), Mutex::new(None)));
        let waker = Waker::from(look.clone());
        let mut lost = pin!(held.lost());
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(guard);
        let seen = *look.3.lock().unwrap();
        assert_eq!(seen, Some((0, 1)), "released while a view still believed in it");
        client.reaper.drained(Duration::MAX).await;
        drop(Lock::new(client, Name::new("a")).try_acquire().await.unwrap().expect("it is free"));
    }
}
