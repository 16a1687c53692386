//! From a URL to a client: the one place that knows every store.

use std::env::VarError;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use distlock_core::capability::Capability;
#[allow(unused_imports)] // the engine opens what blocks, in whichever store does
use distlock_core::engine;
use distlock_core::memory::{self, Memory};
use distlock_core::seam::Backend;
use distlock_core::url::StoreUrl;
use distlock_core::{Error, Fence, Kind, Locks, Options, Store};

/// What every store's URL knows besides its own keys.
const COMMON: [&str; 2] = ["namespace", "require"];

/// A client of the store at a URL.
///
/// # Errors
/// [`Kind::Usage`] for a URL that cannot be, [`Kind::Unsupported`] for a store that was not
/// compiled in (the error names the feature), [`Kind::Refused`] for a store that promises less
/// than `?require=` asks for, and whatever keeps the store from answering.
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn connect(url: impl AsRef<str>) -> Result<Locks, Error> {
    Options::default().connect(url).await
}

/// A client of the store that the environment names (`DISTLOCK_URL`, or the first line of the file
/// that `DISTLOCK_URL_FILE` names), or of the embedded default: SQLite in the user's state
/// directory.
///
/// # Errors
/// As [`connect`], and when the file cannot be read or no state directory can be found.
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_default() -> Result<Locks, Error> {
    Options::default().connect_default().await
}

/// Like [`connect`], for code without a runtime.
///
/// # Errors
/// As [`connect`].
pub fn connect_blocking(url: impl AsRef<str>) -> Result<distlock_core::blocking::Locks, Error> {
    let url = url.as_ref().to_owned();
    distlock_core::engine::block_on(async move { connect(url).await }).map(Into::into)
}

/// Connecting with options: `Locks::options().namespace("shop").connect(url)`.
pub trait Connect: Sized {
    /// Like [`connect`], with these options. What the URL says (`?namespace=`, `?require=`) counts
    /// besides.
    ///
    /// # Errors
    /// As [`connect`], and for an option that cannot be.
    fn connect(self, url: impl AsRef<str>) -> impl Future<Output = Result<Locks, Error>> + Send;

    /// Like [`connect_default`], with these options.
    ///
    /// # Errors
    /// As [`connect_default`], and for an option that cannot be.
    fn connect_default(self) -> impl Future<Output = Result<Locks, Error>> + Send;

    /// A client that only looks ([`list`](Locks::list), [`show`](Locks::show)): of the store at a
    /// URL, or of the default one. Nothing is created; `None` says that there is no database
    /// (`sqlite:`), directory (`file:`) or table (`mysql:`, `postgres:`) yet, so that nothing can be
    /// held there.
    ///
    /// # Errors
    /// As [`connect`] and [`connect_default`].
    fn connect_to_look(
        self,
        url: Option<&str>,
    ) -> impl Future<Output = Result<Option<Locks>, Error>> + Send;
}

impl Connect for Options {
    fn connect(self, url: impl AsRef<str>) -> impl Future<Output = Result<Locks, Error>> + Send {
        let url = StoreUrl::parse(url.as_ref());
        async move { open(self, url?, false).await?.ok_or_else(absent) }
    }

    async fn connect_default(self) -> Result<Locks, Error> {
        open(self, StoreUrl::parse(&named_or_default()?)?, false).await?.ok_or_else(absent)
    }

    fn connect_to_look(
        self,
        url: Option<&str>,
    ) -> impl Future<Output = Result<Option<Locks>, Error>> + Send {
        let url = match url {
            Some(url) => StoreUrl::parse(url),
            None => named_or_default().and_then(|url| StoreUrl::parse(&url)),
        };
        async move {
            let url = url?;
            if !exists(&url) {
                return Ok(None);
            }
            open(self, url, true).await
        }
    }
}

/// The URL of the environment, or of the embedded default.
fn named_or_default() -> Result<String, Error> {
    from_environment()?.map_or_else(default_url, Ok)
}

