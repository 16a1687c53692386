//! From a URL to a store that answers.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use distlock_core::backend::Backend;
use distlock_core::lease::Wake;
use distlock_core::url::{Secret, StoreUrl};
use distlock_core::{Clock, Error, Kind as Trouble, ReqId, Store};

use crate::address::{Address, Entry};
use crate::capability::Kind;
use crate::cluster::Cluster;
use crate::keys::PREFIX;
use crate::node::{Node, Shared};
use crate::options::{Algorithm, RedisOptions};
use crate::plain::Plain;
use crate::primary::{PrimaryAddress, Watched};
use crate::quarantine;
use crate::redlock;
use crate::router::Router;
use crate::store::Redis;

/// The schemes of the redis stores.
pub const SCHEMES: [&str; 16] = [
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+unix",
    "valkey+sentinel",
    "valkeys+sentinel",
    "valkey+cluster",
    "valkeys+cluster",
    "redlock",
    "redlocks",
];

/// Connects to the store that a URL of one of [`SCHEMES`] names.
///
/// # Errors
/// [`Usage`](Trouble::Usage) for a URL that cannot be, [`Refused`](Trouble::Refused) for a server on
/// which locks cannot be kept, [`Credentials`](Trouble::Credentials), and whatever keeps the server
/// from answering.
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    if redlock::SCHEMES.contains(&url.scheme.as_str()) {
        return redlock::open(url).await;
    }
    let target = Target::of(url)?;
    Ok(match target.options.algorithm {
        Algorithm::Script => Redis::at(&target).await?.into_backend(),
        Algorithm::Plain => Plain::at(&target).await?.into_backend(),
    })
}

/// Where a store is and how it is entered: what a URL says, checked.
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) options: RedisOptions,
    pub(crate) site: String,
    entry: Entry,
    hosts: Vec<Address>,
    name: String,
}

impl Target {
    /// Reads a URL.
    pub(crate) fn of(mut url: StoreUrl) -> Result<Self, Error> {
        // The same protocol under another name.
        if let Some(rest) = url.scheme.strip_prefix("valkey") {
            url.scheme = format!("redis{rest}");
        }
        let options = RedisOptions::take_from(&mut url)?;
        let db_of_query = url.take("db");
        url.finish(&[&RedisOptions::KEYS[..], &["db", "namespace", "require"]].concat())?;
        let site = url.to_string();
        let kind = match url.scheme.split_once('+').map(|(_, kind)| kind) {
            Some("sentinel") => Kind::Sentinel,
            Some("cluster") => Kind::Cluster,
            _ => Kind::Single,
        };
        let unix = url.scheme == "redis+unix";
        let path = if unix { "" } else { &url.path };
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let mut name = String::new();
        let mut hosts: Vec<Address> = Vec::new();
        match kind {
            Kind::Single if unix => {
                if !url.hosts.is_empty() || url.path.is_empty() {
                    return Err(usage("a Unix socket is a path")
                        .with_hint("redis+unix:/run/redis/redis.sock, and ?db=1 for a database"));
                }
                hosts.push(Address::Unix(PathBuf::from(&url.path)));
            }
            Kind::Sentinel => {
                let sentinel = "redis+sentinel://s1,s2,s3/NAME: the sentinels and what they watch";
                name = parts.next().unwrap_or_default().to_owned();
                if name.is_empty() || url.hosts.is_empty() {
                    return Err(usage("which primary is meant?").with_hint(sentinel));
                }
                hosts.extend(url.hosts.iter().map(Address::of_sentinel));
            }
            Kind::Cluster => hosts.extend(url.hosts.iter().map(Address::of)),
            Kind::Single => {
                if url.hosts.len() > 1 {
                    return Err(usage("one server has one host").with_hint(
                        "redis+cluster:// and redis+sentinel:// take several, redlock:// makes one \
                         lock of several servers",
                    ));
                }
                hosts.extend(url.hosts.iter().map(Address::of));
            }
        }
        if hosts.is_empty() {
            return Err(usage("which host?").with_hint("for example redis://127.0.0.1:6379"));
        }
        let db = database(kind, db_of_query.as_deref().or(parts.next()), parts.next())?;
        if kind == Kind::Cluster && options.algorithm == Algorithm::Plain {
            return Err(Error::new(
                Trouble::Unsupported,
                "the plain recipe is not served in a cluster",
            )
            .with_hint(
                "its fence counter would have to share the slot of a key whose name is not \
                     ours to choose; use the default algorithm there",
            ));
        }
        let entry = Entry::of(&url, db, &options.tls)?;
        Ok(Self { kind, options, site, entry, hosts, name })
    }

