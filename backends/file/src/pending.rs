//! Where one request waits for its answer: a [`Seat`] for the worker, a [`Chair`] for the caller.
//!
//! One small allocation for both news and answer: a thousand may wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use distlock_core::Error;
use distlock_core::busy::QueueStatus;
use distlock_core::session::Locked;

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
pub(crate) struct Seat(Both);

/// The caller's end. Dropping it drops an answer that was not taken.
pub(crate) struct Chair(Both);

/// What a caller hears.
pub(crate) enum Heard {
    News(QueueStatus),
    Answer(Box<Answer>),
}

pub(crate) fn seat() -> (Seat, Chair) {
    let both = Both::default();
    (Seat(both.clone()), Chair(both))
}

fn shared(both: &Both) -> MutexGuard<'_, Shared> {
    both.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// Answers; gives the answer back when nobody is there to hear it.
    pub(crate) fn answer(self, answer: Answer) -> Result<(), Answer> {
        let mut s = shared(&self.0);
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
        let mut s = shared(&self.0);
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

impl Drop for Seat {
    fn drop(&mut self) {
        let mut s = shared(&self.0);
        s.answer.get_or_insert_with(|| Box::new(Err(closed())));
        let waker = s.waker.take();
        drop(s);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Chair {
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Heard> {
        let mut s = shared(&self.0);
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

impl Drop for Chair {
    fn drop(&mut self) {
        let mut s = shared(&self.0);
        s.empty = true;
        // Its drop gives a lock back; not while this is locked.
        let unheard = s.answer.take();
        drop(s);
        drop(unheard);
    }
}
