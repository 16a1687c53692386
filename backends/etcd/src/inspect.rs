//! Lists locks: all entries below a prefix, page by page as of one revision, put into lines.

use std::collections::BTreeMap;

use distlock_core::info::Query;
use distlock_core::queue::Line;
use distlock_core::{Error, FullName};

use crate::client::Client;
use crate::wire::calls::Tries;
use crate::wire::proto::{RangeRequest, RangeResponse};
use crate::{entry_value, keys};

/// A page is some hundred kilobytes.
const PAGE: i64 = 256;

/// Whole lines: of one lock, or of those of a prefix, in order of name.
pub(crate) async fn lines(client: &Client, query: &Query) -> Result<Vec<(FullName, Line)>, Error> {
    let (prefix, limit) = match query {
        Query::Name(lock) => (keys::line(lock), usize::MAX),
        Query::Prefix { space, prefix, limit, .. } => (keys::of_names(space, prefix), *limit),
    };
    let mut page = RangeRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: keys::after(&prefix),
        limit: PAGE,
        ..RangeRequest::default()
    };
    let wall = client.clock().wall_micros();
    let mut found: BTreeMap<FullName, Line> = BTreeMap::new();
    loop {
        let path = "/etcdserverpb.KV/Range";
        let said = client.link.call::<_, RangeResponse>(path, &page, Tries::Many).await?.said;
        if page.revision == 0 {
            page.revision = said.header.map_or(0, |h| h.revision);
        }
        for kv in &said.kvs {
            let lock = keys::parse(&kv.key).map(|(lock, _)| lock).filter(|lock| asked(query, lock));
            if let Some(lock) = lock {
                found.entry(lock).or_default().entries.push(entry_value::told(kv, wall));
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
