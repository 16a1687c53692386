//! What a node still has to be told: undos and releases it did not acknowledge.
//!
//! Repeated on the library's own thread until the node has acknowledged, or until whatever the
//! request could have had there has ended by itself.

use std::time::Duration;

use super::{Node, QuorumNode, Round};
use crate::{Backoff, BootInstant, Error, HashMap, Key, Mutex};

/// A node is owed this much at most: what it is not told of ends there by its lease, and a dead
/// node must not cost more memory the busier its client is.
const MOST: usize = 16 * 1024;

/// What a node is told to end a request, or a round of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// Undo rounds up to this one.
    Cancel(Round),
    /// Give back, minding `min_hold`.
    Release,
}

impl Ending {
    /// Tells a node.
    pub(super) async fn tell<N: QuorumNode>(self, node: &N, key: &Key) -> Result<(), Error> {
        match self {
            Ending::Cancel(upto) => node.cancel(key, upto).await,
            Ending::Release => node.release(key).await.map(drop),
        }
    }

    /// One that does for both.
    fn and(self, other: Ending) -> Ending {
        match (self, other) {
            (Ending::Release, _) | (_, Ending::Release) => Ending::Release,
            (Ending::Cancel(a), Ending::Cancel(b)) => Ending::Cancel(a.max(b)),
        }
    }
}

/// What one node has to be told.
#[derive(Default)]
pub(super) struct Unacknowledged(Mutex<Owed>);

#[derive(Default)]
struct Owed {
    owed: HashMap<Key, (Ending, BootInstant)>,
    /// Somebody pays already.
    paying: bool,
    closed: bool,
}

impl Unacknowledged {
    /// Notes a debt that is void after a moment; true when the caller is to start paying.
    pub(super) fn owe(&self, key: Key, ending: Ending, until: BootInstant) -> bool {
        let mut owed = self.0.lock();
        if owed.closed || (owed.owed.len() >= MOST && !owed.owed.contains_key(&key)) {
            return false;
        }
        owed.owed
            .entry(key)
            .and_modify(|(e, u)| (*e, *u) = (e.and(ending), (*u).max(until)))
            .or_insert((ending, until));
        !std::mem::replace(&mut owed.paying, true)
    }

    /// Nothing is owed any more: the client is closed.
    pub(super) fn close(&self) {
        let mut owed = self.0.lock();
        owed.closed = true;
        owed.owed.clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().owed.is_empty()
    }

    fn open(&self, now: BootInstant) -> Vec<(Key, Ending)> {
        let mut owed = self.0.lock();
        owed.owed.retain(|_, (_, until)| *until > now);
        owed.paying = !owed.owed.is_empty();
        owed.owed.iter().map(|(key, (ending, _))| (key.clone(), *ending)).collect()
    }

    fn paid(&self, key: &Key, ending: Ending) {
        let mut owed = self.0.lock();
        // More may have been added to it meanwhile.
        if owed.owed.get(key).is_some_and(|(e, _)| *e == ending) {
            owed.owed.remove(key);
        }
    }

    /// Pays what a node is owed until nothing is.
    pub(super) async fn pay<N: QuorumNode>(node: &Node<N>, bound: Duration) {
        let (debts, clock) = (&node.debts, node.node.info().clock);
        let mut wait = Backoff::default();
        loop {
            let open = debts.open(clock.now());
            if open.is_empty() {
                return;
            }
            let mut told = true;
            for (key, ending) in open {
                match clock.timeout(bound, ending.tell(&node.node, &key)).await {
                    Some(Ok(())) => {
                        debts.paid(&key, ending);
                        // Well again. Nobody else would find out, if the others always answer
                        // before it does: then every end would be told to it twice.
                        node.answered(true);
                    }
                    // It does not answer: the rest would only wait as long again.
                    _ => {
                        told = false;
                        break;
                    }
                }
            }
            if told {
                wait = Backoff::default();
            } else {
                clock.sleep(wait.next()).await;
            }
        }
    }
}
