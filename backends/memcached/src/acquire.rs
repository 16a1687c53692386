//! Acquire: the lock's item by `add`, and a token from the fence such that tokens rise in the order
//! of the grants.
//!
//! The item alone decides which request holds the lock. The token must be above those of all
//! earlier grants and below those of all later ones, though the client that takes it may stall at
//! any point and find that its item has ended and others were granted meanwhile. The fence is only
//! ever raised, by compare-and-swap, to max(what stands there + 1, wall clock). There are two ways:
//!
//! * **Item first** (two round trips): add the item and read the fence; then, in one packet, raise
//!   the fence and write the token into the item, each by compare-and-swap. Granted only if both
//!   succeeded. Earlier grants raised the fence before their item ended, that is before our add:
//!   they are below us. Later ones raise it after their add, that is after our item ended, that is
//!   after our second write found it unchanged: they are above. A taker that stalls after the add,
//!   or after the raise, fails at the write into its item, and its token is nobody's.
//! * **Fence first** (one round trip), when this client was the last to raise the fence: in one
//!   packet raise it, add the item, and read the fence again. Granted only if the raise and the add
//!   succeeded and the fence is still ours. Nobody raised it between: an earlier grant raised it
//!   before us, and a later one, which may have raised it first as well, finds that we did and goes
//!   the first way.
//!
//! Token before add without the second look would let A take 10, stall, B take 11 and be done, and
//! A be granted with 10: a holder whose writes are refused. Token after add without the write into
//! the item would let A stall after its add, B take 10 in its place, and A come back with 11: a
//! holder whose writes are refused because of one that is none.
//!
//! A replay is told the same token if the first answer arrived, which this client's notes say. If
//! it did not, nobody knows the token, and the request goes on with a new one the first way.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::state::{End, Reply as Answer};
use distlock_core::{Ask, BootInstant, Error, Token};

use crate::errors::{self, RACES, odd};
use crate::key;
use crate::known_items::{KnownItem, RequestEnd};
use crate::record::{Phase, Record};
use crate::store::Inner;
use crate::time::{FENCE_SECS, replayed, secs, until};
use crate::wire::{Command, If, Reply, Version};

impl Inner {
    pub(crate) async fn acquire(&self, ask: &Ask) -> Result<Answer, Error> {
        if self.known.ended(ask.req).is_some() {
            return Ok(Answer::Tombstoned(End::Cancelled));
        }
        let answer = self.take(ask).await?;
        // A cancel that came meanwhile may have looked before our item was there.
        if self.known.ended(ask.req).is_some() {
            self.remove(&ask.key()).await?;
            return Ok(Answer::Tombstoned(End::Cancelled));
        }
        Ok(answer)
    }

