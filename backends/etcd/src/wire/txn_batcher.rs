//! Writes of many tasks in one transaction.
//!
//! A write that finds few others under way goes at once, by itself. What comes while there are more
//! waits, and goes with all that wait: one round trip, and one entry in the cluster's log. Inside,
//! each keeps its comparisons, and is idempotent; asked again, all are.
//!
//! Large batches cost the server less than small ones: with another transaction under way, the writes
//! that wait are sent when they are half as many as are in it, and in any case when it ends. It has
//! ended when all tasks of it have read their answer: they come back with their next write about then,
//! and would otherwise be sent in batches as small as those in which they were answered.
//!
//! A write needs no turn of the link: the batcher itself keeps the number of transactions low.
//!
//! All comparisons of a transaction are made before its first write, and all that it puts is of one
//! revision. So no two writes about one lock ever go together.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use distlock_core::{FullName, Kind, Mutex, Outcome, engine};
use tokio::sync::oneshot;

use super::link::{Answer, Link};
use super::merge_hint::MergeHint;
use super::proto::{TxnRequest, TxnResponse};
use super::txn_batch::TxnBatch;
use crate::errors::Fault;

/// Max transactions under way. With one alone, a task beside another would wait for
/// it each time, and the server would rest while we read its answers.
const FLIGHTS: usize = 2;
/// Max writes per batched txn: etcd accepts 128 comparisons or operations beside each other, with
/// those inside on top. A join has two, and some inside if it goes as it is.
const MOST: usize = 60;
/// Max comparisons or operations in them, whichever are more: a shared join has four.
const OPS: usize = 120;
/// A task that was answered and does not run delays the next batch for at most this long.
const MAX_UNREAD: Duration = Duration::from_millis(1);

type Sent = Result<Answer<TxnResponse>, Fault>;
/// Dropped by every task once it has read its answer.
type Heard = Arc<oneshot::Sender<()>>;
type Told = (Sent, Option<Heard>);

/// The writes of a client.
pub(crate) struct TxnBatcher {
    link: Arc<Link>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many transactions are under way, and how many writes in them.
    flying: usize,
    aloft: usize,
    waiting: VecDeque<Waiting>,
    /// How many ever waited.
    numbers: u64,
    hint: MergeHint,
}

struct Waiting {
    number: u64,
    lock: FullName,
    write: TxnRequest,
    answer: oneshot::Sender<Told>,
}

