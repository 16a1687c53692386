//! What an operator sees: one lock by its name, or those of a prefix.

use distlock_core::{Error, LockInfo, Query};

use crate::dump;
use crate::errors::odd;
use crate::key;
use crate::record::Record;
use crate::store::Inner;
use crate::wire::{Command, Reply};

/// Max items read with one packet.
const AT_ONCE: usize = 256;

impl Inner {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let (space, prefix, after, limit) = match query {
            Query::Name(lock) => {
                let wall = self.clock.wall_micros();
                let seen = self.see(lock).await?;
                return Ok(seen.iter().map(|s| s.record.info(wall, s.left)).collect());
            }
            Query::Prefix { space, prefix, after, limit } => (space, prefix, after, *limit),
        };
        let ours = key::locks_of(space);
        let mut keys = dump::keys(&self.address, &self.clock, &ours).await?;
        let wanted = |name: &str| {
            name.starts_with(prefix) && after.as_ref().is_none_or(|a| name > a.as_str())
        };
        // What is only a hash has to be read to be known.
        keys.retain(|k| key::decoded(&k[ours.len()..]).is_none_or(|n| wanted(n.as_str())));
        let mut found = Vec::new();
        for some in keys.chunks(AT_ONCE) {
            let get = |k: &String| Command::Get { key: k.clone() };
            let replies = self.link.call(some.iter().map(get).collect()).await?;
            let wall = self.clock.wall_micros();
            for reply in replies {
                match reply {
                    Reply::Hit { value, left, .. } => {
                        let record = Record::read(&value, None)?;
                        if wanted(record.lock.name.as_str()) {
                            found.push(record.info(wall, left));
                        }
                    }
                    Reply::Missing => {}
                    other => return Err(odd(&other)),
                }
            }
        }
        found.sort_by(|a, b| a.lock.cmp(&b.lock));
        found.truncate(limit);
        Ok(found)
    }
}
