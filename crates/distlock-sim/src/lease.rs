//! `Memory` behind the simulated network: each call is one request.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_core::capability::Capability;
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal, Wake};
use distlock_core::memory::Memory;
use distlock_core::seam::{Ask, Due, Event, Key};
use distlock_core::simulation::call;
use distlock_core::state::Pulse;
use distlock_core::{Clock, Error, Force, Forced, FullName, Released, Token};

/// One client of a [`Memory`] across the network.
#[derive(Clone)]
pub struct Wired(Arc<Inside>);

struct Inside {
    memory: Memory,
    site: String,
    /// As the network brings wake-ups.
    ears: Mutex<Option<Ears>>,
}

/// Memory answers at once.
fn now<T>(call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a call of the memory store waited"),
    }
}

impl Wired {
    /// A client of this memory.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        let site = memory.site().to_owned();
        Self(Arc::new(Inside { memory, site, ears: Mutex::default() }))
    }

    /// Tells the client something that may or may not be so.
    pub fn tell(&self, wake: Wake) {
        let ears = self.0.ears.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(ears) = ears {
            ears(wake);
        }
    }

    /// Tells the client that a hold may be gone.
    pub fn doubt(&self, key: Key) {
        self.tell(Wake::Event(Event::InDoubt(key)));
    }

    async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Fn(&Memory) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let inside = self.0.clone();
        call(&self.0.site, what, move || work(&inside.memory)).await
    }
}

impl LeaseStore for Wired {
    fn capability(&self) -> &Capability {
        self.0.memory.capability()
    }

    fn site(&self) -> &str {
        &self.0.site
    }

    fn clock(&self) -> &Clock {
        self.0.memory.clock()
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        let ask = ask.clone();
        self.call("acquire", move |m| now(m.acquire(&ask, wait_lease))).await?
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        let waiting = waiting.to_vec();
        self.call("heartbeat", move |m| now(m.heartbeat(&waiting))).await?
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        let all = due.to_vec();
        match self.call("renew", move |m| now(m.renew(&all))).await {
            Ok(renewals) => renewals,
            Err(e) => due.iter().map(|_| Renewal::Unknown(e.clone())).collect(),
        }
    }

    async fn release(&self, key: &Key, requeue: Option<&Ask>) -> Result<Released, Error> {
        let (key, requeue) = (key.clone(), requeue.cloned());
        self.call("release", move |m| now(m.release(&key, requeue.as_ref()))).await?
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        let key = key.clone();
        self.call("cancel", move |m| now(m.cancel(&key))).await?
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let query = query.clone();
        self.call("inspect", move |m| now(m.inspect(&query))).await?
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let lock = lock.clone();
        self.call("force", move |m| now(m.force(&lock, token, how))).await?
    }

    fn listen(&self, ears: Ears) {
        self.0.memory.listen(ears.clone());
        *self.0.ears.lock().unwrap_or_else(PoisonError::into_inner) = Some(ears);
    }

    async fn close(&self) {
        self.0.memory.close().await;
    }
}