impl TxnBatcher {
    pub(crate) fn new(link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { link, state: Mutex::default() })
    }

    /// A write about a lock. Dropped before it was sent, it never is.
    pub(crate) async fn write(self: &Arc<Self>, lock: &FullName, write: TxnRequest) -> Sent {
        // What is dropped and given back, on the library's own thread, is not batched.
        if engine::on_library_thread() {
            return self.link.txn_in_turn(&write).await;
        }
        let (number, answer) = match self.alone_or_queued(lock, write) {
            Ok(write) => {
                let _flight = Flight(self);
                return self.link.txn_in_turn(&write).await;
            }
            Err(waits) => waits,
        };
        // A write that waits to be sent has no more time than one that was: an answer may come later.
        match self.link.clock.timeout(self.link.timeout, answer).await {
            Some(Ok((sent, _heard))) => sent,
            // Taken out of the queue in time, it is never sent.
            None if self.state.lock().give_up(number) => Err(self.link.unsent()),
            _ => Err(Fault::Other(self.link.late())),
        }
    }

    /// A write that goes at once, or where the answer comes to one that waits.
    fn alone_or_queued(
        self: &Arc<Self>,
        lock: &FullName,
        write: TxnRequest,
    ) -> Result<TxnRequest, (u64, oneshot::Receiver<Told>)> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() && state.has_room(1) {
            state.leaves(1);
            return Ok(write);
        }
        let waits = state.wait(lock, write);
        self.go(state);
        Err(waits)
    }

    /// Sends what waits, if it may go.
    fn go(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let some = state.next();
        drop(state);
        if !some.is_empty() {
            let all = self.clone();
            engine::spawn(async move { all.serve(some).await });
        }
    }

    /// Sends some, and whatever may go when they have their answers.
    async fn serve(self: Arc<Self>, mut some: Vec<Waiting>) {
        while !some.is_empty() {
            let writes = some.len();
            if let Some(heard) = self.send(some).await {
                let _ = self.link.clock.timeout(MAX_UNREAD, heard).await;
            }
            some = {
                let mut state = self.state.lock();
                state.lands(writes);
                state.next()
            };
        }
    }

    /// Sends some and tells them; what ends when they have heard.
    async fn send(&self, mut some: Vec<Waiting>) -> Option<oneshot::Receiver<()>> {
        // An attempt before the last may have taken effect.
        let (mut doubt, mut open) = (false, true);
        loop {
            // A write whose caller has gone is not sent.
            some.retain(|w| !w.answer.is_closed());
            if some.len() < 2 {
                break;
            }
            let batch = self.state.lock().pack(&mut some, open);
            match self.link.txn_in_turn(&batch.txn).await {
                Ok(answer) if answer.said.succeeded || !open => {
                    doubt |= answer.doubt;
                    return Some(self.tell(some, &batch, answer.said, doubt));
                }
                // One that went open did not pass, so nothing was done: all again, each as it is.
                Ok(answer) => {
                    (doubt, open) = (doubt || answer.doubt, false);
                    self.state.lock().hint.kept_back();
                    some.iter_mut().zip(batch.apart()).for_each(|(w, write)| w.write = write);
                }
                // No member was reached: that is the answer to each of them.
                Err(Fault::Other(e)) if e.is_transient() || e.kind() == Kind::Unreachable => {
                    let e = if doubt { e.unknown() } else { e };
                    for waiting in some {
                        let _ = waiting.answer.send((Err(Fault::Other(e.clone())), None));
                    }
                    return None;
                }
                // One of them is refused, and all with it: each finds out for itself. An attempt
                // before this may have found the lease alive.
                Err(fault) => {
                    doubt |= match &fault {
                        Fault::Other(e) => e.outcome() == Outcome::Unknown,
                        Fault::NoLease { doubt } => *doubt,
                        Fault::LeaseExists => false,
                    };
                    some.iter_mut().zip(batch.apart()).for_each(|(w, write)| w.write = write);
                    break;
                }
            }
        }
        self.one_by_one(some, doubt).await;
        None
    }

    /// Tells each what is its own, and learns from it.
    fn tell(
        &self,
        some: Vec<Waiting>,
        batch: &TxnBatch,
        said: TxnResponse,
        doubt: bool,
    ) -> oneshot::Receiver<()> {
        let (heard, all) = oneshot::channel();
        let heard = Arc::new(heard);
        let told: Vec<_> = some.into_iter().zip(batch.told(said)).collect();
        {
            let hint = &mut self.state.lock().hint;
            for (waiting, told) in &told {
                if let Some((said, true)) = told {
                    hint.saw(&waiting.lock, said.succeeded);
                }
            }
        }
        for (waiting, told) in told {
            if let Some((said, _)) = told {
                let told = (Ok(Answer { said, doubt }), Some(heard.clone()));
                let _ = waiting.answer.send(told);
            }
        }
        all
    }

    async fn one_by_one(&self, some: Vec<Waiting>, doubt: bool) {
        for waiting in some.into_iter().filter(|w| !w.answer.is_closed()) {
            let sent = match self.link.txn_in_turn(&waiting.write).await {
                Ok(answer) => Ok(Answer { doubt: doubt || answer.doubt, ..answer }),
                Err(Fault::Other(e)) if doubt => Err(Fault::Other(e.unknown())),
                Err(fault) => Err(fault),
            };
            let _ = waiting.answer.send((sent, None));
        }
    }
}

impl State {
    /// Whether this many may be sent now.
    fn has_room(&self, writes: usize) -> bool {
        self.flying == 0 || self.flying < FLIGHTS && writes * 2 >= self.aloft
    }

    fn leaves(&mut self, writes: usize) {
        self.flying += 1;
        self.aloft += writes;
    }

    fn lands(&mut self, writes: usize) {
        self.flying -= 1;
        self.aloft -= writes;
    }