    /// The servers, none of them connected yet. `reads` reads what they tell unasked.
    pub(crate) fn router(&self, reads: fn(&[u8]) -> Option<Wake>) -> (Arc<Shared>, Router) {
        let shared = Arc::new(Shared {
            entry: self.entry.clone(),
            options: self.options.clone(),
            clock: Clock::system(),
            sink: OnceLock::new(),
            reads,
            closed: AtomicBool::new(false),
        });
        let session = ReqId::random().to_string();
        let router = match self.kind {
            Kind::Cluster => {
                Router::Many(Cluster::new(shared.clone(), self.hosts.clone(), session))
            }
            Kind::Single | Kind::Sentinel => {
                let via = format!("{PREFIX}s:{session}");
                let marker = Box::new(|| Some(quarantine::marker()));
                Router::One(Node::new(shared.clone(), self.place(), via, marker, false))
            }
        };
        (shared, router)
    }

    fn place(&self) -> PrimaryAddress {
        match self.kind {
            Kind::Sentinel => {
                let entry = Entry {
                    user: None,
                    password: self.options.sentinel_password.clone().map(Secret::new),
                    db: 0,
                    ..self.entry.clone()
                };
                let watched = Watched::new(self.name.clone(), self.hosts.clone(), entry);
                PrimaryAddress::Watched(Arc::new(watched))
            }
            _ => PrimaryAddress::Fixed(self.hosts[0].clone()),
        }
    }
}

fn database(kind: Kind, text: Option<&str>, rest: Option<&str>) -> Result<i64, Error> {
    let wrong = |what: &str| usage(what.to_owned()).with_hint("redis://HOST:PORT/DB, as in …/0");
    if rest.is_some() {
        return Err(wrong("the URL's path has too many parts"));
    }
    let Some(text) = text else { return Ok(0) };
    let db = text.parse().ok().filter(|db| (0..=9999).contains(db));
    let db = db.ok_or_else(|| wrong(&format!("{text:?} is not the number of a database")))?;
    if kind == Kind::Cluster && db != 0 {
        return Err(usage("a cluster has only database 0").with_hint("leave the path out"));
    }
    Ok(db)
}

fn usage(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Trouble::Usage, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target, Error> {
        Target::of(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn every_form_of_url_is_understood() {
        let good = [
            ("redis://h", Kind::Single, "h:6379", 0),
            ("rediss://u:p@h:1/3", Kind::Single, "h:1", 3),
            ("redis://[::1]:7/2", Kind::Single, "[::1]:7", 2),
            ("redis+unix:/run/r.sock?db=4", Kind::Single, "/run/r.sock", 4),
            ("redis+sentinel://a,b:2/main/5", Kind::Sentinel, "a:26379", 5),
            ("redis+cluster://a,b", Kind::Cluster, "a:6379", 0),
            ("valkeys+cluster://a", Kind::Cluster, "a:6379", 0),
        ];
        for (url, kind, host, db) in good {
            let target = target(url).unwrap_or_else(|e| panic!("{url}: {e:?}"));
            let found = (target.kind, target.hosts[0].to_string(), target.entry.db);
            assert_eq!(found, (kind, host.to_owned(), db), "{url}");
        }
    }

    #[test]
    fn wrong_urls_say_what_is_allowed() {
        let wrong = [
            "redis:",
            "redis://",
            "redis://a,b",
            "redis://h/x",
            "redis://h/1/2",
            "redis://h/-1",
            "redis+unix:",
            "redis+unix://h/x",
            "redis+sentinel://a",
            "redis+sentinel://a/",
            "redis+cluster://a/1",
            "redis+cluster://a?algorithm=plain",
            "redis://h?nonsense=1",
            "redis://h?ca=x",
            "rediss://h?ca=no-such-file",
        ];
        for url in wrong {
            let e = target(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(e.hint().is_some(), "{url}: {e:?}");
        }
    }
}
