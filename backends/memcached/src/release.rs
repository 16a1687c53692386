//! Giving back, cancelling and forcing: the item is deleted, or written without one request, by
//! compare-and-swap; whatever was not as expected is read and judged anew.
//!
//! A cancel that follows its acquire on the same connection also arrives after it. If the connection
//! broke between the two, the acquire may still stand in the server's buffer and be read later than
//! the cancel: its item would be a lock that nobody holds, until its exptime. So the cancel looks
//! again a few times over the next seconds. What arrives later still ends with its exptime; nobody
//! ever believes in it.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootInstant, Error, Force, Forced, FullName, Key, Released, Token, engine};

use crate::errors::{self, RACES, odd};
use crate::key;
use crate::known_items::RequestEnd;
use crate::record::{Phase, Record};
use crate::store::Inner;
use crate::time::at_least;
use crate::wire::{Command, If, Reply, Version};

/// When a cancel looks again after its connection was lost.
const LOOK_AGAIN: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(8),
];

/// The item as it was seen.
pub(crate) struct Seen {
    pub(crate) record: Record,
    version: Version,
    pub(crate) left: u32,
    /// Since when it is held, if this client knows.
    since: Option<BootInstant>,
}

/// What to do about it.
enum Move {
    Write(Record, u32),
    Delete,
    Nothing,
}

impl Inner {
    pub(crate) async fn release(self: &Arc<Self>, key: &Key) -> Result<Released, Error> {
        let noted = self.known.lock(&key.lock).filter(|n| n.record.reqs == [key.req]);
        let safe = noted.as_ref().map(|n| n.safe);
        let first = noted.filter(|n| n.record.phase == Phase::Held).map(|n| Seen {
            record: n.record,
            version: n.version,
            left: 1,
            since: Some(n.since),
        });
        let wall = self.clock.wall_micros();
        let mut was = None;
        let done = self.change(&key.lock, first, |seen| {
            let Some(seen) = seen.filter(|s| s.record.has(key.req)) else {
                was = None;
                return Move::Nothing;
            };
            was = Some(seen.record.phase);
            let rest = seen.record.without(key.req);
            let now = self.clock.now();
            let age = seen.since.map_or_else(|| seen.record.age(wall), |s| now.since(s));
            let missing = seen.record.missing(age);
            match seen.record.phase {
                Phase::Lingering => Move::Nothing,
                _ if !rest.reqs.is_empty() => Move::Write(rest, seen.left),
                Phase::Held if !missing.is_zero() => {
                    Move::Write(seen.record.as_if(Phase::Lingering), at_least(missing))
                }
                Phase::Held | Phase::Revoked => Move::Delete,
            }
        });
        if let Err(e) = done.await {
            if let Some(safe) = safe {
                self.known.end_request(key.req, RequestEnd::Doubtful(safe));
            }
            return Err(e);
        }
        self.known.forget(&key.lock, key.req);
        self.look_again(key);
        let before = self.known.ended(key.req);
        let released = match (was, before) {
            (Some(Phase::Held | Phase::Lingering), _) | (None, Some(RequestEnd::Released)) => true,
            // Gone before anybody else could have had it: our own release did that.
            (None, Some(RequestEnd::Doubtful(safe))) => self.clock.now() < safe,
            (Some(Phase::Revoked), _) | (None, _) => false,
        };
        let end = if released { RequestEnd::Released } else { RequestEnd::Cancelled };
        self.known.end_request(key.req, end);
        Ok(if released { Released::Released } else { Released::WasLost })
    }

    pub(crate) async fn cancel(self: &Arc<Self>, key: &Key) -> Result<(), Error> {
        self.known.end_request(key.req, RequestEnd::Cancelled);
        self.remove(key).await?;
        self.look_again(key);
        Ok(())
    }

    /// Removes what may still arrive of a request that has ended.
    fn look_again(self: &Arc<Self>, key: &Key) {
        if !self.may_still_arrive(key.req) {
            return;
        }
        let (inner, key) = (self.clone(), key.clone());
        engine::spawn(async move {
            for pause in LOOK_AGAIN {
                inner.clock.sleep(pause).await;
                if let Err(e) = inner.remove(&key).await {
                    tracing::debug!(lock = %key.lock, error = %e, "looking again");
                }
            }
        });
    }

    /// Takes a request out of the lock, whatever became of it.
    pub(crate) async fn remove(&self, key: &Key) -> Result<(), Error> {
        self.known.forget(&key.lock, key.req);
        self.change(&key.lock, None, |seen| {
            let Some(seen) = seen.filter(|s| s.record.has(key.req)) else { return Move::Nothing };
            let rest = seen.record.without(key.req);
            match seen.record.phase {
                Phase::Lingering => Move::Nothing,
                _ if rest.reqs.is_empty() => Move::Delete,
                _ => Move::Write(rest, seen.left),
            }
        })
        .await
    }

