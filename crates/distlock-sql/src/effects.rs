//! What a step of the specification tells clients, as wake-ups of their drivers.

use distlock_core::{Effects, Event, FullName, Key, LossReason, ReqId, Wake};

/// The wake-ups of a lock's effects, each with the address it is for.
pub fn wakes(lock: &FullName, effects: Effects) -> impl Iterator<Item = (String, Wake)> {
    let Effects { turns, contended, revoked } = effects;
    let key = |req: ReqId| Key { lock: lock.clone(), req };
    let turns = turns.into_iter().map(|(req, via)| (via, Wake::Turn(req)));
    let contended =
        contended.into_iter().map(move |(req, via)| (via, Wake::Event(Event::Contended(key(req)))));
    let lost = move |req| Event::Lost(key(req), LossReason::Revoked);
    let revoked = revoked.into_iter().map(move |(req, via)| (via, Wake::Event(lost(req))));
    turns.chain(contended).chain(revoked)
}
