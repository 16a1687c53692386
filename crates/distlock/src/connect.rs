//! From a URL to a client.

use std::env::VarError;
use std::future::Future;
use std::path::PathBuf;

use distlock_core::capability::Capability;
use distlock_core::url::StoreUrl;
use distlock_core::{Error, Fence, Kind, Locks, Options};

#[cfg(not(all(feature = "mysql", feature = "postgres")))]
use crate::registry::missing;
use crate::registry::{Entry, STORES};

/// A client of the store at a URL.
///
/// # Errors
/// [`Kind::Usage`] for an invalid URL, [`Kind::Unsupported`] for a store that was not
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

/// Connecting with options: `Locks::options().namespace("shop").connect(url)`.
pub trait Connect: Sized {
    /// Like [`connect`], with these options. What the URL says (`?namespace=`, `?require=`) counts
    /// besides.
    ///
    /// # Errors
    /// As [`connect`], and for an invalid option.
    fn connect(self, url: impl AsRef<str>) -> impl Future<Output = Result<Locks, Error>> + Send;

    /// Like [`connect_default`], with these options.
    ///
    /// # Errors
    /// As [`connect_default`], and for an invalid option.
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
        async move { open(self, url?).await }
    }

    async fn connect_default(self) -> Result<Locks, Error> {
        open(self, StoreUrl::parse(&named_or_default()?)?).await
    }

    fn connect_to_look(
        self,
        url: Option<&str>,
    ) -> impl Future<Output = Result<Option<Locks>, Error>> + Send {
        let url = match url {
            Some(url) => StoreUrl::parse(url),
            None => named_or_default().and_then(|url| StoreUrl::parse(&url)),
        };
        async move { look(self, url?).await }
    }
}

/// The URL of the environment, or of the embedded default.
fn named_or_default() -> Result<String, Error> {
    from_environment()?.map_or_else(default_url, Ok)
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
/// for none: locks in the default store would not exclude users of the store that was meant.
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

/// A client; what is not there is created.
async fn open(options: Options, mut url: StoreUrl) -> Result<Locks, Error> {
    let options = take_common(options, &mut url)?;
    options.open(Entry::of(&url.scheme)?.open(url).await?)
}

/// A client that creates nothing; `None` where there is nothing to look at.
async fn look(options: Options, mut url: StoreUrl) -> Result<Option<Locks>, Error> {
    let options = take_common(options, &mut url)?;
    let backend = Entry::of(&url.scheme)?.look(url).await?;
    backend.map(|backend| options.open(backend)).transpose()
}

/// The options with what every store's URL may say.
fn take_common(mut options: Options, url: &mut StoreUrl) -> Result<Options, Error> {
    if let Some(space) = url.take("namespace") {
        options = options.namespace(space);
    }
    if let Some(fence) = url.take("require") {
        options = options.require(fence.parse::<Fence>()?);
    }
    Ok(options)
}

/// The statements that make a store's tables, for people whose programs may not make them. `name` is
/// what the URL says of them: `?prefix=` for mysql, `?schema=` for postgres.
///
/// # Errors
/// [`Kind::Usage`] for a store that has no tables, or an invalid name;
/// [`Kind::Unsupported`] when it was not compiled in.
#[allow(unused_variables)] // without a store that has tables
pub fn schema(store: &str, name: Option<&str>) -> Result<String, Error> {
    match store {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => distlock_mysql::schema(name.unwrap_or("distlock_")),
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

/// What every store of this build promises: the tables of stores in the docs are made from it.
#[must_use]
pub fn stores() -> Vec<Capability> {
    STORES.iter().flat_map(Entry::capabilities).collect()
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
