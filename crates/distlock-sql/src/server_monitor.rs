//! A connection that does nothing but notice its end.
//!
//! A lock that is tied to a connection ends with it, and the driver of the database tells nobody
//! before the connection is used again. So one more connection, for all locks of a client, waits
//! inside a statement: when the server goes, its answer is an error at once, and everything that is
//! held is looked at. It may have ended alone; then the look finds nothing wrong. Or it ended before
//! the others: a server that shuts down may still answer for a session that it is about to end. So
//! everything is looked at again whenever a connection does not come about, and once when it has: a
//! server lets nobody in before all sessions that it was ending are gone.

use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use distlock_core::{Clock, EventSink, Wake, engine};
use tokio::sync::{Notify, watch};

use crate::connection_worker::{Opens, Trouble};

/// How much longer than its sleep an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// The pause before another try to connect, doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Connections that can wait inside a statement.
pub trait Dozes: Opens {
    /// Waits on the other side for about this long.
    fn doze(
        &self,
        conn: &mut Self::Conn,
        nap: Duration,
    ) -> impl Future<Output = Result<(), Trouble>> + Send;
}

/// Where it is with the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It does not watch just now, and has tried this many times.
    Away(u64),
    Watches,
    Closed,
}

/// Tells when the server goes. Dropping it ends it.
pub struct ServerMonitor<O: Dozes>(Arc<Monitor<O>>);

struct Monitor<O> {
    opens: Arc<O>,
    state: watch::Sender<State>,
    sink: OnceLock<EventSink>,
    clock: Clock,
    bound: Duration,
    /// Notified when it is needed at once.
    needed: Notify,
    started: Once,
}

/// How long it waits in one statement: no longer than this is a server noticed that fell silent
/// without a word, and the end of the client by the server.
const NAP: Duration = Duration::from_secs(20);

impl<O: Dozes> ServerMonitor<O> {
    /// One that connects when it is first needed.
    pub fn new(opens: Arc<O>, clock: Clock, bound: Duration) -> Self {
        let (state, sink) = (watch::Sender::new(State::Away(0)), OnceLock::new());
        let (needed, started) = (Notify::new(), Once::new());
        Self(Arc::new(Monitor { opens, state, sink, clock, bound, needed, started }))
    }

    /// Where it tells of an end: [`Wake::Everybody`].
    pub fn listen(&self, sink: EventSink) {
        let _ = self.0.sink.set(sink);
    }

    /// Waits until it watches, or failed to: a server that has no connection left for it is used
    /// without, and its end is noticed at the next try to connect, two seconds later at most.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn watches(&self) {
        let monitor = &self.0;
        monitor.started.call_once(|| engine::spawn(Arc::clone(monitor).work()));
        let mut state = monitor.state.subscribe();
        let State::Away(tried) = *state.borrow_and_update() else { return };
        monitor.needed.notify_one();
        let there = state.wait_for(|state| !matches!(state, State::Away(n) if *n == tried));
        let _ = monitor.clock.timeout(monitor.bound, there).await;
    }

    /// Ends it.
    pub fn close(&self) {
        self.0.state.send_replace(State::Closed);
    }
}

impl<O: Dozes> Drop for ServerMonitor<O> {
    /// Takes effect at once.
    fn drop(&mut self) {
        self.close();
    }
}

impl<O: Dozes> Monitor<O> {
    async fn work(self: Arc<Self>) {
        let mut closed = self.state.subscribe();
        tokio::select! {
            _ = closed.wait_for(|state| *state == State::Closed) => {}
            () = self.serve() => {}
        }
    }

    /// Goes over to another state; a closed monitor stays closed.
    fn turn(&self, to: impl FnOnce(State) -> State) {
        self.state.send_if_modified(|now| {
            let open = *now != State::Closed;
            if open {
                *now = to(*now);
            }
            open
        });
    }

    /// Has everything looked at that is held.
    fn tell(&self) {
        if let Some(sink) = self.sink.get() {
            sink(Wake::Everybody);
        }
    }

