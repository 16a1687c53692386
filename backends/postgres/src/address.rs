//! Where the database is: what a URL says, as the driver takes it.

use distlock_core::url::{invalid, usage};
use distlock_core::{Error, StoreUrl};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// The driver's options for a URL. What it does not say the variables `PGHOST`, `PGPORT`, `PGUSER`,
/// `PGPASSWORD`, `PGDATABASE` and `PGSSLMODE` do.
///
/// # Errors
/// [`Kind::Usage`](distlock_core::Kind::Usage) for an invalid URL.
pub(crate) fn options(url: &mut StoreUrl) -> Result<PgConnectOptions, Error> {
    // A pooler refuses what it does not know of a start-up message, and we have no use for it.
    let mut to = PgConnectOptions::new_without_pgpass()
        .application_name("distlock")
        .extra_float_digits(None);
    let directory = url.take("host");
    let hosts = url.hosts.clone();
    let host = match hosts.as_slice() {
        [] => None,
        [one] => Some(one),
        _ => {
            return Err(usage("one database has one host")
                .with_hint("name the primary, or an address that always leads to it"));
        }
    };
    if let Some(port) = host.and_then(|h| h.port) {
        to = to.port(port);
    }
    if let Some(port) = url.take("port") {
        to = to.port(port.parse().map_err(|_| invalid("port", &port, "1 to 65535"))?);
    }
    match (host.map(|h| h.host.as_str()), directory.as_deref()) {
        (Some(host), None) | (None, Some(host)) => {
            to = if host.starts_with('/') { to.socket(host) } else { to.host(host) };
        }
        (Some(_), Some(_)) => {
            return Err(usage("the URL names two hosts").with_hint(
                "?host= is for the directory of a Unix socket: postgres:///db?host=/run/postgresql",
            ));
        }
        (None, None) => {}
    }
    if let Some(user) = &url.user {
        to = to.username(user);
    }
    if let Some(password) = &url.password {
        to = to.password(password.reveal());
    }
    let database = url.path.trim_start_matches('/');
    if !database.is_empty() {
        to = to.database(database);
    }
    if let Some(mode) = url.take("sslmode") {
        let allowed = "disable, allow, prefer (the default), require, verify-ca or verify-full";
        let known: Result<PgSslMode, _> = mode.parse();
        to = to.ssl_mode(known.map_err(|_| invalid("sslmode", &mode, allowed))?);
    }
    for (key, set) in [
        ("sslrootcert", PgConnectOptions::ssl_root_cert as fn(_, String) -> _),
        ("sslcert", PgConnectOptions::ssl_client_cert),
        ("sslkey", PgConnectOptions::ssl_client_key),
    ] {
        let Some(file) = url.take(key) else { continue };
        if let Err(e) = std::fs::metadata(&file) {
            return Err(usage(format!("cannot read {key}={file}"))
                .because(e)
                .with_hint("the path of a PEM file"));
        }
        to = set(to, file);
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use distlock_core::Kind;

    use super::*;

    fn parse(url: &str) -> Result<PgConnectOptions, Error> {
        options(&mut StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn hosts_sockets_users_and_databases_are_understood() {
        let to = parse("postgres://me:pw@db:7/locks").unwrap();
        let found = (to.get_host(), to.get_port(), to.get_username(), to.get_database());
        assert_eq!(found, ("db", 7, "me", Some("locks")));
        for url in ["postgres:///x?host=/run/pg", "postgres://%2Frun%2Fpg:9/x"] {
            let to = parse(url).unwrap();
            assert_eq!(to.get_socket().unwrap().to_str(), Some("/run/pg"), "{url}");
        }
        let to = parse("postgres://db?sslmode=verify-full").unwrap();
        assert!(matches!(to.get_ssl_mode(), PgSslMode::VerifyFull));
    }

    #[test]
    fn wrong_ones_say_what_is_allowed() {
        for url in [
            "postgres://a,b/x",
            "postgres://a/x?host=b",
            "postgres://a?sslmode=perhaps",
            "postgres://a?sslrootcert=/no/such/file",
        ] {
            let e = parse(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{url}: {e:?}");
        }
    }
}