/// Whether there is anything to look at. A server that is not there is for its client to say.
fn exists(url: &StoreUrl) -> bool {
    match url.scheme.as_str() {
        #[cfg(feature = "sqlite")]
        "sqlite" if local(url).is_ok() => distlock_sqlite::Sqlite::exists(&url.path),
        #[cfg(feature = "file")]
        "file" if local(url).is_ok() => distlock_file::FileStore::exists(&url.path),
        _ => true,
    }
}

/// The URL of the environment, if it names one.
fn from_environment() -> Result<Option<String>, Error> {
    if let Some(url) = var("DISTLOCK_URL")? {
        return Ok(Some(url.trim().to_owned()));
    }
    let Some(file) = var("DISTLOCK_URL_FILE")? else { return Ok(None) };
    let text = std::fs::read_to_string(&file).map_err(|e| {
        Error::new(Kind::Usage, format!("cannot read {file:?}, which DISTLOCK_URL_FILE names"))
            .because(e)
            .with_hint("the file's first line is the store's URL")
    })?;
    match text.lines().next().map(str::trim).filter(|l| !l.is_empty()) {
        Some(url) => Ok(Some(url.to_owned())),
        None => Err(Error::new(Kind::Usage, format!("{file:?} holds no URL in its first line"))
            .with_hint("the file's first line is the store's URL")),
    }
}

/// A variable, if it says something. One that is not text names a store, too, so it is not taken
/// for none: the default store would exclude nobody of those who share the one that was meant.
fn var(name: &str) -> Result<Option<String>, Error> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|v| !v.trim().is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Error::new(Kind::Usage, format!("{name} is not UTF-8"))
                .with_hint("percent-encode such bytes in the URL"))
        }
    }
}

/// The embedded default: a file in the user's state directory.
fn default_url() -> Result<String, Error> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Error::new(Kind::Usage, "no place for the default store: HOME is not set")
                .with_hint("set DISTLOCK_URL or --url, for example sqlite:/var/lib/app/locks.db")
        })?;
    let path = state.join("distlock").join("locks.db");
    let path = path.to_str().ok_or_else(|| {
        Error::new(Kind::Usage, "the user's state directory is not UTF-8")
            .with_hint("set DISTLOCK_URL or --url")
    })?;
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}

/// What opens a store creates it, unless it was to `look`.
fn absent() -> Error {
    Error::new(Kind::Layout, "there is no store yet")
}

/// A client; `None` where there is nothing to `look` at.
async fn open(mut options: Options, mut url: StoreUrl, look: bool) -> Result<Option<Locks>, Error> {
    if let Some(space) = url.take("namespace") {
        options = options.namespace(space);
    }
    if let Some(fence) = url.take("require") {
        options = options.require(fence.parse::<Fence>()?);
    }
    let backend = match url.scheme.as_str() {
        #[cfg(feature = "mysql")]
        scheme if look && distlock_mysql::SCHEMES.contains(&scheme) => {
            distlock_mysql::open_to_look(url).await?
        }
        #[cfg(feature = "postgres")]
        scheme if look && distlock_postgres::SCHEMES.contains(&scheme) => {
            distlock_postgres::open_to_look(url).await?
        }
        _ => Some(backend(url, look).await?),
    };
    backend.map(|backend| options.open(backend)).transpose()
}

