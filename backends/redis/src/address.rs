//! A server's address, and the credentials and TLS settings to connect with.

use std::fmt;
use std::path::{Path, PathBuf};

use distlock_core::url::Host;
use distlock_core::{Error, Kind, Secret, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, TlsCertificates,
};

use crate::errors;
use crate::options::Tls;

/// The port when none is named.
pub(crate) const PORT: u16 = 6379;
/// The port of a sentinel when none is named.
pub(crate) const SENTINEL_PORT: u16 = 26379;

/// How a certificate begins.
const PEM: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Where one server is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    pub(crate) fn of(host: &Host, port: u16) -> Self {
        Self::Tcp { host: host.host.clone(), port: host.port.unwrap_or(port) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How to enter: the same at every server of one store.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) tls: Option<TlsCertificates>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: i64,
}

impl Credentials {
    /// What a URL and its TLS files say. Reads the files.
    pub(crate) fn of(url: &StoreUrl, db: i64, files: &Tls) -> Result<Self, Error> {
        let tls = match url.scheme.starts_with("rediss") {
            true => Some(certificates(files)?),
            false if files.ca.is_some() || files.cert.is_some() => {
                return Err(Error::new(Kind::Usage, "certificates without TLS").with_hint(
                    "write rediss:// (with two s) for TLS, or leave out ca, cert and key",
                ));
            }
            false => None,
        };
        Ok(Self { tls, user: url.user.clone(), password: url.password.clone(), db })
    }

    /// A client of one server; nothing is sent yet.
    pub(crate) fn client(&self, address: &Address) -> Result<Client, Error> {
        let addr = match (address, &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp { host, port }, None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp { host, port }, Some(_)) => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
        };
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("distlock", env!("CARGO_PKG_VERSION"))
            .set_db(self.db);
        if let Some(user) = &self.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password.reveal());
        }
        let info = |addr: ConnectionAddr| -> redis::RedisResult<ConnectionInfo> {
            // Small calls, several under way: without it one waits for the answer to another.
            let at_once = TcpSettings::default().set_nodelay(true);
            Ok(addr.into_connection_info()?.set_redis_settings(login).set_tcp_settings(at_once))
        };
        let client = match &self.tls {
            Some(tls) => info(addr).and_then(|info| Client::build_with_tls(info, tls.clone())),
            None => info(addr).and_then(Client::open),
        };
        client.map_err(|e| errors::opening(&e, address))
    }
}

fn certificates(files: &Tls) -> Result<TlsCertificates, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| {
            Error::new(Kind::Usage, format!("cannot read {}", path.display()))
                .because(e)
                .with_hint("ca, cert and key name files in PEM form")
        })
    };
    let client_tls = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
        _ => None,
    };
    let root_cert = files.ca.as_deref().map(read).transpose()?;
    // Without this, no authority at all would be trusted, and the server be blamed for it.
    if root_cert.as_ref().is_some_and(|ca| !ca.windows(PEM.len()).any(|part| part == PEM)) {
        let ca = files.ca.as_deref().unwrap_or(Path::new("")).display();
        return Err(Error::new(Kind::Usage, format!("{ca} holds no certificate"))
            .with_hint("ca names a file of certificates in PEM form"));
    }
    Ok(TlsCertificates { client_tls, root_cert })
}
