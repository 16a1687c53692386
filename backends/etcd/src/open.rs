//! From a URL to a store that answers.

use std::path::PathBuf;
use std::time::Duration;

use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, Kind};
use tokio::sync::Semaphore;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::capability::{Version, capability};
use crate::client::Client;
use crate::store::Etcd;
use crate::txn;
use crate::wire::calls::{AT_ONCE, Link, Tries};
use crate::wire::login::Login;
use crate::wire::members::Nodes;
use crate::wire::proto::{StatusRequest, StatusResponse, TxnResponse};

/// The schemes of the store: without TLS, and with.
pub const SCHEMES: [&str; 2] = ["etcd", "etcds"];

const PORT: u16 = 2379;
const TIMEOUT: Duration = Duration::from_secs(5);
/// The layout of keys and values that this code reads and writes.
const LAYOUT: &str = "1";
const KEYS: [&str; 6] = ["timeout", "ca", "cert", "key", "namespace", "require"];

impl Etcd {
    /// Connects to the cluster that a URL names: `etcd://user:password@h1,h2,h3`, `etcds://` for TLS.
    ///
    /// | key | what |
    /// |---|---|
    /// | `timeout` | how long a call may take, all its attempts together; 5 s |
    /// | `ca` | a file with the authority that signed the cluster's certificates |
    /// | `cert`, `key` | files with a certificate of ours and its key |
    ///
    /// # Errors
    /// [`Kind::Usage`] for a URL that cannot be, [`Kind::Credentials`], [`Kind::Layout`] for data of
    /// a newer version, and whatever keeps a majority of the cluster from answering.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn connect(mut url: StoreUrl) -> Result<Self, Error> {
        let link = link(&mut url)?;
        // A write, which only a cluster with a majority answers, and only to who may write.
        let layout = txn::layout(LAYOUT);
        let path = "/etcdserverpb.KV/Txn";
        let said = link.call::<_, TxnResponse>(path, &layout, Tries::Once).await?.said;
        let found = txn::ranges(&said).next().and_then(|r| r.kvs.first());
        if let Some(found) = found.filter(|kv| kv.value != LAYOUT.as_bytes()) {
            let found = String::from_utf8_lossy(&found.value).into_owned();
            return Err(Error::new(
                Kind::Layout,
                format!("the cluster holds locks of layout {found:?}"),
            )
            .store(&link.site)
            .with_hint(
                "another version of distlock wrote them: use that one, or one that knows both",
            ));
        }
        // Who may not ask for the version is promised what the oldest keep.
        let path = "/etcdserverpb.Maintenance/Status";
        let status = link.call::<_, StatusResponse>(path, &StatusRequest {}, Tries::Once).await;
        let version = status.ok().and_then(|s| Version::read(&s.said.version));
        Ok(Self { client: Client::new(link, capability(version)) })
    }
}

fn link(url: &mut StoreUrl) -> Result<Link, Error> {
    let timeouts = Duration::from_millis(100)..=Duration::from_secs(60);
    let timeout = url.take_duration("timeout", timeouts)?.unwrap_or(TIMEOUT);
    let (ca, cert, key) = (url.take_path("ca"), url.take_path("cert"), url.take_path("key"));
    url.finish(&KEYS)?;
    if !matches!(url.path.as_str(), "" | "/") {
        return Err(usage("an etcd cluster has no path")
            .with_hint("etcd://h1,h2,h3; ?namespace= keeps the locks of one client apart"));
    }
    if url.hosts.is_empty() {
        return Err(usage("which host?").with_hint("for example etcd://127.0.0.1:2379"));
    }
    let tls = url.scheme == "etcds";
    let tls_config = match (tls, ca.is_some() || cert.is_some() || key.is_some()) {
        (true, _) => Some(tls_config(ca, cert, key)?),
        (false, false) => None,
        (false, true) => {
            return Err(usage("certificates are for TLS").with_hint("write etcds:// for TLS"));
        }
    };
    let login = match (&url.user, &url.password) {
        (None, None) => None,
        (Some(user), Some(password)) => Some((user.clone(), password.clone())),
        _ => {
            return Err(
                usage("a login is a user and a password").with_hint("etcd://user:password@host")
            );
        }
    };
    let endpoint = |host: &distlock_core::url::Host| {
        let mut host = host.clone();
        host.port.get_or_insert(PORT);
        let uri = format!("{}://{host}", if tls { "https" } else { "http" });
        let endpoint = Endpoint::from_shared(uri).map_err(|e| cannot_be(&host.to_string(), e))?;
        match &tls_config {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|e| cannot_be("TLS", e)),
        }
    };
    let endpoints = url.hosts.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    let clock = Clock::system();
    Ok(Link {
        nodes: Nodes::new(endpoints, timeout, clock.clone()),
        login: Login::new(login),
        clock,
        site: url.to_string(),
        tls,
        timeout,
        turns: Semaphore::new(AT_ONCE),
    })
}

fn tls_config(
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<ClientTlsConfig, Error> {
    let read = |path: PathBuf| {
        std::fs::read(&path).map_err(|e| {
            usage(format!("cannot read {}", path.display()))
                .because(e)
                .with_hint("ca=, cert= and key= name PEM files")
        })
    };
    let mut tls = ClientTlsConfig::new();
    tls = match ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => tls.with_native_roots(),
    };
    match (cert, key) {
        (None, None) => Ok(tls),
        (Some(cert), Some(key)) => Ok(tls.identity(Identity::from_pem(read(cert)?, read(key)?))),
        _ => Err(usage("a certificate needs its key").with_hint("give both cert= and key=")),
    }
}

fn usage(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Usage, what)
}

fn cannot_be(what: &str, e: tonic::transport::Error) -> Error {
    let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
    usage(format!("invalid {what}: {cause}"))
        .with_hint("etcd://h1:2379,h2:2379; for etcds:// ca=, cert= and key= name PEM files")
}
