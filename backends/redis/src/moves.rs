//! What is sent to the server for each move, and what its answer means.

mod encode;
mod message;
mod read;
mod record;

use std::time::Duration;

use distlock_core::backend::{Ask, Force};
use distlock_core::{ReqId, Token};

use crate::call::{Call, Script};
use crate::keys::Keys;
use crate::quarantine::Agreed;
use crate::scripts::SCRIPTS;

use encode::{claim, micros, number};
#[allow(unused_imports)] // until the store is there
pub(crate) use message::{Kind, Message};
#[cfg(test)]
pub(crate) use read::states;
#[allow(unused_imports)] // until the store is there
pub(crate) use read::{acquired, cancelled, forced, inspected, pulses, released, renewals};

/// How many locks fit one call of [`renew`], [`heartbeat`] or [`inspect`]: few enough that other
/// clients of the server do not notice.
pub(crate) const BATCH: usize = 256;

fn call(script: &'static Script, keys: &[&Keys], args: Vec<Vec<u8>>) -> Call {
    let keys = keys.iter().flat_map(|k| k.all()).collect();
    Call { script, keys, args }
}

/// Of which channels the count that PUBLISH answers says whether anybody listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    /// Of all.
    All,
    /// Of none.
    #[cfg(test)]
    None,
    /// Of those with this ending: the others' listeners are at other servers of the cluster.
    Ending(String),
}

fn flag(counted: &Counted) -> Vec<u8> {
    match counted {
        Counted::All => b"1".to_vec(),
        #[cfg(test)]
        Counted::None => b"0".to_vec(),
        Counted::Ending(ending) => ending.clone().into_bytes(),
    }
}

/// Asks, asks again, confirms or polls; with `wait` it stands in line.
pub(crate) fn acquire(
    keys: &Keys,
    ask: &Ask,
    wait: Option<Duration>,
    via: &str,
    counted: &Counted,
    agreed: &Agreed,
) -> Call {
    let wait = wait.map(|w| number(micros(w))).unwrap_or_default();
    let mut args = vec![ask.req.as_bytes().to_vec(), claim(ask, via), wait, flag(counted)];
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
pub(crate) fn heartbeat(waiting: &[(Keys, ReqId, Duration)], via: &str, counted: &Counted) -> Call {
    let mut locks: Vec<&Keys> = Vec::new();
    let mut args = Vec::with_capacity(2 + 3 * waiting.len());
    args.extend([flag(counted), via.as_bytes().to_vec()]);
    for (keys, req, wait) in waiting {
        if locks.last() != Some(&keys) {
            locks.push(keys);
        }
        args.extend([number(locks.len() as u64), req.as_bytes().to_vec(), number(micros(*wait))]);
    }
    call(&SCRIPTS.heartbeat, &locks, args)
}

/// Renews holds.
pub(crate) fn renew(due: &[(Keys, ReqId, Duration)], counted: &Counted, agreed: &Agreed) -> Call {
    let mut args = Vec::with_capacity(3 + 2 * due.len());
    args.push(flag(counted));
    args.extend(agreed.args());
    for (_, req, ttl) in due {
        args.extend([req.as_bytes().to_vec(), number(micros(*ttl))]);
    }
    let locks: Vec<&Keys> = due.iter().map(|(keys, ..)| keys).collect();
    call(&SCRIPTS.renew, &locks, args)
}

/// Gives a hold back.
pub(crate) fn release(keys: &Keys, req: &ReqId, counted: &Counted) -> Call {
    call(&SCRIPTS.release, &[keys], vec![req.as_bytes().to_vec(), flag(counted)])
}

/// Undoes a request and keeps it from coming back.
pub(crate) fn cancel(keys: &Keys, req: &ReqId, counted: &Counted) -> Call {
    call(&SCRIPTS.cancel, &[keys], vec![req.as_bytes().to_vec(), flag(counted)])
}

/// Takes a lock away.
pub(crate) fn force(keys: &Keys, token: Option<Token>, how: Force, counted: &Counted) -> Call {
    let token = token.map(|t| number(t.get())).unwrap_or_default();
    let how: &[u8] = match how {
        Force::Now => b"now",
        Force::Revoke => b"revoke",
    };
    call(&SCRIPTS.force, &[keys], vec![token, how.to_vec(), flag(counted)])
}

/// Looks at locks.
pub(crate) fn inspect(locks: &[Keys]) -> Call {
    call(&SCRIPTS.inspect, &locks.iter().collect::<Vec<_>>(), Vec::new())
}
