//! What the plain recipe's two users share: one server (`plain.rs`) and a node of classic Redlock
//! (`redlock/plain.rs`). Which key it is, and what the scripts' answers say of whoever holds it.

use std::time::Duration;

use distlock_core::{
    Error, FullName, HoldInfo, Holder, Kind, Label, LockInfo, Mode, Owner, ReqId, Token,
};
use redis::Value;

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

/// A word of an answer as text.
pub(crate) fn text(word: Option<&Value>) -> Option<&str> {
    match word? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A word of an answer as a number.
pub(crate) fn number(word: Option<&Value>) -> Option<u64> {
    match word? {
        Value::Int(n) => u64::try_from(*n).ok(),
        other => text(Some(other))?.parse().ok(),
    }
}

/// A word of an answer as a token.
pub(crate) fn token(word: Option<&Value>) -> Option<Token> {
    number(word).and_then(|n| Token::new(n).ok())
}

/// What is left of a key; nothing is known of one that another client made without a TTL.
pub(crate) fn left(word: Option<&Value>) -> Option<Duration> {
    number(word).map(Duration::from_millis)
}

/// Owner, label, token and age, if the holder is one of ours.
pub(crate) fn holder(words: &[Value], left: Option<Duration>) -> Option<Holder> {
    Some(Holder {
        owner: Owner::named(text(words.first())?).ok()?,
        label: Label::new(text(words.get(1))?),
        token: token(words.get(2))?,
        age: Duration::from_micros(number(words.get(3))?),
        left,
    })
}

/// A lock as an operator sees it: its value, what is left, and its holder if that is one of ours.
/// `None` when nobody holds it.
///
/// # Errors
/// What `odd` makes of a value that is none.
pub(crate) fn view(
    lock: &FullName,
    words: &[Value],
    odd: impl Fn(&Value) -> Error,
) -> Result<Option<LockInfo>, Error> {
    let Some(held) = words.first() else { return Ok(None) };
    let Value::BulkString(value) = held else { return Err(odd(held)) };
    let (value, left) = (String::from_utf8_lossy(value), left(words.get(1)));
    let holder = match holder(words.get(2..).unwrap_or_default(), left) {
        Some(holder) => holder,
        None => Holder {
            owner: Owner::named("foreign")?,
            label: Label::new("a client that is not distlock's"),
            token: Token::MIN,
            age: Duration::ZERO,
            left,
        },
    };
    // The value is how a holder proves itself: only the request id of ours is shown.
    let req = value.get(..32).and_then(|v| v.parse().ok()).unwrap_or(ReqId::from_bytes([0; 16]));
    let hold = HoldInfo {
        req,
        holder,
        mode: Mode::Exclusive,
        lingering: value.ends_with(":released"),
        revoked: value.ends_with(":revoked"),
    };
    Ok(Some(LockInfo { lock: lock.clone(), holds: vec![hold], waiters: Vec::new() }))
}
