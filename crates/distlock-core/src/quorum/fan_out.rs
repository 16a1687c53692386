//! The same question to all nodes at once, answers as they come, until a bound in time.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use crate::{Clock, Fut};

/// Calls under way, one a node.
pub(super) struct Fan<'a, T> {
    calls: Vec<Option<Fut<'a, T>>>,
    answers: VecDeque<(usize, T)>,
    end: Fut<'a, ()>,
}

impl<'a, T> Fan<'a, T> {
    /// Sends nothing yet: the first `next` sends all of them before it looks at an answer.
    pub(super) fn new(clock: &'a Clock, bound: Duration, size: usize) -> Self {
        let calls = std::iter::repeat_with(|| None).take(size).collect();
        Self { calls, answers: VecDeque::new(), end: Box::pin(clock.sleep(bound)) }
    }

    pub(super) fn call(&mut self, node: usize, call: impl Future<Output = T> + Send + 'a) {
        self.calls[node] = Some(Box::pin(call));
    }

    /// The nodes whose answers have not been given out.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> {
        let asked = self.calls.iter().enumerate().filter(|(_, c)| c.is_some()).map(|(i, _)| i);
        asked.chain(self.answers.iter().map(|(i, _)| *i))
    }

    /// The next answer and the node that gave it; `None` when all have answered or the time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            for (i, slot) in self.calls.iter_mut().enumerate() {
                if let Some(call) = slot
                    && let Poll::Ready(answer) = call.as_mut().poll(cx)
                {
                    *slot = None;
                    self.answers.push_back((i, answer));
                }
            }
            if let Some(answer) = self.answers.pop_front() {
                return Poll::Ready(Some(answer));
            }
            if self.calls.iter().all(Option::is_none) {
                return Poll::Ready(None);
            }
            self.end.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}