/// One arm a store. One that is files creates none to `look`.
#[allow(unused_mut, unused_variables)] // without the stores that are files
async fn backend(mut url: StoreUrl, look: bool) -> Result<Arc<dyn Backend>, Error> {
    match url.scheme.as_str() {
        "memory" => {
            // The host would be dropped, and each client have a store of its own.
            if !url.hosts.is_empty() || url.user.is_some() || url.password.is_some() {
                return Err(Error::new(Kind::Usage, "a store in memory has no host").with_hint(
                    "write memory: for a store of its own, memory:NAME for a shared one",
                ));
            }
            known(&url, &[])?;
            let store = if url.path.is_empty() { Memory::new() } else { Memory::named(&url.path) };
            Ok(store.into_backend())
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            use distlock_sqlite::{Sqlite, SqliteOptions, Sync};
            let sync = match url.take("synchronous").as_deref() {
                None | Some("full") => Sync::Full,
                Some("normal") => Sync::Normal,
                Some(other) => {
                    return Err(Error::new(Kind::Usage, format!("synchronous={other} cannot be"))
                        .with_hint("full (the default) or normal"));
                }
            };
            let trust_all = trust_all(&mut url)?;
            local(&url)?;
            known(&url, &["synchronous", "trust"])?;
            let options = SqliteOptions::new().sync(sync).look_only(look).trust_all(trust_all);
            Ok(Sqlite::open(&url.path, options).await?.into_backend())
        }
        #[cfg(feature = "file")]
        "file" => {
            use distlock_file::{FileOptions, FileStore};
            let trust_all = trust_all(&mut url)?;
            local(&url)?;
            known(&url, &["trust"])?;
            let path = url.path.clone();
            let options = FileOptions { look_only: look, trust_all, ..FileOptions::default() };
            let store = engine::unblock(move || FileStore::open(path, options));
            Ok(store.await?.into_backend())
        }
        #[cfg(feature = "redis")]
        scheme if distlock_redis::SCHEMES.contains(&scheme) => distlock_redis::open(url).await,
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" | "redlock" | "redlocks" => Err(missing("redis")),
        #[cfg(feature = "mysql")]
        scheme if distlock_mysql::SCHEMES.contains(&scheme) => distlock_mysql::open(url).await,
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => Err(missing("mysql")),
        #[cfg(feature = "postgres")]
        scheme if distlock_postgres::SCHEMES.contains(&scheme) => {
            distlock_postgres::open(url).await
        }
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(missing("postgres")),
        #[cfg(feature = "memcached")]
        "memcached" => {
            known(&url, &[])?;
            Ok(distlock_memcached::Memcached::connect(&url).await?.into_backend())
        }
        #[cfg(feature = "etcd")]
        scheme if distlock_etcd::SCHEMES.contains(&scheme) => {
            Ok(distlock_etcd::Etcd::connect(url).await?.into_backend())
        }
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(missing("etcd")),
        #[cfg(feature = "zookeeper")]
        scheme if distlock_zookeeper::SCHEMES.contains(&scheme) => {
            Ok(distlock_zookeeper::ZooKeeper::connect(&url).await?.into_backend())
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(missing("sqlite")),
        #[cfg(not(feature = "file"))]
        "file" => Err(missing("file")),
        #[cfg(not(feature = "memcached"))]
        "memcached" => Err(missing("memcached")),
        #[cfg(not(feature = "zookeeper"))]
        "zookeeper" | "zk" => Err(missing("zookeeper")),
        other => Err(Error::new(Kind::Usage, format!("no store is called {other:?}"))
            .with_hint(format!("known: {}", schemes().join(", ")))),
    }
}

/// Whether a store that is files uses a directory that other users can write in.
#[cfg(any(feature = "sqlite", feature = "file"))]
fn trust_all(url: &mut StoreUrl) -> Result<bool, Error> {
    match url.take("trust").as_deref() {
        None | Some("owner") => Ok(false),
        Some("all") => Ok(true),
        Some(other) => Err(Error::new(Kind::Usage, format!("unknown trust={other}"))
            .with_hint("owner (the default) or all")),
    }
}

fn known(url: &StoreUrl, own: &[&str]) -> Result<(), Error> {
    let mut all = own.to_vec();
    all.extend(COMMON);
    url.finish(&all)
}

/// A store that is files has no host: `sqlite://locks.db` would silently mean another file.
#[cfg(any(feature = "sqlite", feature = "file"))]
fn local(url: &StoreUrl) -> Result<(), Error> {
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

#[allow(dead_code)] // used by whichever store is left out of the build
fn missing(feature: &str) -> Error {
    Error::new(Kind::Unsupported, format!("this build has no {feature} store"))
        .with_hint(format!("build distlock with the feature {feature:?}"))
}

fn schemes() -> Vec<&'static str> {
    vec![
        "memory:",
        "sqlite:PATH",
        "file:DIR",
        "redis://HOST",
        "rediss://HOST (TLS)",
        "redis+unix:SOCKET",
        "redis+sentinel://HOSTS/NAME",
        "redis+cluster://HOSTS",
        "redlock://H1,H2,H3",
        "mysql://HOST/DATABASE",
        "postgres://HOST/DATABASE",
        "memcached://HOST:PORT",
        "etcd://H1,H2,H3",
        "etcds://H1,H2,H3 (TLS)",
        "zookeeper://H1,H2,H3/PATH",
    ]
}

/// The statements that make a store's tables, for people whose programs may not make them. `name` is
/// what the URL says of them: `?prefix=` for mysql, `?schema=` for postgres.
///
/// # Errors
/// [`Kind::Usage`] for a store that has no tables, or a name that cannot be;
/// [`Kind::Unsupported`] when it was not compiled in.
#[allow(unused_variables)] // without a store that has tables
pub fn schema(store: &str, name: Option<&str>) -> Result<String, Error> {
    match store {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let prefix = name.unwrap_or("distlock_");
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if prefix.len() > 32 || !prefix.bytes().all(plain) {
                return Err(Error::new(Kind::Usage, format!("prefix {prefix:?} cannot be"))
                    .with_hint("at most 32 letters, digits and underscores"));
            }
            Ok(distlock_mysql::schema(prefix))
        }
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => Err(missing("mysql")),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => distlock_postgres::schema(name.unwrap_or("distlock")),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(missing("postgres")),
        other => Err(Error::new(Kind::Usage, format!("{other:?} is not a store with tables"))
            .with_hint("one of: mysql, postgres")),
    }
}

