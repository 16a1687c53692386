//! What is sent to the server for each move, and what its answer means.

mod encode;
mod message;
mod read;
mod record;

use std::time::Duration;

use distlock_core::seam::{Ask, Force};
use distlock_core::{ReqId, Token};

use crate::call::{Call, Script};
use crate::keys::Keys;
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

/// Whether the count that PUBLISH answers is to be believed.
fn flag(trusted: bool) -> Vec<u8> {
    vec![b'0' + u8::from(trusted)]
}

/// Asks, asks again, confirms or polls; with `wait` it stands in line.
pub(crate) fn acquire(
    keys: &Keys,
    ask: &Ask,
    wait: Option<Duration>,
    via: &str,
    trusted: bool,
) -> Call {
    let wait = wait.map(|w| number(micros(w))).unwrap_or_default();
    let args = vec![ask.req.as_bytes().to_vec(), claim(ask, via), wait, flag(trusted)];
    call(&SCRIPTS.acquire, &[keys], args)
}

/// Says that waiters are alive and reachable through `via`. Those of one lock should stand
/// together: the server then opens it once.
pub(crate) fn heartbeat(waiting: &[(Keys, ReqId, Duration)], via: &str, trusted: bool) -> Call {
    let mut locks: Vec<&Keys> = Vec::new();
    let mut args = Vec::with_capacity(2 + 3 * waiting.len());
    args.extend([flag(trusted), via.as_bytes().to_vec()]);
    for (keys, req, wait) in waiting {
        if locks.last() != Some(&keys) {
            locks.push(keys);
        }
        args.extend([number(locks.len() as u64), req.as_bytes().to_vec(), number(micros(*wait))]);
    }
    call(&SCRIPTS.heartbeat, &locks, args)
}

/// Renews holds.
pub(crate) fn renew(due: &[(Keys, ReqId, Duration)], trusted: bool) -> Call {
    let mut args = Vec::with_capacity(1 + 2 * due.len());
    args.push(flag(trusted));
    for (_, req, ttl) in due {
        args.extend([req.as_bytes().to_vec(), number(micros(*ttl))]);
    }
    let locks: Vec<&Keys> = due.iter().map(|(keys, ..)| keys).collect();
    call(&SCRIPTS.renew, &locks, args)
}

/// Gives a hold back.
pub(crate) fn release(keys: &Keys, req: &ReqId, trusted: bool) -> Call {
    call(&SCRIPTS.release, &[keys], vec![req.as_bytes().to_vec(), flag(trusted)])
}

/// Undoes a request and keeps it from coming back.
pub(crate) fn cancel(keys: &Keys, req: &ReqId, trusted: bool) -> Call {
    call(&SCRIPTS.cancel, &[keys], vec![req.as_bytes().to_vec(), flag(trusted)])
}

/// Takes a lock away.
pub(crate) fn force(keys: &Keys, token: Option<Token>, how: Force, trusted: bool) -> Call {
    let token = token.map(|t| number(t.get())).unwrap_or_default();
    let how: &[u8] = match how {
        Force::Now => b"now",
        Force::Revoke => b"revoke",
    };
    call(&SCRIPTS.force, &[keys], vec![token, how.to_vec(), flag(trusted)])
}

/// Looks at locks.
pub(crate) fn inspect(locks: &[Keys]) -> Call {
    call(&SCRIPTS.inspect, &locks.iter().collect::<Vec<_>>(), Vec::new())
}
