//! Futures side by side, a bounded number at a time.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs futures side by side, at most so many at a time, and gives their values in order. The next
/// starts as soon as one is done: one that hangs takes a place, and not the others' time.
pub(crate) async fn abreast<F: Future>(most: usize, work: Vec<F>) -> Vec<F::Output> {
    let mut rest = work.into_iter().enumerate();
    let mut open: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut done: Vec<Option<F::Output>> = Vec::new();
    poll_fn(|cx| {
        loop {
            while open.len() < most.max(1) {
                let Some((i, call)) = rest.next() else { break };
                open.push((i, Box::pin(call)));
                done.push(None);
            }
            if open.is_empty() {
                return Poll::Ready(());
            }
            let before = open.len();
            open.retain_mut(|(i, call)| match call.as_mut().poll(cx) {
                Poll::Ready(value) => {
                    done[*i] = Some(value);
                    false
                }
                Poll::Pending => true,
            });
            if open.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn values_come_in_order_and_so_many_run_at_a_time() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (now, most) = (&now, &most);
        let work = (0..20).map(|i| async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..(20 - i) {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            i
        });
        assert_eq!(abreast(4, work.collect()).await, (0..20).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), 4);
        assert!(abreast(4, Vec::<std::future::Ready<()>>::new()).await.is_empty());
    }

    #[tokio::test]
    async fn one_that_hangs_takes_no_time_from_the_others() {
        let others = AtomicUsize::new(0);
        let others = &others;
        let work = (0..10).map(|i| async move {
            match i {
                0 => std::future::pending().await,
                _ => others.fetch_add(1, Ordering::SeqCst),
            }
        });
        let mut all = std::pin::pin!(abreast(2, work.collect()));
        assert!(poll_fn(|cx| Poll::Ready(all.as_mut().poll(cx).is_pending())).await);
        assert_eq!(others.load(Ordering::SeqCst), 9);
    }
}
