//! `Memory` behind the simulated network: each call is one request.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use distlock_core::backend::{Event, Key, StoreInfo};
use distlock_core::info::{LockInfo, Query};
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Wake};
use distlock_core::memory::Memory;
use distlock_core::simulation::call;
use distlock_core::{Error, Force, Forced, FullName, Token};

/// One client of a [`Memory`] across the network.
#[derive(Clone)]
pub struct Wired(Arc<Inside>);

struct Inside {
    memory: Memory,
    site: String,
    /// As the network brings wake-ups.
    sink: Mutex<Option<EventSink>>,
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
        let site = memory.info().site.to_owned();
        Self(Arc::new(Inside { memory, site, sink: Mutex::default() }))
    }

    /// Tells the client something that may or may not be so.
    pub fn tell(&self, wake: Wake) {
        let sink = self.0.sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sink) = sink {
            sink(wake);
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
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: self.0.memory.info().capability,
            site: &self.0.site,
            clock: self.0.memory.info().clock,
        }
    }

    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let (what, n) = (moves.first().map_or("nothing", Move::verb), moves.len());
        let played = self.call(what, move |m| now(m.play(class, moves.clone()))).await;
        played.unwrap_or_else(|e| vec![Err(e); n])
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

    fn listen(&self, sink: EventSink) {
        let told = sink.clone();
        // Every other turn is confirmed by the library's thread.
        self.0.memory.listen(Arc::new(move |wake| {
            told(match wake {
                Wake::Turn(req) if req.as_bytes()[0].is_multiple_of(2) => Wake::Confirm(req),
                other => other,
            });
        }));
        *self.0.sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    async fn close(&self) {
        self.0.memory.close().await;
    }
}
