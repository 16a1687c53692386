//! The gate in memory: one at a time, never backwards, for as long as the effect takes.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use distlock_fence::{FenceGate, Permit, Stale, Token};

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

/// One look at a future: whether it would go on now.
fn look<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    f.poll(&mut Context::from_waker(Waker::noop()))
}

fn enter(gate: &FenceGate, resource: &str, n: u64) -> Result<Permit, Stale> {
    match look(pin!(gate.enter(resource, token(n)))) {
        Poll::Ready(let_in) => let_in,
        Poll::Pending => panic!("{resource} is occupied"),
    }
}

#[test]
fn a_holder_writes_often_and_an_older_one_never_again() {
    let gate = FenceGate::new();
    for n in [3, 3, 5, 5, 5] {
        assert_eq!(enter(&gate, "a", n).unwrap().token(), token(n));
    }
    let late = enter(&gate, "a", 4).unwrap_err();
    assert_eq!(late, Stale { resource: "a".into(), token: token(4), highest: token(5) });
    assert!(enter(&gate, "b", 4).is_ok(), "another resource has a mark of its own");
}

#[test]
fn the_resource_is_closed_for_as_long_as_the_permit_lives() {
    let gate = FenceGate::new();
    let five = enter(&gate, "a", 5).unwrap();
    let mut six = pin!(gate.enter("a", token(6)));
    let mut again = pin!(gate.enter("a", token(5)));
    assert!(look(six.as_mut()).is_pending(), "the effect of 5 is not over");
    assert!(look(again.as_mut()).is_pending());
    drop(five);
    let Poll::Ready(Ok(six)) = look(six.as_mut()) else { panic!("it is free") };
    drop(six);
    // It came in time and waited for too long.
    let Poll::Ready(Err(stale)) = look(again.as_mut()) else { panic!("6 was here") };
    assert_eq!(stale.highest, token(6));
}

#[test]
fn who_stops_waiting_leaves_no_mark() {
    let gate = FenceGate::new();
    let five = enter(&gate, "a", 5).unwrap();
    {
        let mut nine = pin!(gate.enter("a", token(9)));
        assert!(look(nine.as_mut()).is_pending());
    }
    drop(five);
    assert!(enter(&gate, "a", 6).is_ok());
}

#[tokio::test]
async fn marks_outlive_the_gate_when_they_are_kept() {
    let gate = FenceGate::new();
    drop(gate.enter("a", token(7)).await.unwrap());
    let again = FenceGate::with_marks(gate.marks().await);
    assert_eq!(again.enter("a", token(6)).await.unwrap_err().highest, token(7));
    // Blocking, inside of a runtime.
    assert!(again.enter_blocking("a", token(6)).is_err());
    drop(again.enter_blocking("a", token(8)).unwrap());
}

#[test]
fn a_storm_of_threads_never_goes_back_and_never_meets() {
    let (gate, turn) = (FenceGate::new(), AtomicU64::new(1));
    let (inside, last) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                for _ in 0..60 {
                    let n = turn.fetch_add(1, SeqCst);
                    std::thread::yield_now(); // lets another overtake
                    let Ok(permit) = gate.enter_blocking("a", token(n)) else { continue };
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
                    std::thread::yield_now();
                    assert!(last.swap(n, SeqCst) <= n, "it went back");
                    inside.fetch_sub(1, SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert_eq!(last.load(SeqCst), 360, "the newest is always let in");
}
