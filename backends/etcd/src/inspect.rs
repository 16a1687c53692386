//! Lists locks: all entries below a prefix, page by page as of one revision, put into lines.

use std::collections::BTreeMap;

use distlock_core::queue::Snapshot;
use distlock_core::{Error, FullName, Query};

use crate::{client::Client, entry, keys, wire::proto::RangeRequest};

/// A page is some hundred kilobytes.
const PAGE: i64 = 256;

/// Whole lines: of one lock, or of those of a prefix, in order of name.
pub(crate) async fn queues(
    client: &Client,
    query: &Query,
) -> Result<Vec<(FullName, Snapshot)>, Error> {
    let (prefix, limit) = match query {
        Query::Name(lock) => (keys::queue(lock), usize::MAX),
        Query::Prefix { space, prefix, limit, .. } => (keys::of_names(space, prefix), *limit),
    };
    let mut page = RangeRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: keys::after(&prefix),
        limit: PAGE,
        ..RangeRequest::default()
    };
    let wall = client.clock().wall_micros();
    let mut found: BTreeMap<FullName, Snapshot> = BTreeMap::new();
    loop {
        let said = client.link.call(&page).await?.said;
        if page.revision == 0 {
            page.revision = said.header.map_or(0, |h| h.revision);
        }
        for kv in &said.kvs {
            let lock = keys::parse(&kv.key).map(|(lock, _)| lock).filter(|lock| asked(query, lock));
            if let Some(lock) = lock {
                found.entry(lock).or_default().entries.push(entry::told(kv, wall));
            }
        }
        match said.kvs.last().filter(|_| said.more) {
            Some(last) => page.key = [&last.key[..], &[0]].concat(),
            None => break,
        }
    }
    for line in found.values_mut() {
        line.entries.sort_by_key(|e| e.token);
        line.seen = u64::try_from(page.revision).unwrap_or(0);
    }
    Ok(found.into_iter().take(limit).collect())
}

fn asked(query: &Query, lock: &FullName) -> bool {
    match query {
        Query::Name(name) => lock == name,
        Query::Prefix { space, prefix, after, .. } => {
            lock.space == *space
                && lock.name.as_str().starts_with(prefix)
                && after.as_ref().is_none_or(|after| lock.name > *after)
        }
    }
}
