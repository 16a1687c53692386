//! Waiting for a lock in such a way that a signal ends it at once.

use std::sync::Mutex;
use std::time::Duration;

use distlock::{Busy, Clock, Guard, Lock, Locks, Standing, Token};
use rustix::process::Signal;

use crate::args::{Hold, Wait};
use crate::exit::{Failure, Status};
use crate::printer::Printer;
use crate::signals::Signals;

/// How long giving back may take at the end. What is not acknowledged by then ends with its lease.
const CLOSING: Duration = Duration::from_secs(2);

/// A waiter that stands still would hold up everybody behind it.
const UNSTOPPABLE: &str = "a place in line cannot be suspended; Ctrl-C leaves the line";

/// How a wait ended.
pub(crate) enum Turn {
    /// The lock is held.
    Ours(Guard),
    /// Somebody else has it; the message says who.
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

/// Asks for a lock and waits as long as the arguments say, telling where it stands.
pub(crate) async fn turn(
    locks: &Locks,
    lock: Lock,
    name: &str,
    wait: &Wait,
    signals: &mut Signals,
    printer: Printer,
) -> Result<Turn, Failure> {
    let lock = lock.on_wait(teller(name.to_owned(), printer));
    let ask = async {
        match (wait.no_wait, wait.wait) {
            (true, _) => lock.try_acquire().await,
            (false, Some(d)) => lock.try_acquire_for(d).await,
            (false, None) => lock.acquire().await.map(Ok),
        }
    };
    tokio::select! {
        biased;
        signal = signals.end(|| printer.warn(UNSTOPPABLE)) => Err(leave(locks, signal).await),
        answer = ask => match answer {
            Ok(Ok(guard)) => Ok(Turn::Ours(guard)),
            Ok(Err(busy)) => {
                close(locks).await;
                match busy.standing.is_refused_to_all() {
                    false => Ok(Turn::Busy(busy.to_string())),
                    true => Err(ungranted(&busy)),
                }
            }
            Err(e) => {
                close(locks).await;
                Err(e.into())
            }
        },
    }
}

/// Nobody holds the lock, and still nobody gets it: whoever skips a busy lock must not skip this one.
fn ungranted(busy: &Busy) -> Failure {
    let hint = "nobody holds it, so this is not busy: wait for it (no -n, or a longer -w)";
    Failure::new(Status::UNREACHABLE, busy.to_string()).hint(hint)
}

/// The ask was dropped, which takes it out of the line in the background; wait for that.
async fn leave(locks: &Locks, signal: Signal) -> Failure {
    close(locks).await;
    Failure::new(Status::signal(signal.as_raw()), "")
}

/// Gives everything back, within reason.
pub(crate) async fn close(locks: &Locks) {
    let _ = Clock::system().timeout(CLOSING, locks.close()).await;
}

/// Says who holds the lock and one's place in line, when one of the two changes, and when the store
/// grants nothing to anybody or answers nobody.
fn teller(name: String, printer: Printer) -> impl Fn(&Standing) + Send + Sync {
    /// The holder, one's place, and whether there is a reason that nobody is served.
    type News = (Option<Token>, Option<u32>, bool);
    let last: Mutex<Option<News>> = Mutex::new(None);
    move |standing| {
        let token = standing.holder.as_ref().map(|h| h.token);
        let news = (token, standing.ahead, standing.note.is_some());
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.replace(news) != Some(news) {
            printer.note(format!("waiting for {name:?}: {standing}"));
        }
    }
}
