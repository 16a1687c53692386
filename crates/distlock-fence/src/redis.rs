//! Keys of Redis that go only forward: one script compares, remembers and writes.
//!
//! 1. Refuse a token below the one in the fence key.
//! 2. Put the token into the fence key.
//! 3. Do the effect.
//!
//! A script is not undone when its effect fails (a key of another type): the fence goes first, so
//! that the worst is a fence that rose for nothing. Tokens are compared as text of nineteen
//! digits, because the numbers of Lua are doubles and cannot tell 2^53 from 2^53 + 1.

use distlock_core::Token;
use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs, Value};

use crate::{Error, Stale};

/// The check, before each effect. `KEYS[2]` is the fence; it never expires.
const GUARD: &str = "\
local seen = redis.call('GET', KEYS[2])
if seen and (#seen ~= 21 or string.sub(seen, 1, 2) ~= '1 ') then
  return redis.error_reply('DISTLOCK layout of the fence')
end
local token = '1 ' .. ARGV[1]
if seen and seen > token then return {0, string.sub(seen, 3)} end
if seen ~= token then redis.call('SET', KEYS[2], token) end
";

const SET: &str = "return {1, redis.call('SET', KEYS[1], ARGV[2])}";
const HSET: &str = "return {1, redis.call('HSET', KEYS[1], unpack(ARGV, 2))}";
const INCRBY: &str = "return {1, redis.call('INCRBY', KEYS[1], ARGV[2])}";
const HINCRBY: &str = "return {1, redis.call('HINCRBY', KEYS[1], ARGV[2], ARGV[3])}";
const DEL: &str = "return {1, redis.call('DEL', KEYS[1])}";

/// A key that only holders of rising tokens write. It stays an ordinary key: readers `GET` it.
///
/// The fence is a key beside it, without expiry; in a cluster it is in the same slot, unless the
/// key has braces that are no hash tag, which the cluster then refuses. Keep it: whoever
/// deletes it, or a server that evicts keys without expiry (`allkeys-…`), forgets who was here.
/// A primary that fails over before replication forgets as well; where that matters, fence in a
/// database.
#[derive(Clone, Debug)]
pub struct FencedKey {
    key: String,
    fence: String,
}

impl FencedKey {
    /// A key by its name.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        let key = key.into();
        Self { fence: beside(&key), key }
    }

    /// The name of the key that holds the fence, for access rules.
    #[must_use]
    pub fn fence_key(&self) -> &str {
        &self.fence
    }

    /// `SET`: replaces the value, and with it an expiry the key may have had.
    ///
    /// # Errors
    /// [`Error::Stale`] when a higher token was here; [`Error::Layout`] when the fence is not one;
    /// [`Error::Store`] for Redis' own, and after a broken connection it may have happened.
    ///
    /// # Cancel safety
    /// When dropped it may still happen, once. Repeating it with the same token is harmless.
    pub async fn set(
        &self,
        con: &mut impl ConnectionLike,
        token: Token,
        value: impl ToRedisArgs,
    ) -> Result<(), Error> {
        self.run::<()>(con, token, SET, value).await
    }

    /// `HSET` of some fields; gives the number of new ones.
    ///
    /// # Errors
    /// As [`FencedKey::set`]; [`Error::Usage`] without a field.
    ///
    /// # Cancel safety
    /// As [`FencedKey::set`].
    pub async fn hset<F: ToRedisArgs, V: ToRedisArgs>(
        &self,
        con: &mut impl ConnectionLike,
        token: Token,
        fields: &[(F, V)],
    ) -> Result<i64, Error> {
        if fields.is_empty() {
            return Err(Error::Usage(format!("no field of {:?} to set", self.key)));
        }
        self.run(con, token, HSET, fields).await
    }

    /// `INCRBY`; gives the new number.
    ///
    /// # Errors
    /// As [`FencedKey::set`].
    ///
    /// # Cancel safety
    /// When dropped, or when its answer is lost, it may still happen, once; asking again may add
    /// twice.
    pub async fn incr_by(
        &self,
        con: &mut impl ConnectionLike,
        token: Token,
        by: i64,
    ) -> Result<i64, Error> {
        self.run(con, token, INCRBY, by).await
    }

    /// `HINCRBY` of a field; gives the new number.
    ///
    /// # Errors
    /// As [`FencedKey::set`].
    ///
    /// # Cancel safety
    /// As [`FencedKey::incr_by`].
    pub async fn hincr_by(
        &self,
        con: &mut impl ConnectionLike,
        token: Token,
        field: impl ToRedisArgs,
        by: i64,
    ) -> Result<i64, Error> {
        self.run(con, token, HINCRBY, (field, by)).await
    }

    /// `DEL`; whether there was something. The fence stays.
    ///
    /// # Errors
    /// As [`FencedKey::set`].
    ///
    /// # Cancel safety
    /// As [`FencedKey::set`].
    pub async fn del(&self, con: &mut impl ConnectionLike, token: Token) -> Result<bool, Error> {
        self.run(con, token, DEL, None::<&str>).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        con: &mut impl ConnectionLike,
        token: Token,
        effect: &str,
        args: impl ToRedisArgs,
    ) -> Result<T, Error> {
        let script = Script::new(&format!("{GUARD}{effect}"));
        let mut call = script.prepare_invoke();
        call.key(&self.key).key(&self.fence).arg(format!("{:019}", token.get())).arg(args);
        let (allowed, answer): (bool, Value) = call.invoke_async(con).await.map_err(trouble)?;
        if allowed {
            return T::from_redis_value(answer).map_err(|e| Error::Store(Box::new(e)));
        }
        let highest = String::from_redis_value(answer).map_err(|e| Error::Store(Box::new(e)))?;
        let highest = highest.parse().map_err(|_| Error::Layout(format!("fence {highest:?}")))?;
        Err(Stale { resource: self.key.clone(), token, highest }.into())
    }
}

fn trouble(e: RedisError) -> Error {
    match e.code() {
        Some("DISTLOCK") => {
            Error::Layout("the fence key holds something else, or a newer layout".to_owned())
        }
        _ => Error::Store(Box::new(e)),
    }
}

/// A key in the same slot: one that has a hash tag keeps it, another becomes the tag.
fn beside(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    match tag {
        Some((tag, _)) if !tag.is_empty() => format!("distlock:fence:{key}"),
        _ => format!("distlock:fence:{{{key}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_lies_in_the_slot_of_its_key() {
        assert_eq!(beside("stock"), "distlock:fence:{stock}");
        assert_eq!(beside("{shop}:stock"), "distlock:fence:{shop}:stock");
    }
}
