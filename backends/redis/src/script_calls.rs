//! The script call of each move (keys and arguments), and its answer. An ask is sent as a claim, which
//! the scripts keep as it comes.

mod notification;
mod record;
mod replies;

use std::time::Duration;

use distlock_core::{Ask, Force, Mode, ReqId, Token};

use crate::connection::{Call, Script};
use crate::keys::Keys;
use crate::quarantine::Agreed;
use crate::scripts::SCRIPTS;

pub(crate) use notification::Message;
#[cfg(test)]
pub(crate) use replies::states;
pub(crate) use replies::{acquired, cancelled, forced, inspected, pulses, released, renewals};

/// How many locks fit one call of [`renew`], [`heartbeat`] or [`inspect`]: few enough that other
/// clients of the server do not notice.
pub(crate) const BATCH: usize = 256;

fn call(script: &'static Script, keys: &[&Keys], args: Vec<Vec<u8>>) -> Call {
    let keys = keys.iter().flat_map(|k| k.all()).collect();
    Call { script, keys, args }
}

/// The channels whose count by PUBLISH says whether anybody listens: all of them. Otherwise those with
/// an ending, because the others' listeners are at other servers of the cluster.
pub(crate) const ALL_COUNTED: &str = "1";

/// Asks, asks again, confirms or polls; with `wait` it queues.
pub(crate) fn acquire(
    keys: &Keys,
    ask: &Ask,
    wait: Option<Duration>,
    via: &str,
    counted: &str,
    agreed: &Agreed,
) -> Call {
    let wait = wait.map(|w| number(micros(w))).unwrap_or_default();
    let mut args = vec![ask.req.as_bytes().to_vec(), claim(ask, via), wait, counted.into()];
    args.extend(agreed.args());
    call(&SCRIPTS.acquire, &[keys], args)
}

/// The fast path of [`acquire`] for many locks, each for a single token.
pub(crate) fn acquire_many<'a>(
    asks: impl Iterator<Item = (&'a Keys, &'a Ask)>,
    via: &str,
    agreed: &Agreed,
) -> Call {
    let (mut keys, mut args) = (Vec::new(), agreed.args().to_vec());
    for (lock, ask) in asks {
        keys.push(lock.lock.as_bytes().to_vec());
        args.extend([ask.req.as_bytes().to_vec(), claim(ask, via)]);
    }
    Call { script: &SCRIPTS.acquire_many, keys, args }
}

/// The fast path of [`release`] for many locks.
pub(crate) fn release_many<'a>(holds: impl Iterator<Item = (&'a Keys, &'a ReqId)>) -> Call {
    let of =
        |(lock, req): (&Keys, &ReqId)| (lock.lock.as_bytes().to_vec(), req.as_bytes().to_vec());
    let (keys, args) = holds.map(of).unzip();
    Call { script: &SCRIPTS.release_many, keys, args }
}

/// Says that waiters are alive and reachable through `via`. Those of one lock should stand
/// together: the server then opens it once.
pub(crate) fn heartbeat(waiting: &[(Keys, ReqId, Duration)], via: &str, counted: &str) -> Call {
    let mut locks: Vec<&Keys> = Vec::new();
    let mut args = Vec::with_capacity(2 + 3 * waiting.len());
    args.extend([counted.into(), via.as_bytes().to_vec()]);
    for (keys, req, wait) in waiting {
        if locks.last() != Some(&keys) {
            locks.push(keys);
        }
        args.extend([number(locks.len() as u64), req.as_bytes().to_vec(), number(micros(*wait))]);
    }
    call(&SCRIPTS.heartbeat, &locks, args)
}

/// Renews holds.
pub(crate) fn renew(due: &[(Keys, ReqId, Duration)], counted: &str, agreed: &Agreed) -> Call {
    let mut args = Vec::with_capacity(3 + 2 * due.len());
    args.push(counted.into());
    args.extend(agreed.args());
    for (_, req, ttl) in due {
        args.extend([req.as_bytes().to_vec(), number(micros(*ttl))]);
    }
    let locks: Vec<&Keys> = due.iter().map(|(keys, ..)| keys).collect();
    call(&SCRIPTS.renew, &locks, args)
}

/// Gives a hold back.
pub(crate) fn release(keys: &Keys, req: &ReqId, counted: &str) -> Call {
    call(&SCRIPTS.release, &[keys], vec![req.as_bytes().to_vec(), counted.into()])
}

/// Undoes a request and keeps it from coming back.
pub(crate) fn cancel(keys: &Keys, req: &ReqId, counted: &str) -> Call {
    call(&SCRIPTS.cancel, &[keys], vec![req.as_bytes().to_vec(), counted.into()])
}

/// Takes a lock away.
pub(crate) fn force(keys: &Keys, token: Option<Token>, how: Force, counted: &str) -> Call {
    let token = token.map(|t| number(t.get())).unwrap_or_default();
    let how: &[u8] = match how {
        Force::Now => b"now",
        Force::Revoke => b"revoke",
    };
    call(&SCRIPTS.force, &[keys], vec![token, how.to_vec(), counted.into()])
}

/// Looks at locks.
pub(crate) fn inspect(locks: &[Keys]) -> Call {
    call(&SCRIPTS.inspect, &locks.iter().collect::<Vec<_>>(), Vec::new())
}

/// Longer than anybody waits, and exact in the server's arithmetic (doubles) when added to the time.
const LONGEST: u128 = 1 << 50;

/// A duration in the scripts' unit.
fn micros(d: Duration) -> u64 {
    d.as_micros().min(LONGEST) as u64
}

/// A number as text.
pub(crate) fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// A claim: min_hold, ttl, lock_delay, mode, block, owner, via, label.
fn claim(ask: &Ask, via: &str) -> Vec<u8> {
    let (owner, label) = (ask.owner.as_str(), ask.label.as_str());
    let mut blob = Vec::with_capacity(35 + owner.len() + via.len() + label.len());
    for d in [ask.min_hold, ask.ttl, ask.lock_delay] {
        blob.extend((micros(d) as f64).to_le_bytes());
    }
    blob.extend(mode_to(ask.mode).to_le_bytes());
    blob.extend(ask.block.get().to_le_bytes());
    for text in [owner, via, label] {
        // None of them can hold a zero byte: owner and label by their types, via by our making.
        blob.extend(text.bytes());
        blob.push(0);
    }
    blob
}

/// 0 exclusive, -1 shared, n permits.
fn mode_to(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit(n) => i32::try_from(n.get()).unwrap_or(i32::MAX),
    }
}
