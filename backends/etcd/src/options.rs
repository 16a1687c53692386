//! Parses an etcd URL: the members of the cluster, the login, TLS, and the timeout of a call.

use std::path::PathBuf;
use std::time::Duration;

use distlock_core::url::{Host, usage};
use distlock_core::{Clock, Error, StoreUrl};
use tokio::sync::Semaphore;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::wire::link::{AT_ONCE, Link};
use crate::wire::login::Login;
use crate::wire::members::Members;

const PORT: u16 = 2379;
const TIMEOUT: Duration = Duration::from_secs(5);

/// The link to the cluster that a URL names; nothing is connected yet.
///
/// # Errors
/// [`Kind::Usage`](distlock_core::Kind::Usage) for an invalid URL, or a file that cannot be read.
pub(crate) fn link(url: &mut StoreUrl) -> Result<Link, Error> {
    let timeouts = Duration::from_millis(100)..=Duration::from_secs(60);
    let timeout = url.take_duration("timeout", timeouts)?.unwrap_or(TIMEOUT);
    let (ca, cert, key) = (url.take_path("ca"), url.take_path("cert"), url.take_path("key"));
    url.finish(&["namespace", "require"])?;
    if !matches!(url.path.as_str(), "" | "/") {
        return Err(usage("an etcd cluster has no path")
            .with_hint("etcd://h1,h2,h3; ?namespace= keeps the locks of one client apart"));
    }
    if url.hosts.is_empty() {
        return Err(usage("etcd:// needs a host").with_hint("for example etcd://127.0.0.1:2379"));
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
    let endpoint = |host: &Host| {
        let mut host = host.clone();
        host.port.get_or_insert(PORT);
        let uri = format!("{}://{host}", if tls { "https" } else { "http" });
        let endpoint = Endpoint::from_shared(uri).map_err(|e| invalid(&host.to_string(), e))?;
        match &tls_config {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|e| invalid("TLS", e)),
        }
    };
    let endpoints = url.hosts.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    let clock = Clock::system();
    Ok(Link {
        members: Members::new(endpoints, timeout, clock.clone()),
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

fn invalid(what: &str, e: tonic::transport::Error) -> Error {
    let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
    usage(format!("invalid {what}: {cause}"))
        .with_hint("etcd://h1:2379,h2:2379; for etcds:// ca=, cert= and key= name PEM files")
}
