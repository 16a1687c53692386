//! The value of a lock's item: its holder, as JSON with a version.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::Left;
use distlock_core::{
    Ask, Error, FullName, HoldInfo, Holder, Kind, Label, LockInfo, Mode, Owner, ReqId, Token,
};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// How far a hold is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Held.
    Held,
    /// Released before its `min_hold`, and kept for what is missing.
    Lingering,
    /// Taken away by an operator; in the way of others until its lease ends.
    Revoked,
}

/// A held lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(rename = "v")]
    version: u32,
    /// In full, because the key may have only a hash of it.
    pub(crate) lock: FullName,
    /// The requests that hold it: more than one when its owner entered again.
    pub(crate) reqs: Vec<ReqId>,
    pub(crate) owner: Owner,
    label: Label,
    pub(crate) token: Token,
    ttl_ms: u64,
    min_ms: u64,
    /// When it was taken, on the wall clock of its client: for people, and for `min_hold` when
    /// another process releases it.
    at_us: u64,
    pub(crate) phase: Phase,
}

impl Record {
    pub(crate) fn of(ask: &Ask, token: Token, at_us: u64) -> Self {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Self {
            version: VERSION,
            lock: ask.lock.clone(),
            reqs: vec![ask.req],
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            token,
            ttl_ms: millis(ask.ttl),
            min_ms: millis(ask.min_hold),
            at_us,
            phase: Phase::Held,
        }
    }

    /// The same lock, further on.
    pub(crate) fn as_if(&self, phase: Phase) -> Self {
        Self { phase, ..self.clone() }
    }

    /// Without one of its requests.
    pub(crate) fn without(&self, req: ReqId) -> Self {
        let mut left = self.clone();
        left.reqs.retain(|r| *r != req);
        left
    }

    pub(crate) fn has(&self, req: ReqId) -> bool {
        self.reqs.contains(&req)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// How long it has been held, as the wall clock tells.
    pub(crate) fn age(&self, wall: u64) -> Duration {
        Duration::from_micros(wall.saturating_sub(self.at_us))
    }

    /// What is missing to its `min_hold`.
    pub(crate) fn missing(&self, age: Duration) -> Duration {
        Duration::from_millis(self.min_ms).saturating_sub(age)
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        // Strings and numbers alone: nothing in it can fail to be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what stands at the key of `lock`.
    pub(crate) fn read(text: &[u8], lock: Option<&FullName>) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u32,
        }
        let newer = serde_json::from_slice::<Versioned>(text).is_ok_and(|r| r.v > VERSION);
        if newer {
            return Err(Error::new(Kind::Layout, "the lock was written by a newer distlock")
                .with_hint("use the same version of distlock on every client of this server"));
        }
        let record: Self = serde_json::from_slice(text).map_err(|e| {
            Error::new(Kind::Layout, "the lock's item was not written by distlock")
                .because(e)
                .with_hint("somebody else writes keys that begin with dl1: on this server")
        })?;
        match lock {
            Some(lock) if record.lock != *lock => {
                Err(Error::new(Kind::Layout, format!("its item is that of {:?}", record.lock))
                    .with_hint("two names share one hash: use another name"))
            }
            _ => Ok(record),
        }
    }

    fn holder(&self, wall: u64, left: u32) -> Holder {
        Holder {
            label: self.label.clone(),
            owner: self.owner.clone(),
            token: self.token,
            age: self.age(wall),
            left: Some(Duration::from_secs(left.into())),
        }
    }

    /// The reply to a request that cannot have it.
    pub(crate) fn in_the_way(&self, wall: u64, left: u32) -> Left {
        let holder = self.holder(wall, left);
        Left { left: holder.left, holder: Some(holder) }
    }

    /// What an operator is shown.
    pub(crate) fn info(&self, wall: u64, left: u32) -> LockInfo {
        let hold = |req: &ReqId| HoldInfo {
            req: *req,
            holder: self.holder(wall, left),
            tokens: NonZeroU32::MIN,
            mode: Mode::Exclusive,
            lingering: self.phase == Phase::Lingering,
            revoked: self.phase == Phase::Revoked,
        };
        let holds = self.reqs.iter().map(hold).collect();
        LockInfo { lock: self.lock.clone(), holds, waiters: Vec::new() }
    }
}
