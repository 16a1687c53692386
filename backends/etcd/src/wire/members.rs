//! The members of a cluster, and which one is asked.
//!
//! A connection can fall silent without an end: a member that hangs, a firewall that forgot it. Two
//! things notice. While a stream is open, HTTP/2 pings go over a connection on which nothing else is
//! heard. And a call that waits for its answer, or was given up, has the member asked for a sign of
//! life on the library's own thread: so it is noticed by callers with little patience, too, and a
//! slow member is told from a silent one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Mutex, engine};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::grpc::{Encoded, unary};
use super::proto::StatusRequest;
use crate::session::random;

/// An answer that takes longer has the member asked for a sign of life.
pub(crate) const SUSPECT: Duration = Duration::from_millis(250);
/// A sign of life comes within this where there is another member. With [`SUSPECT`] it leaves a caller
/// with a second of patience time for that one.
const SIGN: Duration = Duration::from_millis(400);
/// The same limit with a single member, where failing over only means reconnecting.
const LAST_SIGN: Duration = Duration::from_secs(4);
/// A call that was given up sooner than this says nothing about the member.
const HASTE: Duration = Duration::from_millis(50);
/// Between two pings while nothing is heard. A member takes more than one in five seconds for an
/// attack (`--grpc-keepalive-min-time`), and any without an open stream, so none goes then.
const PING: Duration = Duration::from_secs(6);
/// A ping is answered within this.
const PONG: Duration = Duration::from_secs(2);

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
    life: Life,
}

/// When something was heard over a channel last; zero before anything was. A channel that never
/// answered may still be connecting, over a long way: that is no silence.
type Life = Arc<AtomicU64>;

impl Pick {
    /// Something was heard.
    pub(crate) fn heard(&self, now: BootInstant) {
        self.life.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }
}

/// The members. All calls and streams of a client go to one of them, until it fails.
pub(crate) struct Members {
    endpoints: Vec<Endpoint>,
    state: Mutex<State>,
    clock: Clock,
    /// Tells streams that they should move.
    number: watch::Sender<u64>,
}

struct State {
    at: usize,
    number: u64,
    channels: Vec<(Channel, Life)>,
    /// The pick that is being asked for a sign of life.
    suspected: Option<u64>,
}

impl Members {
    /// Clients begin at different members, or the first of the URL would serve them all.
    pub(crate) fn new(endpoints: Vec<Endpoint>, connect: Duration, clock: Clock) -> Arc<Self> {
        let prepared = |e: Endpoint| {
            e.executor(OnLibrary)
                .connect_timeout(connect)
                .http2_keep_alive_interval(PING)
                .keep_alive_timeout(PONG)
                .keep_alive_while_idle(false)
        };
        let endpoints: Vec<_> = endpoints.into_iter().map(prepared).collect();
        let channels = endpoints.iter().map(channel).collect();
        let at = usize::try_from(random()).unwrap_or(0) % endpoints.len().max(1);
        let state = Mutex::new(State { at, number: 0, channels, suspected: None });
        Arc::new(Self { endpoints, state, clock, number: watch::Sender::new(0) })
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn pick(&self) -> Pick {
        let state = self.state.lock();
        let (channel, life) = state.channels[state.at].clone();
        Pick { number: state.number, channel, life }
    }

    /// What was picked failed: the next member is asked from now on. Of many reports of the same
    /// pick the first counts. A silent connection is given up, or it would swallow the next call.
    pub(crate) fn failed(&self, pick: &Pick, silent: bool) {
        let mut state = self.state.lock();
        if state.number != pick.number {
            return;
        }
        let at = state.at;
        if silent {
            state.channels[at] = channel(&self.endpoints[at]);
        }
        state.at = (at + 1) % self.endpoints.len();
        state.number += 1;
        self.number.send_replace(state.number);
    }

    /// Hears when another member is asked.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }

    /// Completes when another member than this is asked.
    pub(crate) async fn moved(&self, pick: &Pick) {
        let _ = self.moves().wait_for(|n| *n != pick.number).await;
    }

    /// A member owes an answer: it is asked for a sign of life, unless it is already. One that
    /// gives none is left for the next.
    pub(crate) fn suspect(self: &Arc<Self>, pick: &Pick) {
        let mut state = self.state.lock();
        let news = state.number == pick.number && state.suspected != Some(pick.number);
        if !news || pick.life.load(Ordering::Acquire) == 0 {
            return;
        }
        state.suspected = Some(pick.number);
        drop(state);
        let (members, pick) = (self.clone(), pick.clone());
        engine::spawn(async move {
            let asked = members.clock.now();
            let patience = if members.len() > 1 { SIGN } else { LAST_SIGN };
            let sign = members.clock.timeout(patience, sign_of_life(&pick)).await;
            // An answer to anybody is as good.
            let heard = pick.life.load(Ordering::Acquire) >= asked.as_nanos();
            match sign {
                _ if heard => {}
                Some(Ok(())) => pick.heard(members.clock.now()),
                Some(Err(())) => members.failed(&pick, false),
                None => members.failed(&pick, true),
            }
            let mut state = members.state.lock();
            if state.suspected == Some(pick.number) {
                state.suspected = None;
            }
        });
    }

    /// A call is under way to a member.
    pub(crate) fn asked<'a>(self: &'a Arc<Self>, pick: &'a Pick) -> Asked<'a> {
        Asked { members: self, pick, since: self.clock.now(), open: true }
    }
}

fn channel(endpoint: &Endpoint) -> (Channel, Life) {
    (endpoint.connect_lazy(), Life::default())
}

/// Whether a member says anything at all, be it a refusal. It answers this one by itself, without
/// its disk and without the others.
async fn sign_of_life(pick: &Pick) -> Result<(), ()> {
    let said = unary(pick, Request::new(Encoded::of(&StatusRequest {}))).await;
    let ours = |e: &Status| std::error::Error::source(e).is_some();
    if said.is_err_and(|e| ours(&e)) { Err(()) } else { Ok(()) }
}

/// A call under way. Given up by its caller without an answer, it has the member
/// asked for a sign of life.
pub(crate) struct Asked<'a> {
    members: &'a Arc<Members>,
    pick: &'a Pick,
    since: BootInstant,
    open: bool,
}

impl Asked<'_> {
    /// The member said something, or it is known why not.
    pub(crate) fn answered(mut self, by_it: bool) {
        self.open = false;
        if by_it {
            self.pick.heard(self.members.clock.now());
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.open && self.members.clock.now().since(self.since) >= HASTE {
            self.members.suspect(self.pick);
        }
    }
}