    async fn take(&self, ask: &Ask) -> Result<Answer, Error> {
        for _ in 0..RACES {
            let sent = self.clock.now();
            if let Some(note) = self.known.lock(&ask.lock).filter(|n| self.enters(ask, n)) {
                if let Some(answer) = self.enter(ask, note, sent).await? {
                    return Ok(answer);
                }
                continue;
            }
            let answer = match self.known.take_fence(&ask.lock) {
                Some(fence) => self.fence_first(ask, fence, sent).await?,
                None => self.item_first(ask, sent).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(errors::contended())
    }

    /// Whether the owner asks again for a lock that this client holds for it.
    fn enters(&self, ask: &Ask, note: &KnownItem) -> bool {
        let held = note.record.phase == Phase::Held && note.end > self.clock.now();
        held && note.record.owner == ask.owner && !note.record.has(ask.req)
    }

    /// Adds a request to a hold. `None` when the hold is not what the note says.
    async fn enter(
        &self,
        ask: &Ask,
        note: KnownItem,
        sent: BootInstant,
    ) -> Result<Option<Answer>, Error> {
        let mut record = note.record.clone();
        record.reqs.push(ask.req);
        let left = secs(ask.ttl).max(until(&self.clock, note.end));
        match self.link.one(self.write(&record, left, If::Same(note.version))).await? {
            Reply::Done { version } => {
                self.note(record.clone(), version, note.since, sent, left);
                Ok(Some(granted(record.token, Duration::from_secs(left.into()))))
            }
            Reply::Changed | Reply::Missing => {
                self.known.forget(&ask.lock, note.record.reqs[0]);
                Ok(None)
            }
            other => Err(odd(&other)),
        }
    }

    async fn fence_first(
        &self,
        ask: &Ask,
        (last, version): (Token, Version),
        sent: BootInstant,
    ) -> Result<Option<Answer>, Error> {
        let (wall, left) = (self.clock.wall_micros(), secs(ask.ttl));
        let token = next(last.get(), wall);
        let record = Record::of(ask, token, wall);
        let commands = vec![
            self.raise(ask, token, If::Same(version)),
            self.write(&record, left, If::Absent),
            Command::Get { key: key::fence(&ask.lock) },
        ];
        let replies = self.link.call(commands).await?;
        let [raised, added, fence] = &replies[..] else { return Err(errors::garbage("too few")) };
        match (raised, added, fence) {
            (
                Reply::Done { version: ours },
                Reply::Done { version },
                Reply::Hit { version: seen, .. },
            ) if ours == seen => {
                self.known.raised(&ask.lock, token, *ours);
                self.note(record, *version, sent, sent, left);
                Ok(Some(granted(token, ask.ttl)))
            }
            (_, Reply::Done { version }, fence) => {
                self.commit(ask, record, *version, fence.clone(), sent).await
            }
            (_, Reply::Taken, _) => {
                let seen = self.link.one(Command::Get { key: key::lock(&ask.lock) }).await?;
                self.taken(ask, &seen, sent).await
            }
            (_, other, _) => Err(odd(other)),
        }
    }

    async fn item_first(&self, ask: &Ask, sent: BootInstant) -> Result<Option<Answer>, Error> {
        let wall = self.clock.wall_micros();
        let record = Record::of(ask, next(0, wall), wall);
        let commands = vec![
            self.write(&record, secs(ask.ttl), If::Absent),
            Command::Get { key: key::fence(&ask.lock) },
            Command::Get { key: key::lock(&ask.lock) },
        ];
        let mut replies = self.link.call(commands).await?.into_iter();
        match (replies.next(), replies.next(), replies.next()) {
            (Some(Reply::Done { version }), Some(fence), _) => {
                self.commit(ask, record, version, fence, sent).await
            }
            (Some(Reply::Taken), _, Some(seen)) => self.taken(ask, &seen, sent).await,
            (Some(other), ..) => Err(odd(&other)),
            (None, ..) => Err(errors::garbage("nothing")),
        }
    }

    /// Takes a token for an item that is ours and writes it there: the second half of the first way.
    async fn commit(
        &self,
        ask: &Ask,
        mut record: Record,
        mut version: Version,
        mut fence: Reply,
        sent: BootInstant,
    ) -> Result<Option<Answer>, Error> {
        let left = secs(ask.ttl);
        for _ in 0..RACES {
            let (last, when) = match &fence {
                Reply::Hit { value, version, .. } => (number(value), If::Same(*version)),
                Reply::Missing => (0, If::Absent),
                other => return Err(odd(other)),
            };
            let token = next(last, self.clock.wall_micros());
            record.token = token;
            let commands = vec![
                self.raise(ask, token, when),
                self.write(&record, left, If::Same(version)),
                Command::Get { key: key::fence(&ask.lock) },
            ];
            let mut replies = self.link.call(commands).await?.into_iter();
            let (raised, written, seen) = (replies.next(), replies.next(), replies.next());
            match (raised, written) {
                (Some(Reply::Done { version: ours }), Some(Reply::Done { version })) => {
                    self.known.raised(&ask.lock, token, ours);
                    self.note(record, version, sent, sent, left);
                    return Ok(Some(granted(token, ask.ttl)));
                }
                // A client that stalled raised the fence: it is not told this token, and neither are
                // we. Ours is the item still.
                (_, Some(Reply::Done { version: now })) => version = now,
                (_, Some(Reply::Changed | Reply::Missing)) => return Ok(None),
                (_, Some(other)) => return Err(odd(&other)),
                (_, None) => return Err(errors::garbage("too few")),
            }
            fence = seen.unwrap_or(Reply::Missing);
        }
        Err(errors::contended())
    }

    /// Something stands at the lock's key. `None` when it has gone meanwhile.
    async fn taken(
        &self,
        ask: &Ask,
        seen: &Reply,
        sent: BootInstant,
    ) -> Result<Option<Answer>, Error> {
        let (value, version, left) = match seen {
            Reply::Hit { value, version, left } => (value, *version, *left),
            Reply::Missing => return Ok(None),
            other => return Err(odd(other)),
        };
        let record = Record::read(value, Some(&ask.lock))?;
        if !record.has(ask.req) {
            let why = record.in_the_way(self.clock.wall_micros(), left);
            return Ok(Some(Answer::Busy { ahead: 0, why }));
        }
        if record.phase != Phase::Held {
            self.known.end_request(ask.req, RequestEnd::Cancelled);
            return Ok(Some(Answer::Tombstoned(End::Cancelled)));
        }
        let told = self.known.lock(&ask.lock).is_some_and(|n| n.record.token == record.token);
        // With others beside it, it entered a hold whose token was told.
        if told || record.reqs.len() > 1 {
            return Ok(Some(granted(record.token, replayed(ask.ttl, left))));
        }
        let fence = self.link.one(Command::Get { key: key::fence(&ask.lock) }).await?;
        self.commit(ask, record, version, fence, sent).await
    }

    /// The command that stores a record.
    pub(crate) fn write(&self, record: &Record, secs: u32, when: If) -> Command {
        Command::Set { key: key::lock(&record.lock), value: record.text(), secs, when }
    }

    fn raise(&self, ask: &Ask, token: Token, when: If) -> Command {
        let value = token.to_string().into_bytes();
        Command::Set { key: key::fence(&ask.lock), value, secs: FENCE_SECS, when }
    }

    /// Remembers what was written.
    pub(crate) fn note(
        &self,
        record: Record,
        version: Version,
        since: BootInstant,
        sent: BootInstant,
        left: u32,
    ) {
        let now = self.clock.now();
        let lease = Duration::from_secs(left.into());
        let margin = crate::capability().margin(lease);
        let (end, safe) = (now.plus(lease), sent.plus(lease).minus(margin));
        self.known.wrote(KnownItem { record, version, since, end, safe }, now);
    }
}

fn granted(token: Token, left: Duration) -> Answer {
    Answer::Granted { token, block: NonZeroU32::MIN, remaining: left, waiters: 0, floor: token }
}

/// One more than ever given out, or the wall clock, whichever is higher.
fn next(last: u64, wall: u64) -> Token {
    let token = last.saturating_add(1).max(wall).clamp(Token::MIN.get(), Token::MAX.get());
    Token::new(token).unwrap_or(Token::MAX)
}

/// The fence's number. What is none was not written by us, and the wall clock goes on from there.
fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|t| t.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_whatever_the_clock_says() {
        assert_eq!(next(7, 100).get(), 100);
        assert_eq!(next(100, 100).get(), 101);
        assert_eq!(next(100, 7).get(), 101);
        assert_eq!(next(0, 0), Token::MIN);
        assert_eq!(next(u64::MAX, 7), Token::MAX);
        assert_eq!((number(b"42"), number(b"x"), number(b"\xff")), (42, 0, 0));
    }
}
