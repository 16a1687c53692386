//! Finding the locks whose names start with something.

use distlock_core::{Error, FullName, Namespace};
use redis::Value;

use crate::keys::{Keys, PREFIX};
use crate::node::Node;
use std::sync::Arc;

/// How many keys the server looks at in one step: a step must not delay others.
const STEP: usize = 1000;

/// The locks of a namespace whose names start with `prefix`, at one server: those that have a key
/// with this ending and of this type.
pub(crate) async fn scan(
    node: &Arc<Node>,
    space: &Namespace,
    prefix: &str,
    (part, kind): (&str, &str),
) -> Result<Vec<FullName>, Error> {
    let link = node.link().await?;
    let pattern = pattern(space, prefix) + part;
    let (mut cursor, mut found) = (0u64, Vec::new());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP).arg("TYPE").arg(kind);
        let answer = link.wire.send(&cmd).await.map_err(|fault| fault.told())?;
        let (next, keys): (u64, Vec<Value>) = redis::from_redis_value(answer).map_err(|e| {
            Error::new(distlock_core::Kind::Store, "SCAN makes no sense").because(e)
        })?;
        let bytes = |key: &Value| match key {
            Value::BulkString(key) => Keys::lock_of(key.strip_suffix(part.as_bytes())?),
            Value::SimpleString(key) => Keys::lock_of(key.strip_suffix(part)?.as_bytes()),
            _ => None,
        };
        let ours = keys.iter().filter_map(bytes);
        found.extend(ours.filter(|l| l.space == *space && l.name.as_str().starts_with(prefix)));
        cursor = next;
        if cursor == 0 {
            return Ok(found);
        }
    }
}

/// What `SCAN` matches. The end of the prefix may be encoded, so it is left to the caller's look.
fn pattern(space: &Namespace, prefix: &str) -> String {
    let plain: String = prefix
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | ':'))
        .collect();
    format!("{PREFIX}{{{space}:{plain}*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_never_means_more_than_it_says() {
        let space = Namespace::new("a-b").unwrap();
        assert_eq!(pattern(&space, "x/y*z"), "dl:{a-b:x/y*");
        assert_eq!(pattern(&space, "{x"), "dl:{a-b:*");
    }
}
