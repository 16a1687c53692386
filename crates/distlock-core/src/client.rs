//! What all clones of one [`Locks`](crate::Locks), its locks and its guards share.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cohort::Cohorts;
use crate::observe::Observer;
use crate::reaper::Reaper;
use crate::renewal::Renewer;
use crate::simulation::HashMap;
use crate::{
    Ask, Backend, Clock, Error, FullName, Kind, Label, LossReason, Mutex, Name, Namespace, ReqId,
    Ttl,
};

/// Closing gives up when the store has acknowledged nothing for this long.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a store may take to end its connections and threads.
const ENDING: Duration = Duration::from_secs(1);

pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) observer: Observer,
    pub(crate) space: Namespace,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    pub(crate) closing: CancellationToken,
    pub(crate) asking: Arc<Asking>,
    pub(crate) cohorts: Cohorts,
}

impl Client {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        space: Namespace,
        ttl: Ttl,
        label: Label,
        by_lock: bool,
        strict: bool,
    ) -> Self {
        let observer = Observer::new(backend.capability().store, by_lock);
        let reaper = Reaper::new(backend.clone());
        let asking = Arc::<Asking>::default();
        let renewer =
            Renewer::new(backend.clone(), reaper.clone(), asking.clone(), observer.clone());
        let closing = CancellationToken::new();
        let cohorts = Cohorts::new(backend.capability().handover && !strict);
        Self { backend, renewer, reaper, observer, space, ttl, label, closing, asking, cohorts }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    pub(crate) fn full(&self, name: Name) -> FullName {
        FullName { space: self.space.clone(), name }
    }

    /// Whether new locks can be asked for.
    ///
    /// # Errors
    /// [`Kind::Closed`] after a close, and in a forked copy of the process that made this client:
    /// it has the memory of the connections, threads and holds, but they are the parent's.
    pub(crate) fn open(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() {
            return Err(self.closed());
        }
        if self.reaper.forked() {
            return Err(Error::new(Kind::Closed, "this client is of the process before the fork")
                .store(self.backend.site())
                .with_hint("connect again in the child"));
        }
        Ok(())
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(Kind::Closed, "this client was closed")
            .store(self.backend.site())
            .with_hint("connect again")
    }

    /// Gives everything back: what is held, what is asked for, what was dropped. Says how much the
    /// store has not acknowledged.
    pub(crate) async fn close(&self) -> usize {
        self.closing.cancel();
        if self.reaper.forked() {
            return 0;
        }
        // Before the holds are counted: none is handed over after this.
        self.cohorts.close();
        for ask in self.asking.take_all() {
            self.reaper.abandon(ask.key(), ask.ttl);
        }
        for hold in self.renewer.all() {
            self.renewer.remove(&hold);
            hold.latch(LossReason::Closed);
            self.reaper.release(hold.key.clone(), hold.ttl);
        }
        let left = self.reaper.drained(SILENCE).await;
        self.reaper.stop();
        if left > 0 {
            let store = self.backend.site();
            tracing::warn!(store, left, "closed, but the store has not acknowledged everything");
        }
        self.clock().timeout(ENDING, self.backend.close()).await;
        left
    }
}

/// Undoes an acquire unless told that all is well. Made before the request is sent.
///
/// Its drop takes effect in the background: the request is cancelled at the store, again and again
/// until that is acknowledged.
pub(crate) struct Undo {
    client: Arc<Client>,
    /// Until it is disarmed.
    ask: Option<Arc<Ask>>,
}

impl Undo {
    pub(crate) fn new(client: Arc<Client>, ask: Arc<Ask>) -> Self {
        client.asking.begin(ask.clone());
        Self { client, ask: Some(ask) }
    }

    /// Takes the request back and waits until the store has acknowledged it. Without an answer the
    /// background sees to it.
    pub(crate) async fn now(self) {
        let Some(key) = self.ask.as_ref().map(|ask| ask.key()) else { return };
        if self.client.backend.abandon(&key).await.is_ok() {
            let _ = self.disarm();
        }
    }

    /// All is well, except when the request was lost meanwhile: then says why.
    pub(crate) fn disarm(mut self) -> Option<LossReason> {
        self.ask.take().and_then(|ask| self.client.asking.end(&ask.req))?.lost
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Not there: all was well, or closing has taken it back already.
        let asked = self.ask.take().and_then(|ask| self.client.asking.end(&ask.req));
        if let Some(asked) = asked {
            let ask = asked.ask;
            tracing::debug!(lock = %ask.lock, req = %ask.req, "acquire undone");
            self.client.reaper.abandon(ask.key(), ask.ttl);
        }
    }
}