/// What every store of this build promises: the README's table is made from it.
#[must_use]
pub fn stores() -> Vec<Capability> {
    #[allow(unused_mut)]
    let mut all = vec![memory::capability().clone()];
    #[cfg(feature = "sqlite")]
    all.push(distlock_sqlite::capability(distlock_sqlite::Sync::Full));
    #[cfg(feature = "file")]
    all.push(distlock_file::FileStore::promises().clone());
    #[cfg(feature = "redis")]
    {
        use distlock_redis::{Algorithm, Kind, RedisOptions, capability, redlock_capability};
        let usual = RedisOptions::new();
        let kinds = [Kind::Single, Kind::Sentinel, Kind::Cluster];
        all.extend(kinds.map(|kind| capability(kind, &usual)));
        let plain = RedisOptions::new().algorithm(Algorithm::Plain);
        all.push(capability(Kind::Single, &plain));
        all.extend([redlock_capability(&usual), redlock_capability(&plain)]);
    }
    #[cfg(feature = "mysql")]
    {
        use distlock_mysql::{Algorithm, MysqlOptions, capability};
        let kinds = [Algorithm::Line, Algorithm::Version, Algorithm::RowLock];
        all.extend(kinds.map(|a| capability(&MysqlOptions::new().algorithm(a), true)));
    }
    #[cfg(feature = "postgres")]
    {
        use distlock_postgres::{Algorithm, PostgresOptions, capability};
        let kinds = Algorithm::ALL.map(|a| PostgresOptions::new().algorithm(a));
        all.extend(kinds.iter().map(|options| capability(options, true)));
    }
    #[cfg(feature = "memcached")]
    all.push(distlock_memcached::capability().clone());
    // As current servers have it; older ones are promised less of when they are connected to.
    #[cfg(feature = "etcd")]
    all.push(distlock_etcd::capability(Some(distlock_etcd::Version::new(3, 6, 9))));
    #[cfg(feature = "zookeeper")]
    all.push(distlock_zookeeper::capability().clone());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_memory_store_has_no_host() {
        // It would be a store of its own each time, and exclude nobody.
        let e = connect("memory://shared").await.unwrap_err();
        assert_eq!(e.kind(), Kind::Usage);
        assert!(e.hint().unwrap_or("").contains("memory:NAME"), "{e:?}");
        let (a, b) = (connect("memory:r1").await.unwrap(), connect("memory:r1").await.unwrap());
        let _held = a.lock("x").try_acquire().await.unwrap().unwrap();
        assert!(b.lock("x").try_acquire().await.unwrap().is_err());
    }
}
