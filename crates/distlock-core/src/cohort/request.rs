//! The one request of a cohort at the store. Its leader polls it, so that a lone acquire costs no
//! change of threads; once a second task waits for it, the library's thread does.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::client::{Client, Undo};
use crate::cohort::{Terms, Waiter};
use crate::guard::HoldRecord;
use crate::reaper::Pending;
use crate::{
    Ask, Attempt, Before, Error, Fut, Mode, Mutex, Owner, Patience, QueueStatus, Released, ReqId,
};

pub(super) type Answer = Result<Attempt, Error>;

pub(super) struct Request {
    /// Its number in the state machine.
    pub(super) turn: u64,
    /// How many requests before it were granted too late to be used.
    pub(super) tries: u32,
    pub(super) ask: Arc<Ask>,
    slot: Mutex<Slot>,
    undo: Mutex<Option<Undo>>,
    /// Kept for a leader whose patience is limited.
    status: Option<Status>,
}

/// Where a request stands at the store, and whom to tell when that is heard first.
#[derive(Clone)]
struct Status {
    last: Arc<Mutex<Option<QueueStatus>>>,
    leader: Waiter,
}

struct Slot {
    call: Call,
    /// The library's thread polls it.
    library: bool,
    /// That of the library's thread.
    waker: Option<Waker>,
    cancelled: bool,
}

enum Call {
    Open(Fut<'static, Answer>),
    /// Somebody polls it just now, with no lock held: a store may start tasks in there.
    Polled,
    Ended,
}

impl Request {
    /// A request for a lock on these terms; with `before`, once that lease has been given back.
    pub(super) fn new(
        client: &Arc<Client>,
        terms: &Terms,
        turn: u64,
        tries: u32,
        block: NonZeroU32,
        timed: Option<Waiter>,
        before: Option<Releasing>,
    ) -> Arc<Self> {
        let req = ReqId::random();
        let ask = Arc::new(Ask {
            lock: terms.lock.clone(),
            req,
            owner: Owner::of(&req),
            mode: Mode::Exclusive,
            ttl: terms.ttl,
            patience: Patience::Forever,
            min_hold: Duration::ZERO,
            lock_delay: terms.lock_delay,
            label: terms.label.clone(),
            block,
        });
        let undo = Mutex::new(Some(Undo::new(client.clone(), ask.clone())));
        let status = timed.map(|leader| Status { last: Arc::default(), leader });
        let call = Self::call(client.clone(), ask.clone(), status.clone(), before);
        let slot = Slot { call: Call::Open(call), library: false, waker: None, cancelled: false };
        Arc::new(Self { turn, tries, ask, slot: Mutex::new(slot), undo, status })
    }

    fn call(
        client: Arc<Client>,
        ask: Arc<Ask>,
        status: Option<Status>,
        before: Option<Releasing>,
    ) -> Fut<'static, Answer> {
        if before.is_none() && status.is_none() {
            let backend = client.backend.clone();
            return Box::pin(async move { backend.acquire(ask, None).await });
        }
        Box::pin(async move {
            match (before, status) {
                (Some(before), _) => {
                    client.backend.acquire_after(before.with_a_request(), ask).await
                }
                (None, Some(Status { last, leader })) => {
                    let seen = move |now: &QueueStatus| {
                        if last.lock().replace(now.clone()).is_none() {
                            leader.wake();
                        }
                    };
                    client.backend.acquire(ask, Some(&seen)).await
                }
                (None, None) => client.backend.acquire(ask, None).await,
            }
        })
    }

