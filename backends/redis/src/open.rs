//! From a URL to a store that answers.

use std::path::PathBuf;
use std::sync::Arc;

use distlock_core::url::usage;
use distlock_core::{Backend, Error, Kind as Trouble, ReqId, Store, StoreUrl, Wake};

use crate::address::{Address, Credentials, PORT, SENTINEL_PORT};
use crate::options::{Algorithm, RedisOptions};
use crate::primary::{PrimaryAddress, Watched};
use crate::reconnect::{Reconnecting, Shared};
use crate::router::{Router, Servers};
use crate::{
    capability::Kind, cluster::Cluster, inspect::Listing, keys::PREFIX, plain::Plain, quarantine,
    redlock, store::Redis,
};

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

/// How a URL names a database.
const DATABASE: &str = "redis://HOST:PORT/DB, as in …/0";

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
        Algorithm::Script => Redis::at(target).await?.into_backend(),
        Algorithm::Plain => Plain::at(target).await?.into_backend(),
    })
}

/// Where a store is and how it is entered: what a URL says, checked.
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) options: RedisOptions,
    pub(crate) site: String,
    credentials: Credentials,
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
        url.finish(&["namespace", "require"])?;
        let site = url.to_string();
        let kind = match url.scheme.split_once('+').map(|(_, kind)| kind) {
            Some("sentinel") => Kind::Sentinel,
            Some("cluster") => Kind::Cluster,
            _ => Kind::Single,
        };
        let unix = url.scheme == "redis+unix";
        let path = if unix { "" } else { &url.path };
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let name = match kind {
            Kind::Sentinel => parts.next().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        if kind == Kind::Sentinel && (name.is_empty() || url.hosts.is_empty()) {
            return Err(usage("which primary is meant?")
                .with_hint("redis+sentinel://s1,s2,s3/NAME: the sentinels and what they watch"));
        }
        if unix && (!url.hosts.is_empty() || url.path.is_empty()) {
            return Err(usage("a Unix socket is a path")
                .with_hint("redis+unix:/run/redis/redis.sock, and ?db=1 for a database"));
        }
        if kind == Kind::Single && url.hosts.len() > 1 {
            return Err(usage("one server has one host").with_hint(
                "redis+cluster:// and redis+sentinel:// take several, redlock:// makes one \
                 lock of several servers",
            ));
        }
        let port = if kind == Kind::Sentinel { SENTINEL_PORT } else { PORT };
        let mut hosts: Vec<_> = url.hosts.iter().map(|host| Address::of(host, port)).collect();
        if unix {
            hosts.push(Address::Unix(PathBuf::from(&url.path)));
        }
        if hosts.is_empty() {
            return Err(usage("which host?").with_hint("for example redis://127.0.0.1:6379"));
        }
        let of_path = parts.next();
        if parts.next().is_some() {
            return Err(usage("the URL's path has too many parts").with_hint(DATABASE));
        }
        let db = database(db_of_query.as_deref().or(of_path), DATABASE)?;
        if kind == Kind::Cluster && db != 0 {
            return Err(usage("a cluster has only database 0").with_hint("leave the path out"));
        }
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
        let credentials = Credentials::of(&url, db, &options.tls)?;
        Ok(Self { kind, options, site, credentials, hosts, name })
    }

    /// The servers, of which enough are connected. `reads` reads what they tell unasked.
    pub(crate) async fn connect(self, reads: fn(&[u8]) -> Option<Wake>) -> Result<Router, Error> {
        let Self { kind, options, site, credentials, mut hosts, name } = self;
        let sentinel_password = options.sentinel_password.clone();
        let shared = Shared::new(credentials.clone(), options, reads);
        let session = ReqId::random().to_string();
        let one = |primary| {
            let (via, marker) =
                (format!("{PREFIX}s:{session}"), || Some(quarantine::marker(PREFIX)));
            Servers::One(Reconnecting::new(shared.clone(), primary, via, Box::new(marker), false))
        };
        let servers = match kind {
            Kind::Single => one(PrimaryAddress::Fixed(hosts.swap_remove(0))),
            Kind::Sentinel => {
                let login =
                    Credentials { user: None, password: sentinel_password, db: 0, ..credentials };
                one(PrimaryAddress::Watched(Arc::new(Watched::new(name, hosts, login))))
            }
            Kind::Cluster => Servers::Many(Cluster::new(shared.clone(), hosts, session)),
        };
        let router = Router { site, shared, servers, listing: Listing::default() };
        router.greet().await?;
        Ok(router)
    }
}

/// The number of a database; 0 when none is named.
pub(crate) fn database(text: Option<&str>, hint: &'static str) -> Result<i64, Error> {
    let Some(text) = text else { return Ok(0) };
    let db = text.parse().ok().filter(|db| (0..=9999).contains(db));
    let wrong = || usage(format!("{text:?} is not the number of a database")).with_hint(hint);
    db.ok_or_else(wrong)
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
            let found = (target.kind, target.hosts[0].to_string(), target.credentials.db);
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
