//! Listing locks: their names by one scan of the keys, however many pages follow, then a look at each.

use std::time::Duration;

use distlock_core::{
    BootInstant, Clock, Error, FullName, Kind, LockInfo, Mutex, Name, Namespace, Query,
};
use redis::Value;

use crate::checked_connection::CheckedConnection;
use crate::keys::{Keys, PREFIX};
use crate::script_calls::BATCH;

/// How long the names of a list may be used for its next pages.
const PAGES: Duration = Duration::from_secs(30);
/// How many keys the server looks at in one step: a step must not delay others.
const STEP: usize = 1000;

/// The names that the last list had not come to.
#[derive(Default)]
pub(crate) struct Listing(Mutex<Option<Rest>>);

struct Rest {
    space: Namespace,
    prefix: String,
    /// The last name of the page before.
    after: Name,
    names: Vec<FullName>,
    until: BootInstant,
}

impl Listing {
    /// One page of what a query asks for: names from `scan`, unless this continues the last list, and
    /// of those what `look` finds in use. A record stays for a day after its last use, so most of
    /// them may be free.
    pub(crate) async fn page<'a, S, L>(
        &self,
        clock: &Clock,
        query: &'a Query,
        scan: impl FnOnce(&'a Namespace, &'a str) -> S,
        look: impl Fn(Vec<FullName>) -> L,
    ) -> Result<Vec<LockInfo>, Error>
    where
        S: Future<Output = Result<Vec<FullName>, Error>>,
        L: Future<Output = Result<Vec<LockInfo>, Error>>,
    {
        let (space, prefix, after, limit) = match query {
            Query::Name(lock) => return look(vec![lock.clone()]).await,
            Query::Prefix { space, prefix, after, limit } => (space, prefix, after, *limit),
        };
        let names = match self.continued(clock, space, prefix, after.as_ref()) {
            Some(names) => names,
            None => {
                let mut names = scan(space, prefix).await?;
                names.sort();
                names.dedup();
                names.retain(|lock| after.as_ref().is_none_or(|after| lock.name > *after));
                names
            }
        };
        let mut found = Vec::new();
        for names in names.chunks(BATCH) {
            found.extend(look(names.to_vec()).await?);
            if found.len() >= limit {
                break;
            }
        }
        found.sort_by(|a, b| a.lock.cmp(&b.lock));
        found.truncate(limit);
        if let Some(last) = found.get(limit - 1) {
            let rest = names.partition_point(|lock| *lock <= last.lock);
            *self.0.lock() = Some(Rest {
                space: space.clone(),
                prefix: prefix.clone(),
                after: last.lock.name.clone(),
                names: names[rest..].to_vec(),
                until: clock.now().plus(PAGES),
            });
        }
        Ok(found)
    }

    /// The names of a page and of all that follow it, if it continues the last list.
    fn continued(
        &self,
        clock: &Clock,
        space: &Namespace,
        prefix: &str,
        after: Option<&Name>,
    ) -> Option<Vec<FullName>> {
        let rest = self.0.lock().take()?;
        let same = rest.space == *space && rest.prefix == prefix && Some(&rest.after) == after;
        (same && clock.now() < rest.until).then_some(rest.names)
    }
}

/// Which keys stand for locks in a list.
pub(crate) struct Listed {
    /// What all keys begin with.
    pub(crate) prefix: &'static str,
    /// What follows the name of the lock.
    pub(crate) part: &'static str,
    /// The type of the key.
    pub(crate) kind: &'static str,
}

/// The locks of a namespace whose names start with `prefix`, at one server.
pub(crate) async fn scan(
    link: &CheckedConnection,
    listed: &Listed,
    space: &Namespace,
    prefix: &str,
) -> Result<Vec<FullName>, Error> {
    let pattern = pattern(listed, space, prefix);
    let (mut cursor, mut found) = (0u64, Vec::new());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        cmd.arg("TYPE").arg(listed.kind);
        let answer = link.wire.send(&cmd).await.map_err(|fault| fault.told())?;
        let (next, keys): (u64, Vec<Value>) = redis::from_redis_value(answer)
            .map_err(|e| Error::new(Kind::Store, "SCAN makes no sense").because(e))?;
        let ours = keys.iter().filter_map(|key| match key {
            Value::BulkString(key) => lock_of(listed, key),
            Value::SimpleString(key) => lock_of(listed, key.as_bytes()),
            _ => None,
        });
        found.extend(ours.filter(|l| l.space == *space && l.name.as_str().starts_with(prefix)));
        cursor = next;
        if cursor == 0 {
            return Ok(found);
        }
    }
}

fn lock_of(listed: &Listed, key: &[u8]) -> Option<FullName> {
    let name = key.strip_prefix(listed.prefix.as_bytes())?.strip_suffix(listed.part.as_bytes())?;
    Keys::lock_of(&[PREFIX.as_bytes(), name].concat())
}

/// What `SCAN` matches. The end of the prefix may be encoded, so what is found is looked at again.
fn pattern(listed: &Listed, space: &Namespace, prefix: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | ':');
    let sure: String = prefix.chars().take_while(plain).collect();
    format!("{}{{{space}:{sure}*}}{}", listed.prefix, listed.part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_never_means_more_than_it_says() {
        let space = Namespace::new("a-b").unwrap();
        let listed = Listed { prefix: PREFIX, part: ":i", kind: "hash" };
        assert_eq!(pattern(&listed, &space, "x/y*z"), "dl:{a-b:x/y*}:i");
        assert_eq!(pattern(&listed, &space, "{x"), "dl:{a-b:*}:i");
    }
}