    /// Polls it; `None` when it has ended otherwise.
    pub(super) fn poll(&self, cx: &mut Context<'_>, library: bool) -> Poll<Option<Answer>> {
        let mut slot = self.slot.lock();
        if library {
            slot.waker = Some(cx.waker().clone());
        } else if slot.library {
            return Poll::Pending;
        }
        let mut call = match std::mem::replace(&mut slot.call, Call::Polled) {
            Call::Open(call) => call,
            Call::Polled => return Poll::Pending,
            Call::Ended => {
                slot.call = Call::Ended;
                return Poll::Ready(None);
            }
        };
        drop(slot);
        let panics = Panics(self);
        let polled = call.as_mut().poll(cx);
        std::mem::forget(panics);
        let mut slot = self.slot.lock();
        let (cancelled, other) = (slot.cancelled, slot.library && !library);
        let waker = if other { slot.waker.take() } else { None };
        let open = !cancelled && polled.is_pending();
        // A call that has ended is dropped below, with no lock held.
        let mut call = Some(call);
        slot.call = call.take_if(|_| open).map_or(Call::Ended, Call::Open);
        drop(slot);
        drop(call);
        if let Some(waker) = waker {
            waker.wake();
        }
        match polled {
            _ if cancelled => Poll::Ready(None),
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// From now on the library's thread polls it; false when it does already, or it has ended.
    pub(super) fn to_library(&self) -> bool {
        let mut slot = self.slot.lock();
        !matches!(slot.call, Call::Ended) && !std::mem::replace(&mut slot.library, true)
    }

    /// Ends it, and leaves it to the returned value to take it back at the store.
    pub(super) fn cancel(&self) -> Option<Undo> {
        let mut slot = self.slot.lock();
        slot.cancelled = true;
        let call = match slot.call {
            Call::Open(_) => Some(std::mem::replace(&mut slot.call, Call::Ended)),
            Call::Polled | Call::Ended => None,
        };
        let waker = slot.waker.take();
        drop(slot);
        drop(call);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.undo()
    }

    /// What takes it back at the store, until somebody has it.
    pub(super) fn undo(&self) -> Option<Undo> {
        self.undo.lock().take()
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.slot.lock().call, Call::Ended)
    }

    /// Where it stood when last heard, if the leader's patience is limited.
    pub(super) fn status(&self) -> Option<QueueStatus> {
        self.status.as_ref().and_then(|status| status.last.lock().clone())
    }
}

/// A store panicked while it was polled: the request has ended.
struct Panics<'a>(&'a Request);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        self.0.slot.lock().call = Call::Ended;
    }
}

/// A lease that is given back, whatever becomes of this: the reaper repeats what is not
/// acknowledged.
pub(crate) struct Releasing {
    client: Arc<Client>,
    hold: Arc<HoldRecord>,
    acknowledged: bool,
    _pending: Pending,
}

impl Releasing {
    pub(super) fn new(client: &Arc<Client>, hold: Arc<HoldRecord>) -> Self {
        let _pending = client.reaper.under_way();
        Self { client: client.clone(), hold, acknowledged: false, _pending }
    }

    /// Sends the release. Ends when it is answered, and no later than the lease itself.
    pub(crate) async fn send(mut self) {
        let clock = self.client.clock();
        let release = self.client.backend.release(&self.hold.key);
        if let Some(Ok(_)) = clock.timeout(self.left(), release).await {
            self.acknowledge();
        }
    }

    /// Along with the next request for the lock.
    fn with_a_request(mut self) -> Before {
        let (key, within) = (self.hold.key.clone(), self.left());
        let told = Box::new(move |released: Result<Released, Error>| {
            if released.is_ok() {
                self.acknowledge();
            }
            // The client may have been closed meanwhile, and has taken all requests back.
            match self.client.closing.is_cancelled() {
                true => Err(self.client.closed()),
                false => Ok(()),
            }
        });
        Before { key, within, told }
    }

    fn left(&self) -> Duration {
        self.hold.left(self.client.clock().reading())
    }

    fn acknowledge(&mut self) {
        self.client.reaper.acknowledged();
        self.acknowledged = true;
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if !self.acknowledged {
            self.client.reaper.release(self.hold.key.clone(), self.hold.ttl);
        }
    }
}
