use std::sync::atomic::{AtomicUsize, Ordering};

use distlock_core::Outcome;
use tokio::sync::Notify;

use super::*;

/// Counts what is opened and closed; a connection is its number.
#[derive(Default)]
struct Doors {
    opened: AtomicUsize,
    closed: AtomicUsize,
    shut: std::sync::atomic::AtomicBool,
}

impl Opens for Doors {
    type Conn = usize;

    async fn open(&self) -> Result<usize, Error> {
        if self.shut.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Unreachable, "shut"));
        }
        Ok(self.opened.fetch_add(1, Ordering::Relaxed))
    }

    async fn close(&self, _: usize) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

fn worker(bound: Duration) -> (Arc<Doors>, ConnectionWorker<Doors>) {
    let doors = Arc::<Doors>::default();
    (doors.clone(), ConnectionWorker::new(doors, Clock::system(), bound, 1))
}

const LONG: Duration = Duration::from_secs(60);

fn broken() -> Trouble {
    Trouble::broken(Error::new(Kind::Unreachable, "reset"))
}

#[tokio::test]
async fn what_was_sent_is_finished_though_its_caller_is_gone() {
    let (_, worker) = worker(LONG);
    let (started, go, done) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
    let call = worker.call({
        let (started, go, done) = (started.clone(), go.clone(), done.clone());
        move |_| {
            let (started, go, done) = (started.clone(), go.clone(), done.clone());
            Box::pin(async move {
                started.notify_one();
                go.notified().await;
                done.notify_one();
                Ok(())
            })
        }
    });
    tokio::select! {
        biased;
        r = call => panic!("nobody let it go on: {r:?}"),
        () = started.notified() => {}
    }
    go.notify_one();
    done.notified().await;
    worker.close().await;
}

#[tokio::test]
async fn what_was_not_sent_is_taken_back_with_its_caller() {
    let (_, worker) = worker(LONG);
    let (started, go) = <(Arc<Notify>, Arc<Notify>)>::default();
    let first = worker.call({
        let (started, go) = (started.clone(), go.clone());
        move |_| {
            let (started, go) = (started.clone(), go.clone());
            Box::pin(async move {
                started.notify_one();
                go.notified().await;
                Ok(())
            })
        }
    });
    let ran = Arc::<AtomicUsize>::default();
    let second = {
        let ran = ran.clone();
        worker.call(move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
    };
    tokio::pin!(first);
    {
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut first => panic!("nobody let it go on"),
            _ = &mut second => panic!("it overtook the first"),
            () = started.notified() => {}
        }
    }
    go.notify_one();
    first.await.unwrap();
    worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_the_call_repeated_once() {
    let (doors, worker) = worker(LONG);
    let seen = worker.call(|conn| {
        let conn = *conn;
        Box::pin(async move { if conn == 0 { Err(broken()) } else { Ok(conn) } })
    });
    assert_eq!(seen.await.unwrap(), 1);
    let e = worker.call(|_| Box::pin(async { Err::<(), _>(broken()) })).await.unwrap_err();
    assert_eq!(e.outcome(), Outcome::Unknown);
    assert_eq!(doors.opened.load(Ordering::Relaxed), 3);
    worker.close().await;
}

#[tokio::test]
async fn a_repeated_call_is_told_before_it_is_sent_again() {
    let (_, worker) = worker(LONG);
    let told = Arc::<AtomicUsize>::default();
    let again = |told: &Arc<AtomicUsize>| {
        let told = told.clone();
        move || {
            told.fetch_add(1, Ordering::Relaxed);
        }
    };
    let seen = told.clone();
    let repeated = worker.call_telling(again(&told), move |conn| {
        let before = seen.load(Ordering::Relaxed);
        let conn = *conn;
        Box::pin(async move { if conn == 0 { Err(broken()) } else { Ok(before) } })
    });
    assert_eq!(repeated.await.unwrap(), 1);
    worker.call_telling(again(&told), |_| Box::pin(async { Ok(()) })).await.unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1, "what is sent once is not told");
    worker.close().await;
}

#[tokio::test]
async fn what_may_be_done_once_is_sent_once_on_a_new_connection() {
    let (doors, worker) = worker(LONG);
    worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap();
    let ran = Arc::<AtomicUsize>::default();
    let counted = ran.clone();
    let e = worker.call_once(move |conn| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert_eq!(*conn, 1, "the server may have ended one that rested");
        Box::pin(async { Err::<(), _>(broken()) })
    });
    assert_eq!(e.await.unwrap_err().outcome(), Outcome::Unknown);
    assert_eq!(ran.load(Ordering::Relaxed), 1, "it was repeated");
    doors.shut.store(true, Ordering::Relaxed);
    let e = worker.call_once(|_| Box::pin(async { Ok(()) })).await.unwrap_err();
    assert_eq!(e.outcome(), Outcome::NotApplied);
}

#[tokio::test]
async fn nothing_sent_is_not_applied_and_no_answer_is_unknown() {
    let (doors, worker) = worker(Duration::from_millis(50));
    doors.shut.store(true, Ordering::Relaxed);
    let e = worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::NotApplied));
    doors.shut.store(false, Ordering::Relaxed);
    Clock::system().sleep(PAUSE).await;
    let e = worker.call(|_| Box::pin(std::future::pending::<Result<(), _>>())).await.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::Unknown));
    // And the connection whose answer is still to come is not used again.
    let conn = worker.call(|conn| {
        let conn = *conn;
        Box::pin(async move { Ok(conn) })
    });
    assert_eq!(conn.await.unwrap(), 1);
}

#[tokio::test]
async fn closing_closes_the_connections() {
    let (doors, worker) = worker(LONG);
    worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap();
    worker.close().await;
    assert_eq!(doors.closed.load(Ordering::Relaxed), 1);
    let e = worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap_err();
    assert_eq!(e.kind(), Kind::Closed);
}

/// The one worker was busy with another call for all of its time.
#[tokio::test]
async fn what_is_overdue_is_not_sent_and_costs_no_connection() {
    let (doors, clock) = (Arc::<Doors>::default(), Clock::held());
    let worker = ConnectionWorker::new(doors.clone(), clock.clone(), LONG, 1);
    let (started, go) = <(Arc<Notify>, Arc<Notify>)>::default();
    let first = worker.call({
        let (started, go, clock) = (started.clone(), go.clone(), clock.clone());
        move |_| {
            let (started, go, clock) = (started.clone(), go.clone(), clock.clone());
            Box::pin(async move {
                started.notify_one();
                go.notified().await;
                clock.advance(LONG - Duration::from_secs(1));
                Ok(())
            })
        }
    });
    let ran = Arc::<AtomicUsize>::default();
    let second = worker.call({
        let (ran, clock) = (ran.clone(), clock.clone());
        move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            let clock = clock.clone();
            Box::pin(async move {
                clock.advance(Duration::from_secs(2));
                Ok(())
            })
        }
    });
    let third = {
        let ran = ran.clone();
        worker.call(move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
    };
    let release = async {
        started.notified().await;
        go.notify_one();
    };
    let (first, second, third, ()) = tokio::join!(first, second, third, release);
    first.unwrap();
    second.unwrap();
    let e = third.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (Kind::Unreachable, Outcome::NotApplied));
    assert_eq!(ran.load(Ordering::Relaxed), 1, "the third was sent");
    worker.call(|_| Box::pin(async { Ok(()) })).await.unwrap();
    assert_eq!(doors.opened.load(Ordering::Relaxed), 1, "its connection was thrown away");
}
