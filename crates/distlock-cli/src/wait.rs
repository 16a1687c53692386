//! Waiting for a lock in such a way that a signal ends it at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Guard, Human, Lock, Locks, QueueStatus, Token};

use crate::args::{Hold, Wait};
use crate::{Everywhere, Failure, Printer, Signals, Status, store};

/// How long giving back may take at the end. What is not acknowledged by then ends with its lease.
const CLOSING: Duration = Duration::from_secs(2);
/// And at a store that has just not answered in time.
const CLOSING_SILENT: Duration = Duration::from_millis(200);
/// How long connecting may take at least, however short the wait.
const CONNECTING: Duration = Duration::from_secs(1);

/// A waiter that stands still would hold up everybody behind it.
const UNSTOPPABLE: &str = "waiting cannot be suspended; Ctrl-C leaves the queue";

/// How a wait ended.
pub(crate) enum Turn {
    /// The lock is held.
    Granted(Guard),
    /// The lock is busy; the message names the holder.
    Busy(String),
}

/// The options of a hold that `run` and `acquire` share.
pub(crate) fn with(lock: Lock, hold: &Hold) -> Lock {
    let mut lock = lock;
    if let Some(d) = hold.min_hold {
        lock = lock.min_hold(d);
    }
    if let Some(d) = hold.lock_delay {
        lock = lock.lock_delay(d);
    }
    // Empty is a variable that was not set, not a wish to be nobody.
    if let Some(text) = hold.label.as_ref().filter(|text| !text.trim().is_empty()) {
        lock = lock.label(text);
    }
    if let Some(owner) = &hold.owner {
        lock = lock.owner(owner);
    }
    lock
}

/// Connects, within the time that one is ready to wait. Answers with what is left of it.
pub(crate) async fn connect(all: &Everywhere, wait: &Wait) -> Result<(Locks, Wait), Failure> {
    let Some(most) = wait.wait.filter(|most| !most.is_zero()) else {
        return Ok((store::connect(all).await?, *wait));
    };
    let clock = Clock::system();
    let began = clock.now();
    let locks = clock.timeout(most.max(CONNECTING), store::connect(all)).await;
    let locks = locks.ok_or_else(|| {
        let what = format!("the store did not answer within {}", Human(most));
        Failure::new(Status::UNREACHABLE, what).hint("is it running? a longer -w waits longer")
    })??;
    let left = most.saturating_sub(clock.now().since(began));
    Ok((locks, Wait { wait: Some(left), ..*wait }))
}

/// Asks for a lock and waits as long as the arguments say, telling where it stands.
pub(crate) async fn turn(
    locks: &Locks,
    lock: Lock,
    name: &str,
    wait: &Wait,
    signals: &mut Signals,
    printer: Printer,
) -> Result<Turn, Failure> {
    let lock = lock.on_wait(reporter(name.to_owned(), printer));
    let ask = async {
        match (wait.no_wait, wait.wait) {
            (true, _) => lock.try_acquire().await,
            (false, Some(d)) => lock.try_acquire_for(d).await,
            (false, None) => lock.acquire().await.map(Ok),
        }
    };
    tokio::select! {
        biased;
        signal = signals.end(|| printer.warn(UNSTOPPABLE)) => {
            // The ask was dropped, which takes it out of the queue in the background; wait for that.
            close(locks).await;
            Err(Failure::new(Status::signal(signal.as_raw()), ""))
        }
        answer = ask => match answer {
            Ok(Ok(guard)) => Ok(Turn::Granted(guard)),
            Ok(Err(busy)) if busy.status.is_refused_to_all() => {
                close_within(locks, CLOSING_SILENT).await;
                // A caller that skips a busy lock must not skip this one.
                let hint = "nobody holds it, so this is not busy: wait for it (no -n, or a longer -w)";
                Err(Failure::new(Status::UNREACHABLE, busy.to_string()).hint(hint))
            }
            Ok(Err(busy)) => {
                close(locks).await;
                Ok(Turn::Busy(busy.to_string()))
            }
            Err(e) => {
                let silent = e.is_transient() && wait.wait.is_some();
                close_within(locks, if silent { CLOSING_SILENT } else { CLOSING }).await;
                Err(e.into())
            }
        },
    }
}

/// Gives everything back, within reason.
pub(crate) async fn close(locks: &Locks) {
    close_within(locks, CLOSING).await;
}

async fn close_within(locks: &Locks, most: Duration) {
    let _ = Clock::system().timeout(most, locks.close()).await;
}

/// Prints the holder and the position in the queue, when one of the two changes, and when the store
/// grants nothing to anybody or answers nobody.
fn reporter(name: String, printer: Printer) -> impl Fn(&QueueStatus) + Send + Sync {
    /// The holder, one's place, and whether there is a reason that nobody is served.
    type News = (Option<Token>, Option<u32>, bool);
    let last: Mutex<Option<News>> = Mutex::new(None);
    move |status| {
        let token = status.holder.as_ref().map(|h| h.token);
        let news = (token, status.ahead, status.note.is_some());
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.replace(news) != Some(news) {
            printer.note(format!("waiting for {name:?}: {status}"));
        }
    }
}
