//! Writes of many tasks in one transaction.
//!
//! A write that finds few others under way goes at once, by itself. What comes while there are more
//! waits until one of them ends, and then goes with all that wait: one round trip, and one entry in
//! the cluster's log. Inside, each is what it was, and idempotent; asked again, all are.
//!
//! Nobody needs a turn of the link for it: it sees to it itself that few are under way.
//!
//! All comparisons of a transaction are made before its first write, and all that it puts is of one
//! revision. So no two writes about one lock ever go together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::{FullName, Outcome, engine};
use tokio::sync::oneshot;

use super::link::{Answer, Link, Tries};
use super::proto::{DeleteResponse, Do, Done, Header, RequestOp, TxnRequest};
use super::trouble::Fault;

/// So many are under way before others wait.
const FLIGHTS: usize = 4;
/// So many go together: etcd takes 128 operations in all, and a join has a few inside.
const MOST: usize = 48;

/// What a write did.
pub(crate) struct Written {
    pub(crate) header: Option<Header>,
    pub(crate) done: Done,
}

type Sent = Result<Answer<Written>, Fault>;

/// The writes of a client.
pub(crate) struct Together {
    link: Arc<Link>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flying: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    lock: FullName,
    write: Do,
    answer: oneshot::Sender<Sent>,
}

impl Together {
    pub(crate) fn new(link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { link, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write about a lock. Dropped before it was sent, it never is.
    pub(crate) async fn write(self: &Arc<Self>, lock: &FullName, write: Do) -> Sent {
        // What is dropped and given back, on the library's own thread, waits for nobody.
        if engine::on_library_thread() {
            return Box::pin(alone(&self.link, &write)).await;
        }
        let answer = {
            let mut state = self.state();
            if state.flying < FLIGHTS {
                state.flying += 1;
                None
            } else {
                let (answer, said) = oneshot::channel();
                let (lock, write) = (lock.clone(), write.clone());
                state.waiting.push_back(Waiting { lock, write, answer });
                Some(said)
            }
        };
        let Some(answer) = answer else {
            let _flight = Flight(self);
            return Box::pin(alone(&self.link, &write)).await;
        };
        drop(write);
        // One call's time to be sent, and one to be answered.
        match self.link.clock.timeout(self.link.timeout * 2, answer).await {
            Some(Ok(sent)) => sent,
            _ => Err(Fault::Other(self.link.late())),
        }
    }

    /// Sends what waits, until nothing does.
    async fn serve(self: Arc<Self>) {
        loop {
            let some = {
                let mut state = self.state();
                let some = state.take();
                if some.is_empty() {
                    state.flying -= 1;
                    return;
                }
                some
            };
            self.send(some).await;
        }
    }

    async fn send(&self, some: Vec<Waiting>) {
        if some.len() == 1 {
            return self.one_by_one(some).await;
        }
        let write = |w: &Waiting| RequestOp { request: Some(w.write.clone()) };
        let txn = TxnRequest { success: some.iter().map(write).collect(), ..TxnRequest::default() };
        match self.link.txn_in_turn(&txn).await {
            Ok(Answer { said, doubt }) => {
                let header = said.header;
                for (waiting, response) in some.into_iter().zip(said.responses) {
                    let Some(done) = response.response else { continue };
                    let _ =
                        waiting.answer.send(Ok(Answer { said: Written { header, done }, doubt }));
                }
            }
            // Nobody was reached: that is so for each of them.
            Err(Fault::Other(e)) if e.is_transient() || e.outcome() == Outcome::Unknown => {
                for waiting in some {
                    let _ = waiting.answer.send(Err(Fault::Other(e.clone())));
                }
            }
            // One of them is refused, and all with it: each finds out for itself.
            Err(_) => self.one_by_one(some).await,
        }
    }

    async fn one_by_one(&self, some: Vec<Waiting>) {
        for waiting in some {
            let _ = waiting.answer.send(alone(&self.link, &waiting.write).await);
        }
    }
}

async fn alone(link: &Link, write: &Do) -> Sent {
    match write {
        Do::Delete(delete) => {
            let path = "/etcdserverpb.KV/DeleteRange";
            let Answer { said, doubt } =
                link.call_in_turn::<_, DeleteResponse>(path, delete, Tries::Many).await?;
            Ok(Answer { said: Written { header: None, done: Done::Delete(said) }, doubt })
        }
        Do::Txn(txn) => {
            let Answer { said, doubt } = link.txn_in_turn(txn).await?;
            Ok(Answer { said: Written { header: said.header, done: Done::Txn(said) }, doubt })
        }
        Do::Put(_) | Do::Range(_) => {
            let write = RequestOp { request: Some(write.clone()) };
            let Answer { said, doubt } = link
                .txn_in_turn(&TxnRequest { success: vec![write], ..TxnRequest::default() })
                .await?;
            let done = said.responses.into_iter().next().and_then(|r| r.response);
            let done = done.ok_or_else(|| Fault::Other(link.late()))?;
            Ok(Answer { said: Written { header: said.header, done }, doubt })
        }
    }
}

impl State {
    /// What goes together next, in the order in which it came.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut some, mut later): (Vec<Waiting>, _) = (Vec::new(), VecDeque::new());
        while some.len() < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.answer.is_closed() {
                continue;
            }
            match some.iter().any(|other| other.lock == waiting.lock) {
                true => later.push_back(waiting),
                false => some.push(waiting),
            }
        }
        later.append(&mut self.waiting);
        self.waiting = later;
        some
    }
}

/// A write under way by itself. When it ends, what waits may go.
struct Flight<'a>(&'a Arc<Together>);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.waiting.is_empty() {
            state.flying -= 1;
            return;
        }
        drop(state);
        let all = self.0.clone();
        engine::spawn(async move { all.serve().await });
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Name;

    use super::*;
    use crate::txn;

    fn names(some: &[Waiting]) -> Vec<&str> {
        some.iter().map(|w| w.lock.name.as_str()).collect()
    }

    #[test]
    fn no_two_of_one_lock_go_together_and_what_nobody_waits_for_never_goes() {
        let (mut state, mut said) = (State::default(), Vec::new());
        for name in ["a", "b", "a", "dropped", "c", "a", "b"] {
            let lock = FullName { space: Default::default(), name: Name::new(name).unwrap() };
            let (answer, told) = oneshot::channel();
            if name != "dropped" {
                said.push(told);
            }
            state.waiting.push_back(Waiting {
                lock,
                write: Do::Delete(txn::release(name)),
                answer,
            });
        }
        assert_eq!(names(&state.take()), ["a", "b", "c"]);
        assert_eq!(names(&state.take()), ["a", "b"]);
        assert_eq!(names(&state.take()), ["a"]);
        assert!(state.take().is_empty());
    }
}