    async fn serve(&self) {
        let mut pause = PAUSE.0;
        let mut first = true;
        loop {
            match self.clock.timeout(self.bound, self.opens.open()).await {
                Some(Ok(conn)) => {
                    pause = PAUSE.0;
                    self.turn(|_| State::Watches);
                    if !std::mem::replace(&mut first, false) {
                        self.tell();
                    }
                    self.watch(conn).await;
                    self.turn(|_| State::Away(0));
                    tracing::debug!("the connection that watches the server has ended");
                    self.tell();
                }
                failed => {
                    let e = failed.and_then(Result::err);
                    tracing::debug!(error = ?e, "nobody watches for the end of the server");
                    self.turn(|now| match now {
                        State::Away(n) => State::Away(n + 1),
                        other => other,
                    });
                    first = false;
                    self.tell();
                }
            }
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                () = self.needed.notified() => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Until the connection ends.
    async fn watch(&self, mut conn: O::Conn) {
        loop {
            let nap = self.opens.doze(&mut conn, NAP);
            match self.clock.timeout(NAP + GRACE, nap).await {
                Some(Ok(())) => {}
                // Woken by somebody; one that was ended says so when it is asked again.
                Some(Err(Trouble { broken: false, .. })) => self.clock.sleep(PAUSE.0).await,
                Some(Err(_)) | None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use distlock_core::{Error, Kind};
    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// A server whose connections end when it is told so.
    #[derive(Default)]
    struct Dies {
        opened: AtomicU32,
        refuses: Mutex<bool>,
        end: Notify,
    }

    impl Opens for Dies {
        type Conn = ();

        async fn open(&self) -> Result<(), Error> {
            match *self.refuses.lock().unwrap() {
                true => Err(Error::new(Kind::Refused, "too many connections")),
                false => {
                    self.opened.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        }

        async fn close(&self, (): ()) {}
    }

    impl Dozes for Dies {
        async fn doze(&self, (): &mut (), _: Duration) -> Result<(), Trouble> {
            self.end.notified().await;
            Err(Trouble::broken(Error::new(Kind::Unreachable, "gone")))
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn it_tells_of_every_end_and_comes_back() {
        let server = Arc::new(Dies::default());
        let monitor = ServerMonitor::new(Arc::clone(&server), Clock::system(), LONG);
        let (tx, mut heard) = mpsc::unbounded_channel();
        monitor.listen(Arc::new(move |wake| drop(tx.send(wake))));
        assert_eq!(server.opened.load(Ordering::SeqCst), 0, "nothing is held yet");
        for n in 1..=3 {
            monitor.watches().await;
            assert_eq!(server.opened.load(Ordering::SeqCst), n);
            if n > 1 {
                assert_eq!(heard.recv().await, Some(Wake::Everybody), "of its return");
            }
            server.end.notify_one();
            assert_eq!(heard.recv().await, Some(Wake::Everybody), "of its end");
        }
        monitor.close();
        monitor.watches().await;
    }

    /// The first look may come before the server has ended the session that is looked at.
    #[tokio::test]
    async fn it_tells_again_while_it_cannot_come_back() {
        let server = Arc::new(Dies::default());
        let monitor = ServerMonitor::new(Arc::clone(&server), Clock::system(), LONG);
        let (tx, mut heard) = mpsc::unbounded_channel();
        monitor.listen(Arc::new(move |wake| drop(tx.send(wake))));
        monitor.watches().await;
        *server.refuses.lock().unwrap() = true;
        server.end.notify_one();
        let clock = Clock::system();
        for _ in 0..3 {
            let told = clock.timeout(Duration::from_secs(10), heard.recv()).await;
            assert_eq!(told.expect("told again"), Some(Wake::Everybody));
        }
    }

    #[tokio::test]
    async fn who_cannot_be_watched_is_not_kept_waiting_for_ever() {
        let server = Arc::new(Dies::default());
        *server.refuses.lock().unwrap() = true;
        let bound = Duration::from_millis(20);
        let monitor = ServerMonitor::new(Arc::clone(&server), Clock::system(), bound);
        monitor.watches().await;
        assert!(matches!(*monitor.0.state.borrow(), State::Away(_)));
        *server.refuses.lock().unwrap() = false;
        let mut state = monitor.0.state.subscribe();
        state.wait_for(|s| *s == State::Watches).await.unwrap();
    }
}
