//! What a URL says: one server, and nothing else.

use distlock_core::url::{Host, usage};
use distlock_core::{Error, StoreUrl};

const PORT: u16 = 11211;

/// The server of a URL, with its port.
///
/// # Errors
/// [`Kind::Usage`](distlock_core::Kind::Usage) for a URL with anything but one host.
pub(crate) fn server(url: &StoreUrl) -> Result<Host, Error> {
    url.finish(&["namespace", "require"])?;
    let fault = match &url.hosts[..] {
        _ if url.user.is_some() || url.password.is_some() => "memcached:// knows no login",
        [_] if !matches!(url.path.as_str(), "" | "/") => "memcached:// has no path",
        [host] => return Ok(Host { port: host.port.or(Some(PORT)), ..host.clone() }),
        [] => "memcached:// needs a host",
        // A client with another list would look for the same lock on another server.
        _ => "memcached:// takes one host: locks spread over several would not exclude each other",
    };
    Err(usage(fault).with_hint("write memcached://HOST or memcached://HOST:PORT"))
}
