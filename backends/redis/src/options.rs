//! Options of a `redis://` URL and their defaults: algorithm, quarantine, timeouts, replicas.

use std::path::PathBuf;
use std::time::Duration;

use distlock_core::{Error, Kind, Secret, StoreUrl};

/// How long a name is remembered at least, usually and at most. Requests that have ended must be
/// remembered for a minute.
const KEEP: (Duration, Duration, Duration) =
    (Duration::from_secs(120), Duration::from_secs(24 * 3600), Duration::from_secs(7 * 24 * 3600));

/// How the locks are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// Atomic scripts, a fair queue, fencing tokens.
    #[default]
    Script,
    /// The recipe the world runs: `SET name random NX PX ttl`, for locks shared with other
    /// languages' clients.
    Plain,
}

/// Options of every redis store; all of them can stand in the URL's query.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Which algorithm keeps the locks.
    pub algorithm: Algorithm,
    /// The bound of one call.
    pub timeout: Duration,
    /// The longest TTL of any client of this store: as long lasts the quarantine. All clients of a
    /// server must agree on it.
    pub max_ttl: Duration,
    /// Whether nothing is granted for `max_ttl` after the server may have lost locks. Without it
    /// two holders are possible after a restart or failover, and only the fence helps.
    pub quarantine: bool,
    /// What the quarantine lasts beyond `max_ttl`.
    pub slack: Duration,
    /// How many replicas must have a grant before it is answered.
    pub replicas: u8,
    /// How long a name that nobody uses is remembered.
    pub keep: Duration,
    /// How much of a TTL a guard gives up for clocks that run at different rates, in percent.
    pub drift_percent: u8,
    /// The files of a TLS connection.
    pub tls: Tls,
    /// The password of the sentinels.
    pub sentinel_password: Option<Secret>,
}

/// Files in PEM form that a TLS connection may need.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The authority that signed the server's certificate.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Script,
            timeout: Duration::from_secs(3),
            max_ttl: Duration::from_secs(30),
            quarantine: true,
            slack: Duration::ZERO,
            replicas: 0,
            keep: KEEP.1,
            drift_percent: 10,
            tls: Tls::default(),
            sentinel_password: None,
        }
    }
}

impl RedisOptions {
    /// Takes its keys out of a URL's query.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a value that cannot be, with what can.
    pub fn take_from(url: &mut StoreUrl) -> Result<Self, Error> {
        let mut options = Self::default();
        let words = [("script", Algorithm::Script), ("plain", Algorithm::Plain)];
        options.algorithm = url.take_word("algorithm", &words)?.unwrap_or(options.algorithm);
        let (ms, second) = (Duration::from_millis, Duration::from_secs);
        options.timeout =
            url.take_duration("timeout", ms(20)..=second(60))?.unwrap_or(options.timeout);
        options.max_ttl =
            url.take_duration("max_ttl", ms(200)..=second(24 * 3600))?.unwrap_or(options.max_ttl);
        let words = [("on", true), ("off", false)];
        options.quarantine = url.take_word("quarantine", &words)?.unwrap_or(options.quarantine);
        options.replicas = url.take_number("wait", 0..=16)?.unwrap_or(0);
        options.keep = url.take_duration("keep", KEEP.0..=KEEP.2)?.unwrap_or(options.keep);
        options.drift_percent = url.take_number("drift", 0..=50)?.unwrap_or(options.drift_percent);
        options.tls =
            Tls { ca: url.take_path("ca"), cert: url.take_path("cert"), key: url.take_path("key") };
        if options.tls.cert.is_some() != options.tls.key.is_some() {
            return Err(Error::new(Kind::Usage, "cert and key belong together")
                .with_hint("name the files of both, in PEM form: ?cert=…&key=…"));
        }
        options.sentinel_password = url.take("sentinel_password").map(Secret::new);
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_from_the_url_and_wrong_ones_say_what_is_allowed() {
        let mut url = StoreUrl::parse(
            "redis://h?max_ttl=2s&timeout=500ms&quarantine=off&wait=1&drift=1&algorithm=plain&keep=5m",
        )
        .unwrap();
        let options = RedisOptions::take_from(&mut url).unwrap();
        assert_eq!(options.max_ttl, Duration::from_secs(2));
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert!(!options.quarantine && options.algorithm == Algorithm::Plain);
        assert_eq!((options.replicas, options.drift_percent), (1, 1));
        assert_eq!(options.keep, Duration::from_secs(300));
        assert!(url.finish(&[]).is_ok());
        for wrong in [
            "max_ttl=1ms",
            "timeout=x",
            "keep=1s",
            "quarantine=no",
            "wait=-1",
            "algorithm=y",
            "key=k",
        ] {
            let mut url = StoreUrl::parse(&format!("redis://h?{wrong}")).unwrap();
            let e = RedisOptions::take_from(&mut url).unwrap_err();
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{wrong}: {e:?}");
        }
    }

    #[test]
    fn the_password_of_the_sentinels_is_not_printed() {
        let url = "redis+sentinel://h/s?sentinel_password=hush";
        let mut url = StoreUrl::parse(url).unwrap();
        let options = RedisOptions::take_from(&mut url).unwrap();
        assert_eq!(options.sentinel_password.as_ref().map(Secret::reveal), Some("hush"));
        assert!(!format!("{options:?}").contains("hush"));
    }
}
