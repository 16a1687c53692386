//! Batching: acquires and releases of many tasks in one script call.
//!
//! 1. While few calls and no batch are under way, a move is sent by itself, from its own task: a lone
//!    caller never waits.
//! 2. Otherwise it is queued. Two batches are under way at a time; what is queued meanwhile goes with
//!    the next one.
//! 3. A batch runs the fast path of each of its moves: one entry into the server, one reading of its
//!    clock. A move for which that is not enough is not applied, and its task sends it by itself.
//! 4. Batches are sent and answered on the library's thread, so that a task which is not polled holds
//!    up nobody.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use distlock_core::{Ask, Clock, Mutex, ReqId, engine};
use redis::Value;
use tokio::sync::oneshot;

use crate::checked_connection::CheckedConnection;
use crate::connection::Fault;
use crate::keys::Keys;
use crate::script_calls;

/// Max calls under way that are sent by their own tasks.
const ALONE: usize = 4;
/// Max batches under way: one at the server, one on its way. More make each smaller, and every call
/// has its price at both ends.
const FLIGHTS: usize = 2;
/// Max moves in a batch.
const BATCH: usize = 64;

/// What became of a move that was queued.
pub(crate) enum Combined {
    /// Applied; an acquire has this token.
    Done(u64),
    /// Not applied: to be sent by itself.
    Alone,
    /// It is unknown whether it was applied.
    Failed(Arc<Fault>),
}

/// One move of a batch.
pub(crate) enum Item {
    /// An acquire for a single token.
    Acquire(Arc<Ask>),
    /// A release.
    Release(ReqId),
}

struct Queued {
    keys: Keys,
    item: Item,
    answer: oneshot::Sender<Combined>,
}

/// The moves of one kind that go over one connection.
#[derive(Default)]
pub(crate) struct Batcher(Mutex<State>);

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    flights: usize,
    alone: usize,
}

/// Leave to send a move by itself, for as long as it lives.
pub(crate) struct Alone<'a>(&'a Batcher);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.0.lock().alone -= 1;
    }
}

/// Which moves: those that need memory at the server are refused when it has none, the others not.
#[derive(Clone, Copy)]
enum Which {
    Acquires,
    Releases,
}

/// Ends a flight, whatever became of it.
struct Landing(Arc<CheckedConnection>, Which, Clock);

impl Drop for Landing {
    fn drop(&mut self) {
        let Self(link, which, clock) = self;
        batcher(link, *which).0.lock().flights -= 1;
        pump(link, *which, clock);
    }
}

impl Batcher {
    /// Leave to send a move by itself, if few calls and no batch are under way: single calls beside
    /// batches would only make those smaller.
    pub(crate) fn alone(&self) -> Option<Alone<'_>> {
        let mut state = self.0.lock();
        if state.alone >= ALONE || state.flights > 0 || !state.queue.is_empty() {
            return None;
        }
        state.alone += 1;
        Some(Alone(self))
    }
}

fn batcher(link: &CheckedConnection, which: Which) -> &Batcher {
    match which {
        Which::Acquires => &link.acquires,
        Which::Releases => &link.releases,
    }
}

/// Has a move sent with others.
///
/// # Cancel safety
/// Dropped while it is queued, the move is not sent; dropped later, it may be applied.
pub(crate) async fn combine(
    link: &Arc<CheckedConnection>,
    clock: &Clock,
    keys: Keys,
    item: Item,
) -> Combined {
    let which = match item {
        Item::Acquire(_) => Which::Acquires,
        Item::Release(_) => Which::Releases,
    };
    let (answer, answered) = oneshot::channel();
    batcher(link, which).0.lock().queue.push_back(Queued { keys, item, answer });
    pump(link, which, clock);
    let silent = || Combined::Failed(Arc::new(Fault::Silent(link.wire.timeout())));
    answered.await.unwrap_or_else(|_| silent())
}

/// Sends batches while there is something to send and few are under way.
fn pump(link: &Arc<CheckedConnection>, which: Which, clock: &Clock) {
    loop {
        let mut state = batcher(link, which).0.lock();
        if state.flights >= FLIGHTS {
            return;
        }
        let batch = next_batch(&mut state.queue);
        if batch.is_empty() {
            return;
        }
        state.flights += 1;
        drop(state);
        let landing = Landing(link.clone(), which, clock.clone());
        engine::spawn(async move {
            fly(&landing, batch).await;
        });
    }
}

/// The next moves to go together, one for each lock: what a batch reads of a lock is read once.
fn next_batch(queue: &mut VecDeque<Queued>) -> Vec<Queued> {
    let (mut batch, mut later, mut locks) = (Vec::new(), Vec::new(), HashSet::new());
    while batch.len() < BATCH
        && let Some(queued) = queue.pop_front()
    {
        // Its caller is gone.
        if queued.answer.is_closed() {
            continue;
        }
        if locks.insert(queued.keys.clone()) {
            batch.push(queued);
        } else {
            later.push(queued);
        }
    }
    later.into_iter().rev().for_each(|queued| queue.push_front(queued));
    batch
}

async fn fly(Landing(link, which, clock): &Landing, batch: Vec<Queued>) {
    let call = match which {
        Which::Acquires => {
            let asks = batch.iter().filter_map(|q| match &q.item {
                Item::Acquire(ask) => Some((&q.keys, &**ask)),
                Item::Release(_) => None,
            });
            script_calls::acquire_many(asks, &link.via, &link.agreed)
        }
        Which::Releases => {
            let reqs = batch.iter().filter_map(|q| match &q.item {
                Item::Release(req) => Some((&q.keys, req)),
                Item::Acquire(_) => None,
            });
            script_calls::release_many(reqs)
        }
    };
    let grants = matches!(which, Which::Acquires);
    // A move that is sent alone finds another connection, or the reason why nothing is granted.
    if link.wire.is_over() || (grants && link.quarantined(clock).is_some()) {
        return batch.into_iter().for_each(|q| drop(q.answer.send(Combined::Alone)));
    }
    let answers = match link.wire.run(&call, false).await {
        Ok(Value::Array(answers)) if answers.len() == batch.len() => answers,
        // Refused, or not all applied. Each is sent again, which changes nothing where it was.
        Ok(_) => Vec::new(),
        Err(fault) if !fault.code().is_empty() => Vec::new(),
        Err(fault) => {
            let fault = Arc::new(fault);
            let failed = |q: Queued| drop(q.answer.send(Combined::Failed(fault.clone())));
            return batch.into_iter().for_each(failed);
        }
    };
    let mut answers = answers.into_iter();
    for queued in batch {
        let combined = match answers.next() {
            Some(Value::Int(n @ 1..)) => Combined::Done(n.unsigned_abs()),
            _ => Combined::Alone,
        };
        let _ = queued.answer.send(combined);
    }
}
