//! Every kind of store: the schemes of its URLs, the feature it needs, what it promises, and how it
//! is opened.

use std::sync::Arc;

use distlock_core::url::usage;
use distlock_core::{Backend, Capability, Error, Fut, Kind, StoreUrl};

/// A store that is being opened.
type Opening = Fut<'static, Result<Arc<dyn Backend>, Error>>;
/// A store that is being looked for; `None` where there is nothing to look at.
type Looking = Fut<'static, Result<Option<Arc<dyn Backend>>, Error>>;

/// One kind of store.
pub(crate) struct Entry {
    pub(crate) schemes: &'static [&'static str],
    /// Its URLs, as people write them.
    pub(crate) urls: &'static [&'static str],
    feature: &'static str,
    /// `None` in a build without its feature.
    built: Option<Built>,
}

/// What the crate of a store exports.
struct Built {
    /// What is not there is created.
    open: fn(StoreUrl) -> Opening,
    /// Nothing is created; `None` for a store in which opening creates nothing.
    look: Option<fn(StoreUrl) -> Looking>,
    capabilities: fn() -> Vec<Capability>,
}

/// The entry of a store in a crate of its own, which a build has with a feature.
macro_rules! entry {
    ($feature:literal, $store:ident $(:: $look:ident)?, $schemes:expr, $urls:expr) => {{
        #[cfg(feature = $feature)]
        let built = Some(Built {
            open: |url| Box::pin($store::open(url)),
            look: entry!(@look $($store $look)?),
            capabilities: $store::capabilities,
        });
        #[cfg(not(feature = $feature))]
        let built = None;
        Entry { schemes: &$schemes, urls: &$urls, feature: $feature, built }
    }};
    (@look) => { None };
    (@look $store:ident $look:ident) => { Some(|url| Box::pin($store::$look(url))) };
}

pub(crate) static STORES: [Entry; 9] = [
    Entry {
        schemes: &["memory"],
        urls: &["memory:"],
        feature: "",
        built: Some(Built {
            open: |url| Box::pin(memory::open(url)),
            look: None,
            capabilities: memory::capabilities,
        }),
    },
    entry!("sqlite", distlock_sqlite::open_to_look, ["sqlite"], ["sqlite:PATH"]),
    entry!("file", distlock_file::open_to_look, ["file"], ["file:DIR"]),
    entry!(
        "redis",
        redis,
        [
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
        ],
        [
            "redis://HOST",
            "rediss://HOST (TLS)",
            "redis+unix:SOCKET",
            "redis+sentinel://HOSTS/NAME",
            "redis+cluster://HOSTS",
            "redlock://H1,H2,H3",
        ]
    ),
    entry!("mysql", distlock_mysql::open_to_look, ["mysql", "mariadb"], ["mysql://HOST/DATABASE"]),
    entry!(
        "postgres",
        distlock_postgres::open_to_look,
        ["postgres", "postgresql"],
        ["postgres://HOST/DATABASE"]
    ),
    entry!("memcached", distlock_memcached, ["memcached"], ["memcached://HOST:PORT"]),
    entry!("etcd", distlock_etcd, ["etcd", "etcds"], ["etcd://H1,H2,H3", "etcds://H1,H2,H3 (TLS)"]),
    entry!("zookeeper", distlock_zookeeper, ["zookeeper", "zk"], ["zookeeper://H1,H2,H3/PATH"]),
];

impl Entry {
    /// The kind of store that a scheme names.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a scheme of none.
    pub(crate) fn of(scheme: &str) -> Result<&'static Self, Error> {
        STORES.iter().find(|entry| entry.schemes.contains(&scheme)).ok_or_else(|| {
            let urls: Vec<&str> = STORES.iter().flat_map(|entry| entry.urls).copied().collect();
            usage(format!("unknown scheme {scheme:?} in the store's URL"))
                .with_hint(format!("known: {}", urls.join(", ")))
        })
    }

    /// Opens the store at a URL; what is not there is created.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when it was not compiled in, and whatever keeps it from being opened.
    pub(crate) async fn open(&self, url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
        (self.built()?.open)(url).await
    }

    /// Opens the store at a URL for a client that only looks: nothing is created, and `None` says
    /// that there is nothing to look at.
    ///
    /// # Errors
    /// As [`Entry::open`].
    pub(crate) async fn look(&self, url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
        match self.built()?.look {
            Some(look) => look(url).await,
            None => self.open(url).await.map(Some),
        }
    }

    fn built(&self) -> Result<&Built, Error> {
        self.built.as_ref().ok_or_else(|| missing(self.feature))
    }

    /// What it promises, in each of its algorithms; nothing when it was not compiled in.
    pub(crate) fn capabilities(&self) -> Vec<Capability> {
        self.built.as_ref().map_or_else(Vec::new, |built| (built.capabilities)())
    }
}

/// The error of a store that was not compiled in.
pub(crate) fn missing(feature: &str) -> Error {
    Error::new(Kind::Unsupported, format!("this build has no {feature} store"))
        .with_hint(format!("build distlock with the feature {feature:?}"))
}

mod memory {
    use distlock_core::Store;
    use distlock_core::memory::{Memory, capability};

    use super::*;

    pub(super) async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
        // The host would be dropped, and each client have a store of its own.
        if !url.hosts.is_empty() || url.user.is_some() || url.password.is_some() {
            return Err(usage("memory: takes a name, not a host")
                .with_hint("write memory: for a store of its own, memory:NAME for a shared one"));
        }
        url.finish(&["namespace", "require"])?;
        let store = if url.path.is_empty() { Memory::new() } else { Memory::named(&url.path) };
        Ok(store.into_backend())
    }

    pub(super) fn capabilities() -> Vec<Capability> {
        vec![capability().clone()]
    }
}

#[cfg(feature = "redis")]
mod redis {
    pub(super) use distlock_redis::open;
    use distlock_redis::{Algorithm, Kind, RedisOptions, capability, redlock_capability};

    use super::Capability;

    pub(super) fn capabilities() -> Vec<Capability> {
        let usual = RedisOptions::default();
        let plain = RedisOptions { algorithm: Algorithm::Plain, ..usual.clone() };
        let kinds = [Kind::Single, Kind::Sentinel, Kind::Cluster];
        let mut all: Vec<_> = kinds.map(|kind| capability(kind, &usual)).into();
        all.push(capability(Kind::Single, &plain));
        all.extend([redlock_capability(&usual), redlock_capability(&plain)]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scheme that two stores list would always open the first.
    #[test]
    fn every_scheme_is_listed_once() {
        let mut all: Vec<&str> = STORES.iter().flat_map(|entry| entry.schemes).copied().collect();
        let before = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), before);
    }

    /// A scheme that the store accepts and the registry does not list could not be opened.
    #[test]
    #[cfg(feature = "redis")]
    fn every_redis_scheme_is_listed() {
        let entry = STORES.iter().find(|entry| entry.feature == "redis").unwrap();
        let sorted = |schemes: &[&'static str]| {
            let mut schemes = schemes.to_vec();
            schemes.sort_unstable();
            schemes
        };
        assert_eq!(sorted(entry.schemes), sorted(&distlock_redis::SCHEMES));
    }
}
