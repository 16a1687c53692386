//! Every kind of store: the schemes of its URLs, the feature it needs, what it promises, and how it
//! is opened.

use std::sync::Arc;

use distlock_core::backend::{Backend, Fut};
use distlock_core::capability::Capability;
use distlock_core::url::StoreUrl;
use distlock_core::{Error, Kind};

/// What every store's URL knows besides its own keys.
pub(crate) const COMMON: [&str; 2] = ["namespace", "require"];

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

struct Built {
    /// What is not there is created.
    open: fn(StoreUrl) -> Opening,
    /// Nothing is created; `None` for a store in which opening creates nothing.
    look: Option<fn(StoreUrl) -> Looking>,
    promises: fn() -> Vec<Capability>,
}

/// What a build with a feature has.
macro_rules! built {
    ($feature:literal, $store:ident, $look:expr) => {{
        #[cfg(feature = $feature)]
        let built = Some(Built { open: $store::open, look: $look, promises: $store::promises });
        #[cfg(not(feature = $feature))]
        let built = None;
        built
    }};
}

pub(crate) static STORES: [Entry; 9] = [
    Entry {
        schemes: &["memory"],
        urls: &["memory:"],
        feature: "",
        built: Some(Built { open: memory::open, look: None, promises: memory::promises }),
    },
    Entry {
        schemes: &["sqlite"],
        urls: &["sqlite:PATH"],
        feature: "sqlite",
        built: built!("sqlite", sqlite, Some(sqlite::look)),
    },
    Entry {
        schemes: &["file"],
        urls: &["file:DIR"],
        feature: "file",
        built: built!("file", file, Some(file::look)),
    },
    Entry {
        schemes: &[
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
        urls: &[
            "redis://HOST",
            "rediss://HOST (TLS)",
            "redis+unix:SOCKET",
            "redis+sentinel://HOSTS/NAME",
            "redis+cluster://HOSTS",
            "redlock://H1,H2,H3",
        ],
        feature: "redis",
        built: built!("redis", redis, None),
    },
    Entry {
        schemes: &["mysql", "mariadb"],
        urls: &["mysql://HOST/DATABASE"],
        feature: "mysql",
        built: built!("mysql", mysql, Some(mysql::look)),
    },
    Entry {
        schemes: &["postgres", "postgresql"],
        urls: &["postgres://HOST/DATABASE"],
        feature: "postgres",
        built: built!("postgres", postgres, Some(postgres::look)),
    },
    Entry {
        schemes: &["memcached"],
        urls: &["memcached://HOST:PORT"],
        feature: "memcached",
        built: built!("memcached", memcached, None),
    },
    Entry {
        schemes: &["etcd", "etcds"],
        urls: &["etcd://H1,H2,H3", "etcds://H1,H2,H3 (TLS)"],
        feature: "etcd",
        built: built!("etcd", etcd, None),
    },
    Entry {
        schemes: &["zookeeper", "zk"],
        urls: &["zookeeper://H1,H2,H3/PATH"],
        feature: "zookeeper",
        built: built!("zookeeper", zookeeper, None),
    },
];

impl Entry {
    /// The kind of store that a scheme names.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a scheme of none.
    pub(crate) fn of(scheme: &str) -> Result<&'static Self, Error> {
        STORES.iter().find(|entry| entry.schemes.contains(&scheme)).ok_or_else(|| {
            let urls: Vec<&str> = STORES.iter().flat_map(|entry| entry.urls).copied().collect();
            Error::new(Kind::Usage, format!("no store is called {scheme:?}"))
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
    pub(crate) fn promises(&self) -> Vec<Capability> {
        self.built.as_ref().map_or_else(Vec::new, |built| (built.promises)())
    }
}

/// The error of a store that was not compiled in.
pub(crate) fn missing(feature: &str) -> Error {
    Error::new(Kind::Unsupported, format!("this build has no {feature} store"))
        .with_hint(format!("build distlock with the feature {feature:?}"))
}

/// Refuses query keys that the store does not know.
fn known(url: &StoreUrl, own: &[&str]) -> Result<(), Error> {
    let mut all = own.to_vec();
    all.extend(COMMON);
    url.finish(&all)
}

/// What stores that are files have in common.
#[cfg(any(feature = "sqlite", feature = "file"))]
mod local {
    use super::*;

    /// A store that is files has no host: `sqlite://locks.db` would silently mean another file.
    pub(super) fn path(url: &StoreUrl) -> Result<(), Error> {
        let fault = if !url.hosts.is_empty() || url.user.is_some() || url.password.is_some() {
            "a store that is files has no host"
        } else if url.path.is_empty() {
            "a store that is files needs a path"
        } else {
            return Ok(());
        };
        let scheme = &url.scheme;
        Err(Error::new(Kind::Usage, fault)
            .with_hint(format!("write {scheme}:relative/path or {scheme}:/absolute/path")))
    }

    /// Whether it uses a directory that other users can write in.
    pub(super) fn trust_all(url: &mut StoreUrl) -> Result<bool, Error> {
        match url.take("trust").as_deref() {
            None | Some("owner") => Ok(false),
            Some("all") => Ok(true),
            Some(other) => Err(Error::new(Kind::Usage, format!("unknown trust={other}"))
                .with_hint("owner (the default) or all")),
        }
    }
}

mod memory {
    use distlock_core::Store;
    use distlock_core::memory::{Memory, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(async move {
            // The host would be dropped, and each client have a store of its own.
            if !url.hosts.is_empty() || url.user.is_some() || url.password.is_some() {
                return Err(Error::new(Kind::Usage, "a store in memory has no host").with_hint(
                    "write memory: for a store of its own, memory:NAME for a shared one",
                ));
            }
            known(&url, &[])?;
            let store = if url.path.is_empty() { Memory::new() } else { Memory::named(&url.path) };
            Ok(store.into_backend())
        })
    }

    pub(super) fn promises() -> Vec<Capability> {
        vec![capability().clone()]
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use distlock_core::Store;
    use distlock_sqlite::{Sqlite, SqliteOptions, Sync, capability};

    use super::*;

    pub(super) fn open(mut url: StoreUrl) -> Opening {
        Box::pin(async move {
            let options = options(&mut url)?;
            Ok(Sqlite::open(&url.path, options).await?.into_backend())
        })
    }

    pub(super) fn look(mut url: StoreUrl) -> Looking {
        Box::pin(async move {
            let options = options(&mut url)?.look_only(true);
            if !Sqlite::exists(&url.path) {
                return Ok(None);
            }
            Ok(Some(Sqlite::open(&url.path, options).await?.into_backend()))
        })
    }

    fn options(url: &mut StoreUrl) -> Result<SqliteOptions, Error> {
        let sync = match url.take("synchronous").as_deref() {
            None | Some("full") => Sync::Full,
            Some("normal") => Sync::Normal,
            Some(other) => {
                return Err(Error::new(Kind::Usage, format!("unknown synchronous={other}"))
                    .with_hint("full (the default) or normal"));
            }
        };
        let trust_all = local::trust_all(url)?;
        local::path(url)?;
        known(url, &["synchronous", "trust"])?;
        Ok(SqliteOptions::new().sync(sync).trust_all(trust_all))
    }

    pub(super) fn promises() -> Vec<Capability> {
        vec![capability(Sync::Full)]
    }
}

#[cfg(feature = "file")]
mod file {
    use distlock_core::{Store, engine};
    use distlock_file::{FileOptions, FileStore};

    use super::*;

    pub(super) fn open(mut url: StoreUrl) -> Opening {
        Box::pin(async move {
            let options = options(&mut url)?;
            let store = engine::unblock(move || FileStore::open(url.path, options));
            Ok(store.await?.into_backend())
        })
    }

    pub(super) fn look(mut url: StoreUrl) -> Looking {
        Box::pin(async move {
            let options = FileOptions { look_only: true, ..options(&mut url)? };
            if !FileStore::exists(&url.path) {
                return Ok(None);
            }
            let store = engine::unblock(move || FileStore::open(url.path, options));
            Ok(Some(store.await?.into_backend()))
        })
    }

    fn options(url: &mut StoreUrl) -> Result<FileOptions, Error> {
        let trust_all = local::trust_all(url)?;
        local::path(url)?;
        known(url, &["trust"])?;
        Ok(FileOptions { trust_all, ..FileOptions::default() })
    }

    pub(super) fn promises() -> Vec<Capability> {
        vec![FileStore::promises().clone()]
    }
}

#[cfg(feature = "redis")]
mod redis {
    use distlock_redis::{Algorithm, Kind, RedisOptions, capability, redlock_capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(distlock_redis::open(url))
    }

    pub(super) fn promises() -> Vec<Capability> {
        let (usual, plain) = (RedisOptions::new(), RedisOptions::new().algorithm(Algorithm::Plain));
        let kinds = [Kind::Single, Kind::Sentinel, Kind::Cluster];
        let mut all: Vec<_> = kinds.map(|kind| capability(kind, &usual)).into();
        all.push(capability(Kind::Single, &plain));
        all.extend([redlock_capability(&usual), redlock_capability(&plain)]);
        all
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use distlock_mysql::{Algorithm, MysqlOptions, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(distlock_mysql::open(url))
    }

    pub(super) fn look(url: StoreUrl) -> Looking {
        Box::pin(distlock_mysql::open_to_look(url))
    }

    pub(super) fn promises() -> Vec<Capability> {
        let kinds = [Algorithm::Line, Algorithm::Version, Algorithm::RowLock];
        kinds.map(|a| capability(&MysqlOptions::new().algorithm(a), true)).into()
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use distlock_postgres::{Algorithm, PostgresOptions, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(distlock_postgres::open(url))
    }

    pub(super) fn look(url: StoreUrl) -> Looking {
        Box::pin(distlock_postgres::open_to_look(url))
    }

    pub(super) fn promises() -> Vec<Capability> {
        let kinds = Algorithm::ALL.map(|a| PostgresOptions::new().algorithm(a));
        kinds.iter().map(|options| capability(options, true)).collect()
    }
}

#[cfg(feature = "memcached")]
mod memcached {
    use distlock_core::Store;
    use distlock_memcached::{Memcached, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(async move {
            known(&url, &[])?;
            Ok(Memcached::connect(&url).await?.into_backend())
        })
    }

    pub(super) fn promises() -> Vec<Capability> {
        vec![capability().clone()]
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use distlock_core::Store;
    use distlock_etcd::{Etcd, Version, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(async move { Ok(Etcd::connect(url).await?.into_backend()) })
    }

    /// As current servers have it; older ones promise less when they are connected to.
    pub(super) fn promises() -> Vec<Capability> {
        vec![capability(Some(Version::new(3, 6, 9)))]
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    use distlock_core::Store;
    use distlock_zookeeper::{ZooKeeper, capability};

    use super::*;

    pub(super) fn open(url: StoreUrl) -> Opening {
        Box::pin(async move { Ok(ZooKeeper::connect(&url).await?.into_backend()) })
    }

    pub(super) fn promises() -> Vec<Capability> {
        vec![capability().clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scheme that a store accepts and the registry does not list would be "no store" in a build
    /// without its feature.
    #[test]
    #[cfg(all(
        feature = "redis",
        feature = "mysql",
        feature = "postgres",
        feature = "etcd",
        feature = "zookeeper"
    ))]
    fn every_scheme_of_a_store_is_listed_once() {
        let listed = |feature: &str| {
            let entry = STORES.iter().find(|entry| entry.feature == feature).unwrap();
            let mut schemes = entry.schemes.to_vec();
            schemes.sort_unstable();
            schemes
        };
        let sorted = |schemes: &[&'static str]| {
            let mut schemes = schemes.to_vec();
            schemes.sort_unstable();
            schemes
        };
        assert_eq!(listed("redis"), sorted(&distlock_redis::SCHEMES));
        assert_eq!(listed("mysql"), sorted(&distlock_mysql::SCHEMES));
        assert_eq!(listed("postgres"), sorted(&distlock_postgres::SCHEMES));
        assert_eq!(listed("etcd"), sorted(&distlock_etcd::SCHEMES));
        assert_eq!(listed("zookeeper"), sorted(&distlock_zookeeper::SCHEMES));
        let mut all: Vec<&str> = STORES.iter().flat_map(|entry| entry.schemes).copied().collect();
        let before = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), before);
    }
}
