//! The requests of one client that may be granted any moment, so that closing can take them back and
//! a loss that comes before the guard is not forgotten.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::Ask;
use crate::ids::ReqId;
use crate::loss::LossReason;
use crate::simulation::HashMap;

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A request was lost. Whoever is about to make a guard of it hears of it then.
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
