//! What the plain recipe's two users share: one server (`plain.rs`) and a node of classic Redlock
//! (`redlock/plain.rs`). The lock's key, and decoding of the holder from script replies.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

use distlock_core::{
    Error, FullName, HoldInfo, Holder, Kind, Label, LockInfo, Mode, Owner, ReqId, Token,
};
use redis::Value;

use crate::connection::Script;
use crate::errors::odd;
use crate::reply_cursor::ReplyCursor;

/// The recipe's key: the lock's name, so that foreign clients exclude us and we them; in a
/// namespace, one under our own prefix, where no name without a namespace can be.
///
/// # Errors
/// [`Kind::Usage`] for a name that starts as our own keys do.
pub(crate) fn key(lock: &FullName, prefix: &str, taken: &[&str]) -> Result<String, Error> {
    let name = match lock.space.as_str() {
        "" => lock.name.to_string(),
        space => return Ok(format!("{prefix}p:{space}:{}", lock.name)),
    };
    if !taken.iter().any(|ours| name.starts_with(ours)) {
        return Ok(name);
    }
    let what = format!("{name:?} is among the keys of distlock itself");
    Err(Error::new(Kind::Usage, what).lock(lock).with_hint(format!(
        "with algorithm=plain a lock's name is its key: use one that does not start with {}",
        taken.join(" or ")
    )))
}

/// Owner, label, token and age, if the holder is one of ours.
pub(crate) fn holder(mut words: ReplyCursor<'_>, left: Option<Duration>) -> Option<Holder> {
    Some(Holder {
        owner: Owner::named(words.text()?).ok()?,
        label: Label::new(words.text()?),
        token: Token::new(words.parsed()?).ok()?,
        age: Duration::from_micros(words.parsed()?),
        left,
    })
}

/// Looks at the recipe's key of each lock, and at what is known of its holder.
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new("inspect", include_str!("plain/inspect.lua").to_owned()));

/// What [`INSPECT`] answered: those of the locks that somebody holds.
pub(crate) fn inspected(locks: &[FullName], value: &Value) -> Result<Vec<LockInfo>, Error> {
    let words = ReplyCursor::of(value).ok_or_else(|| odd(value))?;
    let seen =
        locks.iter().zip(words.0).filter_map(|(lock, answer)| view(lock, answer).transpose());
    seen.collect()
}

/// A lock as an operator sees it: its value, what is left, and its holder if that is one of ours.
/// `None` when nobody holds it.
///
/// # Errors
/// An answer that makes no sense.
fn view(lock: &FullName, answer: &Value) -> Result<Option<LockInfo>, Error> {
    let mut words = ReplyCursor::of(answer).ok_or_else(|| odd(answer))?;
    if words.0.is_empty() {
        return Ok(None);
    }
    let value = words.bytes().ok_or_else(|| odd(answer))?;
    let (value, left) = (String::from_utf8_lossy(value), words.key_left());
    let foreign = Holder {
        owner: Owner::named("foreign")?,
        label: Label::new("a client that is not distlock's"),
        token: Token::MIN,
        age: Duration::ZERO,
        left,
    };
    let holder = holder(words, left).unwrap_or(foreign);
    // The value is how a holder proves itself: only the request id of ours is shown.
    let req = value.get(..32).and_then(|v| v.parse().ok()).unwrap_or(ReqId::from_bytes([0; 16]));
    let hold = HoldInfo {
        req,
        holder,
        tokens: NonZeroU32::MIN,
        mode: Mode::Exclusive,
        lingering: value.ends_with(":released"),
        revoked: value.ends_with(":revoked"),
    };
    Ok(Some(LockInfo { lock: lock.clone(), holds: vec![hold], waiters: Vec::new() }))
}
