//! The ticket of a hold: text by which another process can take it up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Error, FullName, Kind, Name, Namespace, ReqId, Token};

const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

/// The ticket of one hold: name, request, token and store. It suffices to renew and release the
/// hold, so treat it as you would the lock itself. Prints and parses; safe in a shell without
/// quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ticket {
    /// The lock.
    pub lock: FullName,
    /// The request that holds it.
    pub req: ReqId,
    /// The token it holds it with.
    pub token: Token,
    /// The TTL it was granted with.
    pub ttl: Duration,
    /// A fingerprint of the store that granted it.
    pub store: u32,
}

/// The fingerprint of a store, so that a ticket is not taken to another one by mistake (FNV-1a;
/// it guards against mix-ups, not against forgery).
#[must_use]
pub fn fingerprint(site: &str) -> u32 {
    site.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock: FullName { space, name }, req, token, store, .. } = self;
        let (ttl, name) = (self.ttl.as_millis(), utf8_percent_encode(name.as_str(), PLAIN));
        write!(f, "dl1:{req}:{token}:{ttl}:{store:08x}:{space}:{name}")
    }
}

impl FromStr for Ticket {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        let bad = || {
            Error::new(Kind::Usage, format!("{s:?} is not a ticket"))
                .with_hint("a ticket is what `distlock acquire` or Guard::detach printed: dl1:…")
        };
        let parts: Vec<&str> = s.trim().split(':').collect();
        let ["dl1", req, token, ttl, store, space, name] = parts[..] else { return Err(bad()) };
        let name = percent_decode_str(name).decode_utf8().map_err(|_| bad())?;
        Ok(Self {
            lock: FullName { space: Namespace::new(space)?, name: Name::new(name)? },
            req: req.parse().map_err(|_| bad())?,
            token: token.parse().map_err(|_| bad())?,
            ttl: Duration::from_millis(ttl.parse().map_err(|_| bad())?),
            store: u32::from_str_radix(store, 16).map_err(|_| bad())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_prints_and_parses_whatever_the_name() {
        for name in ["orders/42", "a:b c\n{d}\"'", "замок", "100%"] {
            let lock =
                FullName { space: Namespace::new("shop").unwrap(), name: Name::new(name).unwrap() };
            let t = Ticket {
                lock,
                req: ReqId::random(),
                token: Token::new(17).unwrap(),
                ttl: Duration::from_secs(600),
                store: fingerprint("sqlite:/x"),
            };
            let text = t.to_string();
            assert_eq!(text.parse::<Ticket>().unwrap(), t);
            let safe = |c: char| c.is_ascii_alphanumeric() || ":-_./%".contains(c);
            assert!(text.chars().all(safe), "{text}");
        }
        for bad in ["", "dl1", "dl2:0:1:1:0::a", "dl1:zz:1:1:0::a"] {
            assert!(bad.parse::<Ticket>().is_err());
        }
    }
}
