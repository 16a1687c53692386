//! The answer to one request: an [`AnswerSender`] for the worker, an [`AnswerReceiver`] for the caller.
//!
//! One small allocation for both news and answer: a thousand requests may wait.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use distlock_core::{Error, Locked, Mutex, QueueStatus};

use crate::errors::closed;
use crate::store::FileConn;

pub(crate) type Answer = Result<Locked<FileConn>, Error>;

#[derive(Default)]
struct Shared {
    told: Option<QueueStatus>,
    is_news: bool,
    /// In a box: all but the last wait for long, and it is large.
    answer: Option<Box<Answer>>,
    waker: Option<Waker>,
    /// The caller went away.
    empty: bool,
}

type Both = Arc<Mutex<Shared>>;

/// The worker's end. Dropping it without an answer says that the store was closed.
pub(crate) struct AnswerSender(Both);

/// The caller's end. Dropping it drops an answer that was not taken.
pub(crate) struct AnswerReceiver(Both);

/// What a caller hears.
pub(crate) enum Heard {
    News(QueueStatus),
    Answer(Box<Answer>),
}

pub(crate) fn sender() -> (AnswerSender, AnswerReceiver) {
    let both = Both::default();
    (AnswerSender(both.clone()), AnswerReceiver(both))
}

impl AnswerSender {
    /// Answers; gives the answer back when the caller has gone.
    pub(crate) fn answer(self, answer: Answer) -> Result<(), Answer> {
        let mut s = self.0.lock();
        if s.empty {
            return Err(answer);
        }
        s.answer = Some(Box::new(answer));
        Ok(())
    }

    /// Tells where the request stands, if that is news: a holder that grows older is none.
    pub(crate) fn news(&self, status: &QueueStatus, ahead: usize) {
        let ahead = Some(u32::try_from(ahead).unwrap_or(u32::MAX));
        let token = |s: &QueueStatus| s.holder.as_ref().map(|h| h.token);
        let mut s = self.0.lock();
        if s.told.as_ref().is_some_and(|t| (token(t), t.ahead) == (token(status), ahead)) {
            return;
        }
        s.told = Some(QueueStatus { ahead, ..status.clone() });
        s.is_news = true;
        let waker = s.waker.take();
        drop(s);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for AnswerSender {
    fn drop(&mut self) {
        let mut s = self.0.lock();
        s.answer.get_or_insert_with(|| Box::new(Err(closed())));
        let waker = s.waker.take();
        drop(s);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl AnswerReceiver {
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Heard> {
        let mut s = self.0.lock();
        if let Some(answer) = s.answer.take() {
            return Poll::Ready(Heard::Answer(answer));
        }
        if std::mem::take(&mut s.is_news)
            && let Some(told) = &s.told
        {
            return Poll::Ready(Heard::News(told.clone()));
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for AnswerReceiver {
    fn drop(&mut self) {
        let mut s = self.0.lock();
        s.empty = true;
        // Its drop gives a lock back; not while this is locked.
        let unheard = s.answer.take();
        drop(s);
        drop(unheard);
    }
}
