//! Certificates made for one test, and a redis that shows them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use distlock_core::{Error, Kind};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use super::Redis;

/// A certificate authority, a certificate of a server on this machine and one of a client, as PEM
/// files. Dropping it removes them; keep it for as long as a server starts with it.
///
/// Another value is another authority: its [`Certs::ca`] is one that the server's certificate is
/// not signed by, and its client a stranger.
#[derive(Debug)]
pub struct Certs {
    dir: TempDir,
}

impl Certs {
    /// Makes new keys and certificates.
    ///
    /// # Errors
    /// When no file can be written.
    pub fn new() -> Result<Self, Error> {
        let trouble = |e| Error::new(Kind::Store, "no certificates for the test").because(e);
        let dir = tempfile::Builder::new().prefix("distlock-certs-").tempdir().map_err(trouble)?;
        write(dir.path()).map_err(|e| trouble(io::Error::other(e)))?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The authority's certificate: who trusts it trusts the server and the client.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.path("ca.crt")
    }

    /// The server's certificate, for `localhost` and `127.0.0.1`.
    #[must_use]
    pub fn server_cert(&self) -> PathBuf {
        self.path("server.crt")
    }

    /// The server's key.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.path("server.key")
    }

    /// The client's certificate.
    #[must_use]
    pub fn client_cert(&self) -> PathBuf {
        self.path("client.crt")
    }

    /// The client's key.
    #[must_use]
    pub fn client_key(&self) -> PathBuf {
        self.path("client.key")
    }
}

fn write(dir: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // The directory's name makes it an authority of its own: two of one name would be told apart
    // by their signatures only, which is not how a certificate of somebody else looks.
    let mut ca = named(&format!("distlock test authority {}", dir.display()), &[])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    fs::write(dir.join("ca.crt"), ca.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(ca, key);

    let here = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut server = named("distlock test server", &here)?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut client = named("distlock test client", &[])?;
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    for (name, params) in [("server", server), ("client", client)] {
        let key = KeyPair::generate()?;
        fs::write(dir.join(format!("{name}.crt")), params.signed_by(&key, &issuer)?.pem())?;
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

fn named(name: &str, hosts: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

impl Redis {
    /// Speaks TLS on its port, with these certificates, and nothing else there. On its Unix
    /// socket ([`Redis::socket`]) it speaks plainly, so that a test can look inside.
    pub fn tls(self, certs: &Certs) -> Self {
        let file = |path: PathBuf| path.display().to_string();
        self.only_tls()
            .arg("tls-cert-file", &file(certs.server_cert()))
            .arg("tls-key-file", &file(certs.server_key()))
            .arg("tls-ca-cert-file", &file(certs.ca()))
            .arg("tls-auth-clients", "no")
    }

    /// As [`Redis::tls`], and only clients with a certificate of the same authority get in.
    pub fn tls_clients(self, certs: &Certs) -> Self {
        self.tls(certs).arg("tls-auth-clients", "yes")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    use super::super::Wire;
    use super::*;

    /// `PING` over TLS, trusting `ca` and showing the certificate of `me`.
    fn ping(addr: SocketAddr, host: &str, ca: &Certs, me: Option<&Certs>) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca.ca()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match me {
            None => config.with_no_client_auth(),
            Some(me) => {
                let cert = CertificateDer::from_pem_file(me.client_cert()).unwrap();
                let key = PrivateKeyDer::from_pem_file(me.client_key()).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        let host = host.to_owned().try_into().unwrap();
        let client = ClientConnection::new(Arc::new(config), host).unwrap();
        let mut stream = StreamOwned::new(client, TcpStream::connect(addr)?);
        stream.write_all(b"PING\r\n")?;
        let mut got = [0; 7];
        stream.read_exact(&mut got)?;
        Ok(String::from_utf8_lossy(&got).trim().to_owned())
    }

    #[tokio::test]
    async fn only_who_trusts_the_authority_gets_an_answer() {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let redis = Redis::new().tls(&certs).start().await.unwrap();
        for host in ["localhost", "127.0.0.1"] {
            assert_eq!(ping(redis.addr(), host, &certs, None).unwrap(), "+PONG");
        }
        let e = ping(redis.addr(), "localhost", &strange, None).unwrap_err();
        assert!(e.to_string().contains("UnknownIssuer"), "{e}");
        let e = ping(redis.addr(), "elsewhere.example", &certs, None).unwrap_err();
        assert!(e.to_string().contains("not valid for name"), "{e}");
        assert!(Wire::to(redis.addr()).await.unwrap().call(&["PING"]).await.is_err());
        let mut wire = Wire::to_socket(Redis::socket(&redis)).await.unwrap();
        assert_eq!(wire.call(&["PING"]).await.unwrap().to_string(), "PONG");
    }

    #[tokio::test]
    async fn a_client_without_the_authoritys_certificate_is_refused() {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let redis = Redis::new().tls_clients(&certs).start().await.unwrap();
        let addr = redis.addr();
        assert_eq!(ping(addr, "localhost", &certs, Some(&certs)).unwrap(), "+PONG");
        assert!(ping(addr, "localhost", &certs, Some(&strange)).is_err());
        assert!(ping(addr, "localhost", &certs, None).is_err());
    }
}