    pub(crate) async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let seen = self.see(lock).await?;
        self.force_seen(lock, seen, token, how).await
    }

    /// Takes the lock from the holder that was seen: a later one, while the item changed, is
    /// nobody's to break.
    async fn force_seen(
        &self,
        lock: &FullName,
        seen: Option<Seen>,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let Some(seen) = seen else { return Ok(Forced::NoMatch) };
        let (mut forced, token) = (Forced::NoMatch, token.unwrap_or(seen.record.token));
        self.change(lock, Some(seen), |seen| {
            let Some(seen) = seen.filter(|s| s.record.token == token) else {
                forced = Forced::NoMatch;
                return Move::Nothing;
            };
            forced = Forced::Done;
            match (how, seen.record.phase) {
                // Its holder may not know for as long as its lease lasts.
                (Force::Revoke, Phase::Held | Phase::Revoked) => {
                    Move::Write(seen.record.as_if(Phase::Revoked), seen.left)
                }
                (Force::Now, _) | (_, Phase::Lingering) => Move::Delete,
            }
        })
        .await?;
        Ok(forced)
    }

    /// The item at a lock's key.
    pub(crate) async fn see(&self, lock: &FullName) -> Result<Option<Seen>, Error> {
        match self.link.one(Command::Get { key: key::lock(lock) }).await? {
            Reply::Hit { value, version, left } => {
                let record = Record::read(&value, Some(lock))?;
                Ok(Some(Seen { record, version, left, since: None }))
            }
            Reply::Missing => Ok(None),
            other => Err(odd(&other)),
        }
    }

    /// Sees the item, decides, and acts if it has not changed meanwhile; else again. Starts from
    /// what the notes say, if they say something.
    async fn change(
        &self,
        lock: &FullName,
        noted: Option<Seen>,
        mut decide: impl FnMut(Option<&Seen>) -> Move,
    ) -> Result<(), Error> {
        let mut seen = match noted {
            Some(seen) => Some(seen),
            None => self.see(lock).await?,
        };
        for _ in 0..RACES {
            let action = decide(seen.as_ref());
            let version = seen.as_ref().map_or_else(Version::default, |s| s.version);
            let command = match action {
                Move::Nothing => return Ok(()),
                Move::Write(record, secs) => self.write(&record, secs, If::Same(version)),
                Move::Delete => Command::Delete { key: key::lock(lock), version },
            };
            match self.link.one(command).await? {
                Reply::Done { .. } => return Ok(()),
                Reply::Changed | Reply::Missing => seen = self.see(lock).await?,
                other => return Err(odd(&other)),
            }
        }
        Err(errors::contended())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use distlock_core::backend::Ask;
    use distlock_core::lease::LeaseStore;
    use distlock_core::state;
    use distlock_core::url::StoreUrl;
    use distlock_core::{Label, Mode, Name, Namespace, Owner, Patience, ReqId};
    use distlock_testkit::servers::{Server, memcached};

    use super::*;
    use crate::Memcached;

    fn ask(owner: &Owner) -> Ask {
        Ask {
            lock: FullName { space: Namespace::default(), name: Name::new("x").unwrap() },
            req: ReqId::random(),
            owner: owner.clone(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(10),
            patience: Patience::Never,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::new(""),
            block: NonZeroU32::MIN,
        }
    }

    #[tokio::test]
    async fn a_force_takes_the_lock_from_whom_it_saw_and_from_nobody_after() {
        let server = Server::start(memcached()).await.expect("`cargo xtask setup` installs it");
        let url = StoreUrl::parse(&format!("memcached://{}", server.addr())).unwrap();
        let store = Memcached::connect(&url).await.unwrap();
        let (first, next) = (ask(&Owner::new()), ask(&Owner::new()));
        assert!(matches!(store.acquire(&first).await.unwrap(), state::Reply::Granted { .. }));
        // The lock changes hands between the look and the force.
        let seen = store.0.see(&first.lock).await.unwrap();
        let _ = store.0.release(&first.key()).await.unwrap();
        assert!(matches!(store.acquire(&next).await.unwrap(), state::Reply::Granted { .. }));
        let forced = store.0.force_seen(&first.lock, seen, None, Force::Now).await.unwrap();
        assert_eq!(forced, Forced::NoMatch);
        assert_eq!(store.0.release(&next.key()).await.unwrap(), Released::Released);
        // And it takes it from the holder that it saw, renewed or not.
        assert!(matches!(store.acquire(&first).await.unwrap(), state::Reply::Tombstoned(_)));
        let again = ask(&Owner::new());
        assert!(matches!(store.acquire(&again).await.unwrap(), state::Reply::Granted { .. }));
        assert_eq!(store.force(&again.lock, None, Force::Now).await.unwrap(), Forced::Done);
    }
}
