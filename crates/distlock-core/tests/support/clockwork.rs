//! A clock that stands still, and requests: what the drivers' tests share.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_core::backend::Ask;
use distlock_core::{Clock, FullName, Label, Mode, Name, Owner, Patience, ReqId};

pub(crate) const TTL: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(1);

/// Runs a future, and time with it: a millisecond whenever it waits.
pub(crate) async fn run<T>(clock: &Clock, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Some(done) = poll_once(work.as_mut()).await {
            return done;
        }
        tick(clock).await;
    }
}

/// A millisecond passes, and the library's own thread does what it brings.
pub(crate) async fn tick(clock: &Clock) {
    clock.advance(STEP);
    // What the clock woke there is ahead of these in its queue; it may wake others in turn.
    for _ in 0..2 {
        let (done, told) = tokio::sync::oneshot::channel();
        distlock_core::engine::spawn(async move {
            let _ = done.send(());
        });
        told.await.expect("the library's thread runs");
    }
}

/// Lets time run until something is so.
pub(crate) async fn until(clock: &Clock, what: &str, so: impl Fn() -> bool) {
    // A minute of the store's time is longer than any debt or lease.
    for _ in 0..60_000 {
        if so() {
            return;
        }
        tick(clock).await;
    }
    panic!("never: {what}");
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future + ?Sized>(
    mut work: std::pin::Pin<&mut F>,
) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match work.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

pub(crate) fn name() -> FullName {
    FullName { space: Default::default(), name: Name::new("orders").expect("a name") }
}

/// A new request of a new owner that does not wait.
pub(crate) fn ask() -> Ask {
    Ask {
        lock: name(),
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl: TTL,
        patience: Patience::Never,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("test"),
        block: NonZeroU32::MIN,
    }
}

/// A new request that waits.
pub(crate) fn waiting() -> Ask {
    Ask { patience: Patience::Forever, ..ask() }
}
