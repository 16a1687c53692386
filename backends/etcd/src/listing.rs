//! Lists locks: all entries below a prefix, page by page as of one revision, put into lines.

use std::collections::BTreeMap;

use distlock_core::info::Query;
use distlock_core::line::Line;
use distlock_core::{Error, FullName};

use crate::client::Client;
use crate::wire::link::Tries;
use crate::wire::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::{keys, meta};

const PAGE: i64 = 1000;

/// Whole lines: of one lock, or of those of a prefix, in order of name.
pub(crate) async fn lines(client: &Client, query: &Query) -> Result<Vec<(FullName, Line)>, Error> {
    let prefix = match query {
        Query::Name(lock) => keys::line(lock),
        Query::Prefix { space, prefix, .. } => keys::of_names(space, prefix),
    };
    let (kvs, seen) = all(client, &prefix).await?;
    let wanted = |lock: &FullName| match query {
        Query::Name(name) => lock == name,
        Query::Prefix { space, prefix, after, .. } => {
            lock.space == *space
                && lock.name.as_str().starts_with(prefix)
                && after.as_ref().is_none_or(|after| lock.name > *after)
        }
    };
    let limit = match query {
        Query::Name(_) => usize::MAX,
        Query::Prefix { limit, .. } => *limit,
    };
    let wall = client.clock().wall_micros();
    let mut found: BTreeMap<FullName, Line> = BTreeMap::new();
    for kv in &kvs {
        let Some((lock, _)) = keys::parse(&kv.key).filter(|(lock, _)| wanted(lock)) else {
            continue;
        };
        found.entry(lock).or_default().entries.push(meta::told(kv, wall));
    }
    for line in found.values_mut() {
        line.entries.sort_by_key(|e| e.token);
        line.seen = u64::try_from(seen).unwrap_or(0);
    }
    Ok(found.into_iter().take(limit).collect())
}

/// Everything below a prefix.
async fn all(client: &Client, prefix: &str) -> Result<(Vec<KeyValue>, i64), Error> {
    let mut page = RangeRequest {
        key: prefix.into(),
        range_end: keys::after(prefix),
        limit: PAGE,
        ..RangeRequest::default()
    };
    let mut all = Vec::new();
    loop {
        let path = "/etcdserverpb.KV/Range";
        let said = client.link.call::<_, RangeResponse>(path, &page, Tries::Many).await?.said;
        if page.revision == 0 {
            page.revision = said.header.map_or(0, |h| h.revision);
        }
        let more = said.more;
        all.extend(said.kvs);
        let Some(last) = all.last().filter(|_| more) else { return Ok((all, page.revision)) };
        page.key = [&last.key[..], &[0]].concat();
    }
}