    /// What waited, as one transaction: open, as far as it is expected to pass.
    fn pack(&mut self, some: &mut [Waiting], open: bool) -> TxnBatch {
        let (open, mut batch) = (open && self.hint.open(), TxnBatch::default());
        for waiting in some {
            let open = open && self.hint.expects(&waiting.lock);
            batch.add(std::mem::take(&mut waiting.write), open);
        }
        batch
    }

    /// What leaves now.
    fn next(&mut self) -> Vec<Waiting> {
        if !self.has_room(self.waiting.len()) {
            return Vec::new();
        }
        let some = self.take();
        if !some.is_empty() {
            self.leaves(some.len());
        }
        some
    }

    /// A write waits; its number, and where its answer comes.
    fn wait(&mut self, lock: &FullName, write: TxnRequest) -> (u64, oneshot::Receiver<Told>) {
        let (answer, said) = oneshot::channel();
        self.numbers += 1;
        let (number, lock) = (self.numbers, lock.clone());
        self.waiting.push_back(Waiting { number, lock, write, answer });
        (number, said)
    }

    /// The caller of a write has gone; false when it may have been sent.
    fn give_up(&mut self, number: u64) -> bool {
        let at = self.waiting.iter().position(|w| w.number == number);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// What goes together next, in the order in which it came.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut some, mut later): (Vec<Waiting>, _) = (Vec::new(), VecDeque::new());
        let mut ops = 0;
        while some.len() < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.answer.is_closed() {
                continue;
            }
            if ops + weight(&waiting.write) > OPS {
                self.waiting.push_front(waiting);
                break;
            }
            match some.iter().any(|other| other.lock == waiting.lock) {
                true => later.push_back(waiting),
                false => {
                    ops += weight(&waiting.write);
                    some.push(waiting);
                }
            }
        }
        later.append(&mut self.waiting);
        self.waiting = later;
        some
    }
}

/// What a write takes of the room in a transaction, laid open or not.
fn weight(write: &TxnRequest) -> usize {
    write.compare.len().max(write.success.len())
}

