//! The moves of a node as calls of scripts.

use std::time::Duration;

use distlock_core::quorum::{Bid, Commit, Heal, NodeDue, NodeRules, Round};
use distlock_core::{Ask, Force, FullName, Key, ReqId, Token};

use super::keys::record;
use super::scripts::SCRIPTS;
use crate::connection::{Call, Script};
use crate::quarantine::Agreed;
pub(crate) use crate::script_calls::BATCH;
use crate::script_calls::number;

pub(crate) fn micros(d: Duration) -> Vec<u8> {
    number(u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

fn req(req: &ReqId) -> Vec<u8> {
    req.as_bytes().to_vec()
}

/// Owner, channel and label, each after its length.
fn who(ask: &Ask, via: &str) -> Vec<u8> {
    let mut blob = Vec::new();
    for part in [ask.owner.as_str(), via, ask.label.as_str()] {
        let len = u16::try_from(part.len()).unwrap_or(u16::MAX);
        blob.extend(len.to_le_bytes());
        blob.extend(&part.as_bytes()[..usize::from(len)]);
    }
    blob
}

fn one(script: &'static Script, lock: &FullName, args: Vec<Vec<u8>>) -> Call {
    Call { script, keys: vec![record(lock).into_bytes()], args }
}

/// A bid; `closed` is how long the node grants nothing yet.
pub(crate) fn propose(bid: &Bid, via: &str, closed: Duration, agreed: &Agreed) -> Call {
    let (ask, rules) = (&bid.ask, NodeRules::default());
    let mut args = vec![
        req(&ask.req),
        number(bid.round.0),
        micros(ask.ttl),
        micros(ask.min_hold),
        number(bid.token.get()),
        who(ask, via),
        micros(closed),
        micros(rules.ahead),
        micros(rules.slack),
        micros(rules.window),
    ];
    match bid.place {
        Some(p) => args.extend([number(p.ticket), micros(p.wait), number(p.backed.into())]),
        None => args.extend([Vec::new(), number(0), number(0)]),
    }
    args.extend(agreed.args());
    one(&SCRIPTS.propose, &ask.lock, args)
}

/// Heals, at most [`BATCH`].
pub(crate) fn heal(heals: &[Heal], via: &str, closed: Duration, agreed: &Agreed) -> Call {
    let mut args = vec![micros(closed)];
    args.extend(agreed.args());
    for Heal { ask, round, token } in heals {
        args.extend([req(&ask.req), number(round.0), micros(ask.ttl), micros(ask.min_hold)]);
        args.extend([number(token.get()), who(ask, via)]);
    }
    let keys = heals.iter().map(|h| record(&h.ask.lock).into_bytes()).collect();
    Call { script: &SCRIPTS.heal, keys, args }
}

pub(crate) fn commit(commit: &Commit) -> Call {
    let Commit { key, round, generation, token } = commit;
    let args = vec![req(&key.req), number(round.0), number(generation.0), number(token.get())];
    one(&SCRIPTS.commit, &key.lock, args)
}

/// Renewals, at most [`BATCH`].
pub(crate) fn renew(due: &[NodeDue], agreed: &Agreed) -> Call {
    let args = due.iter().flat_map(|d| {
        let generation = d.generation.map(|g| number(g.0)).unwrap_or_default();
        [req(&d.key.req), generation, micros(d.ttl)]
    });
    let keys = due.iter().map(|d| record(&d.key.lock).into_bytes()).collect();
    Call { script: &SCRIPTS.renew, keys, args: agreed.args().into_iter().chain(args).collect() }
}

pub(crate) fn release(key: &Key) -> Call {
    one(&SCRIPTS.release, &key.lock, vec![req(&key.req)])
}

pub(crate) fn cancel(key: &Key, upto: Round) -> Call {
    one(&SCRIPTS.cancel, &key.lock, vec![req(&key.req), number(upto.0)])
}

pub(crate) fn force(lock: &FullName, token: Option<Token>, how: Force) -> Call {
    let token = token.map(|t| number(t.get())).unwrap_or_default();
    let how = match how {
        Force::Now => b"n".to_vec(),
        Force::Revoke => b"r".to_vec(),
    };
    one(&SCRIPTS.force, lock, vec![token, how])
}

/// A look at locks, at most [`BATCH`].
pub(crate) fn inspect(locks: &[FullName]) -> Call {
    let keys = locks.iter().map(|lock| record(lock).into_bytes()).collect();
    Call { script: &SCRIPTS.inspect, keys, args: Vec::new() }
}
