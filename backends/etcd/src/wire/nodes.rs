//! The members of a cluster, and which one is asked.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::engine;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

/// Runs connections on the library's own thread: they serve callers of any runtime and of none,
/// and outlive each.
#[derive(Clone, Copy)]
struct OnLibrary;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for OnLibrary {
    fn execute(&self, work: F) {
        engine::spawn(work);
    }
}

/// What calls go to at the moment. The number rises whenever that changes.
#[derive(Clone)]
pub(crate) struct Pick {
    pub(crate) number: u64,
    pub(crate) channel: Channel,
}

/// The members. All calls and streams of a client go to one of them, until it fails.
pub(crate) struct Nodes {
    endpoints: Vec<Endpoint>,
    state: Mutex<State>,
    /// Tells streams that they should move.
    number: watch::Sender<u64>,
}

struct State {
    at: usize,
    number: u64,
    channels: Vec<Channel>,
}

impl Nodes {
    pub(crate) fn new(endpoints: Vec<Endpoint>, connect: Duration) -> Self {
        let prepared = |e: Endpoint| e.executor(OnLibrary).connect_timeout(connect);
        let endpoints: Vec<_> = endpoints.into_iter().map(prepared).collect();
        let channels = endpoints.iter().map(Endpoint::connect_lazy).collect();
        let state = Mutex::new(State { at: 0, number: 0, channels });
        Self { endpoints, state, number: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn pick(&self) -> Pick {
        let state = self.state();
        Pick { number: state.number, channel: state.channels[state.at].clone() }
    }

    /// What was picked failed: the next member is asked from now on. Of many who say so of the same
    /// pick the first counts. A silent connection is given up, or it would swallow the next call.
    pub(crate) fn failed(&self, pick: &Pick, silent: bool) {
        let mut state = self.state();
        if state.number != pick.number {
            return;
        }
        let at = state.at;
        if silent {
            state.channels[at] = self.endpoints[at].connect_lazy();
        }
        state.at = (at + 1) % self.endpoints.len();
        state.number += 1;
        self.number.send_replace(state.number);
    }

    /// Hears when another member is asked.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }
}