/// The requests of one client that may be granted any moment, so that closing can take them back and
/// a loss that comes before the guard is not forgotten.
#[derive(Default)]
pub(crate) struct Asking(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    asks: HashMap<ReqId, Asked>,
    /// Holds that are being taken up by their tickets. Few at a time.
    resumes: Vec<(ReqId, Option<LossReason>)>,
}

/// An acquire under way.
pub(crate) struct Asked {
    pub(crate) ask: Arc<Ask>,
    /// The store said that it was lost before there was a guard to tell.
    pub(crate) lost: Option<LossReason>,
}

impl Asking {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock()
    }

    pub(crate) fn begin(&self, ask: Arc<Ask>) {
        self.requests().asks.insert(ask.req, Asked { ask, lost: None });
    }

    /// Ends an acquire; `None` when closing has taken it back already.
    pub(crate) fn end(&self, req: &ReqId) -> Option<Asked> {
        self.requests().asks.remove(req)
    }

    /// Takes back all acquires under way.
    pub(crate) fn take_all(&self) -> Vec<Arc<Ask>> {
        self.requests().asks.drain().map(|(_, asked)| asked.ask).collect()
    }

    /// A hold is being taken up, until the returned value is dropped or ended.
    pub(crate) fn resume(&self, req: ReqId) -> Resuming<'_> {
        self.requests().resumes.push((req, None));
        Resuming(self, req)
    }

    /// A request was lost. If a guard is about to be made of it, the guard learns it then.
    pub(crate) fn lost(&self, req: &ReqId, why: LossReason) {
        let mut requests = self.requests();
        if let Some(asked) = requests.asks.get_mut(req) {
            asked.lost.get_or_insert(why);
        }
        for (resumed, lost) in &mut requests.resumes {
            if resumed == req {
                lost.get_or_insert(why);
            }
        }
    }
}

/// A hold that is being taken up by its ticket.
pub(crate) struct Resuming<'a>(&'a Asking, ReqId);

impl Resuming<'_> {
    /// Whether it was lost meanwhile. Asked once its guard is looked after.
    pub(crate) fn lost(&self) -> Option<LossReason> {
        let requests = self.0.requests();
        requests.resumes.iter().filter(|(req, _)| *req == self.1).find_map(|(_, lost)| *lost)
    }
}

impl Drop for Resuming<'_> {
    fn drop(&mut self) {
        let mut requests = self.0.requests();
        if let Some(i) = requests.resumes.iter().position(|(req, _)| *req == self.1) {
            requests.resumes.swap_remove(i);
        }
    }
}

/// Counts a waiter while it lives.
pub(crate) struct Waits(Observer);

impl Waits {
    pub(crate) fn new(observer: Observer) -> Self {
        observer.waits(1.0);
        Self(observer)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waits(-1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::lock::Lock;
    use crate::memory::Memory;
    use crate::store::Store;

    fn client(backend: &Arc<dyn Backend>) -> Client {
        Client::new(
            backend.clone(),
            Namespace::default(),
            Ttl::DEFAULT,
            Label::new("x"),
            false,
            false,
        )
    }

    #[tokio::test]
    async fn a_forked_copy_gives_nothing_back_and_asks_for_nothing() {
        let memory = Memory::new();
        let backend = memory.clone().into_backend();
        let parent = Arc::new(client(&backend));
        let guard = Lock::new(parent, Name::new("a")).try_acquire().await.unwrap().unwrap();
        let mut copy = client(&backend);
        copy.reaper = Reaper::of_process(backend.clone(), 1);
        let copy = Arc::new(copy);
        drop(Guard::new(copy.clone(), guard.held().0));
        let ask = Lock::new(copy.clone(), Name::new("b")).try_acquire().await;
        assert_eq!(ask.unwrap_err().kind(), Kind::Closed);
        copy.close().await;
        copy.reaper.drained(Duration::MAX).await;
        guard.check().unwrap();
        assert_eq!(memory.peek(guard.lock()).unwrap().holds.len(), 1, "released by the copy");
        // Neither did it close what the parent still uses.
        assert!(Lock::new(copy, Name::new("a")).try_acquire().await.is_err());
    }
}