/// A write under way by itself. When it ends, what waits may go.
struct Flight<'a>(&'a Arc<TxnBatcher>);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.lands(1);
        self.0.go(state);
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::backend::Ask;
    use distlock_core::{Label, Mode, Name, Owner, Patience, ReqId};

    use super::super::proto::Do;
    use super::*;
    use crate::txn::{self, Known};

    fn names(some: &[Waiting]) -> Vec<&str> {
        some.iter().map(|w| w.lock.name.as_str()).collect()
    }

    #[test]
    fn no_two_of_one_lock_go_together_and_what_nobody_waits_for_never_goes() {
        let (mut state, mut said) = (State::default(), Vec::new());
        for name in ["a", "b", "a", "dropped", "c", "a", "b"] {
            let lock = FullName { space: Default::default(), name: Name::new(name).unwrap() };
            let (_, told) = state.wait(&lock, txn::leave(name, 1));
            if name != "dropped" {
                said.push(told);
            }
        }
        assert_eq!(names(&state.take()), ["a", "b", "c"]);
        assert_eq!(names(&state.take()), ["a", "b"]);
        assert_eq!(names(&state.take()), ["a"]);
        assert!(state.take().is_empty());
    }

    #[test]
    fn a_crowd_leaves_together_and_waits_for_no_more_than_what_is_under_way() {
        let (mut state, mut said) = (State::default(), Vec::new());
        let mut names = 0;
        let mut comes = |state: &mut State| {
            names += 1;
            let name = Name::new(names.to_string()).unwrap();
            let lock = FullName { space: Default::default(), name };
            said.push(state.wait(&lock, txn::leave("a", 1)));
            state.next().len()
        };
        assert!(state.has_room(1), "nothing is under way");
        state.leaves(10);
        assert!(!state.has_room(1));
        let left: Vec<usize> = (0..5).map(|_| comes(&mut state)).collect();
        assert_eq!(left, [0, 0, 0, 0, 5], "half as many as are under way");
        assert_eq!(comes(&mut state), 0, "two are under way");
        state.lands(10);
        assert_eq!(state.next().len(), 0, "one of five: it waits for them");
        state.lands(5);
        assert_eq!(state.next().len(), 1, "nothing is under way");
        // Beside one alone another goes at once.
        assert!(state.has_room(1));
    }

    #[test]
    fn who_was_not_free_goes_as_it_is_and_after_that_all_do() {
        let (mut state, mut said) = (State::default(), Vec::new());
        let lock = |name| FullName { space: Default::default(), name: Name::new(name).unwrap() };
        for name in ["a", "b", "c"] {
            said.push(state.wait(&lock(name), txn::leave(name, 1)));
        }
        state.hint.saw(&lock("b"), false);
        let mut some = state.take();
        let again = |batch: TxnBatch, some: &mut Vec<Waiting>| {
            let packed = (batch.txn.compare.len(), batch.txn.success.len());
            some.iter_mut().zip(batch.apart()).for_each(|(w, write)| w.write = write);
            packed
        };
        let packed = state.pack(&mut some, true);
        assert_eq!(again(packed, &mut some), (2, 3), "the comparison of one is inside");
        let packed = state.pack(&mut some, false);
        assert_eq!(again(packed, &mut some), (0, 3));
        state.hint.kept_back();
        let packed = state.pack(&mut some, true);
        assert_eq!(again(packed, &mut some), (0, 3));
    }

    /// As etcd counts it: the most of what is beside each other, and what is inside comes on top.
    fn width(txn: &TxnRequest) -> usize {
        let all = [txn.compare.len(), txn.success.len(), txn.failure.len()];
        let inside = txn.success.iter().chain(&txn.failure).map(|op| match &op.request {
            Some(Do::Txn(txn)) => width(txn),
            _ => 0,
        });
        all.into_iter().max().unwrap_or(0) + inside.max().unwrap_or(0)
    }

    #[test]
    fn etcd_takes_the_largest_party() {
        let label = Label::new("");
        let ask = |mode, patience| Ask {
            lock: FullName { space: Default::default(), name: Name::new("a").unwrap() },
            req: ReqId::random(),
            owner: Owner::new(),
            mode,
            ttl: Duration::from_secs(9),
            patience,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: label.clone(),
            block: std::num::NonZeroU32::MIN,
        };
        let kinds = [
            ask(Mode::Exclusive, Patience::Forever),
            ask(Mode::Exclusive, Patience::Never),
            ask(Mode::Shared, Patience::Forever),
        ];
        for (laid_open, whole) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a, b))) {
            for open in [0, 1, MOST - 1, MOST] {
                let (mut state, mut said, mut batch) =
                    (State::default(), Vec::new(), TxnBatch::default());
                for i in 0..MOST {
                    let ask = if i < open { laid_open } else { whole };
                    let name = Name::new(i.to_string()).unwrap();
                    let lock = FullName { space: Default::default(), name };
                    let known = Known { upto: 1, other: Some("a@1".into()) };
                    let known = Some(&known).filter(|_| ask.mode == Mode::Shared);
                    let join = txn::join(ask, "a", Vec::new(), 1, false, known);
                    said.push(state.wait(&lock, join));
                }
                let some = state.take();
                assert!(some.len() >= MOST / 2, "{open}: {}", some.len());
                for (i, waiting) in some.into_iter().enumerate() {
                    batch.add(waiting.write, i < open);
                }
                assert!(width(&batch.txn) <= 128, "{open}: {}", width(&batch.txn));
            }
        }
    }

    #[test]
    fn one_who_gives_up_in_time_is_never_sent_and_knows_it() {
        let mut state = State::default();
        let lock = FullName { space: Default::default(), name: Name::new("a").unwrap() };
        let mut wait = || state.wait(&lock, txn::leave("a", 1));
        let ((one, _one), (two, _two), (three, _three)) = (wait(), wait(), wait());
        assert!(state.give_up(two));
        assert!(!state.give_up(two), "once");
        assert_eq!(state.take().iter().map(|w| w.number).collect::<Vec<_>>(), [one]);
        assert!(!state.give_up(one), "it is under way");
        assert_eq!(state.take().iter().map(|w| w.number).collect::<Vec<_>>(), [three]);
    }
}
