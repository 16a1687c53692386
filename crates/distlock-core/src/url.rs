//! URLs of stores, which may name several hosts.
//!
//! `scheme://user:password@host:port,host:port/path?key=value&key=value`, or `scheme:path` for
//! stores that are files. The usual parser refuses several hosts, or silently keeps one.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{Error, Kind, duration};

/// A password: printed as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a password.
    #[must_use]
    pub fn new(password: String) -> Self {
        Self(password)
    }

    /// The password itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One host of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// A name or an address; an IPv6 address without its brackets.
    pub host: String,
    /// The port, if one is named.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |p| write!(f, ":{p}"))
    }
}

/// A parsed URL. Prints without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// What stands before the colon, in lower case.
    pub scheme: String,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, if one is given.
    pub password: Option<Secret>,
    /// The hosts; none for a store that is files.
    pub hosts: Vec<Host>,
    /// The path: with its leading slash after hosts, as written for a store that is files.
    pub path: String,
    query: Vec<(String, String)>,
    /// The query keys that were asked for, each once: the store knows them.
    asked: Vec<String>,
}

impl StoreUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`Kind::Usage`], saying what is wrong without repeating a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            usage("a store's URL starts with its scheme").with_hint(
                "for example memory:, sqlite:locks.db, file:/var/lock/app or redis://127.0.0.1",
            )
        })?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(plain) {
            return Err(usage(format!("{scheme:?} is not a URL's scheme"))
                .with_hint("for example sqlite:locks.db"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = parse_query(query)?;
        let mut parsed = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            hosts: Vec::new(),
            path: String::new(),
            query,
            asked: Vec::new(),
        };
        match rest.strip_prefix("//") {
            Some(rest) => parsed.authority(rest)?,
            None => parsed.path = decode(rest)?,
        }
        Ok(parsed)
    }

    fn authority(&mut self, rest: &str) -> Result<(), Error> {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        self.path = decode(path)?;
        let hosts = match authority.rsplit_once('@') {
            None => authority,
            Some((login, hosts)) => {
                let (user, password) = split(login, ':');
                self.user = Some(decode(user)?).filter(|u| !u.is_empty());
                self.password = password.map(decode).transpose()?.map(Secret);
                hosts
            }
        };
        if !hosts.is_empty() {
            self.hosts = hosts.split(',').map(parse_host).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Takes the value of a query key out; the last one if it was repeated.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.take_all(key).pop()
    }

    /// Takes all values of a query key out.
    pub fn take_all(&mut self, key: &str) -> Vec<String> {
        if !self.asked.iter().any(|asked| asked == key) {
            self.asked.push(key.to_owned());
        }
        self.query.extract_if(.., |(k, _)| k == key).map(|(_, v)| v).collect()
    }

    /// Takes a number out of the query.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is none, or out of range.
    pub fn take_number<N: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        key: &str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>, Error> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let allowed = || format!("a number from {} to {}", range.start(), range.end());
        let number = text.parse().ok().filter(|n| range.contains(n));
        number.map(Some).ok_or_else(|| invalid(key, &text, allowed()))
    }

    /// Takes a duration out of the query.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is none, or out of range.
    pub fn take_duration(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, Error> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let span = duration::parse(&text).map_err(|why| invalid(key, &text, why))?;
        let allowed = || format!("{:?} to {:?}", range.start(), range.end());
        let span = Some(span).filter(|span| range.contains(span));
        span.map(Some).ok_or_else(|| invalid(key, &text, allowed()))
    }

    /// Takes one of several words out of the query.
    ///
    /// # Errors
    /// [`Kind::Usage`] for any other word.
    pub fn take_word<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let allowed = || {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            format!("one of {}", words.join(", "))
        };
        let known = words.iter().find(|(word, _)| *word == text);
        known.map(|(_, value)| Some(*value)).ok_or_else(|| invalid(key, &text, allowed()))
    }

    /// Takes a path out of the query; an empty one is none.
    pub fn take_path(&mut self, key: &str) -> Option<PathBuf> {
        self.take(key).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// The path of a store that is files. Such a URL has no host or login: `sqlite://locks.db` would
    /// silently mean another file.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a host, a login, or an empty path.
    pub fn only_path(&self) -> Result<&str, Error> {
        let scheme = &self.scheme;
        let fault = if !self.hosts.is_empty() || self.user.is_some() || self.password.is_some() {
            format!("{scheme}: takes a path, not a host")
        } else if self.path.is_empty() {
            format!("{scheme}: needs a path")
        } else {
            return Ok(&self.path);
        };
        Err(usage(fault)
            .with_hint(format!("write {scheme}:relative/path or {scheme}:/absolute/path")))
    }

    /// Refuses query keys that nobody took.
    ///
    /// # Errors
    /// [`Kind::Usage`], listing the known ones: all that were asked for, and `more` that others take.
    pub fn finish(&self, more: &[&str]) -> Result<(), Error> {
        let Some((key, _)) = self.query.first() else { return Ok(()) };
        let asked = self.asked.iter().map(String::as_str).filter(|key| !more.contains(key));
        let known: Vec<_> = asked.chain(more.iter().copied()).collect();
        Err(usage(format!("{}: does not know {key:?}", self.scheme))
            .with_hint(format!("known: {}", known.join(", "))))
    }
}

/// The error of an option with a value that is not allowed, and what is.
#[must_use]
pub fn invalid(key: &str, value: &str, allowed: impl Into<Cow<'static, str>>) -> Error {
    usage(format!("invalid {key}={value}")).with_hint(allowed)
}

/// An error of [`Kind::Usage`]: a URL or an option that names no store.
#[must_use]
pub fn usage(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Kind::Usage, message)
}

fn decode(text: &str) -> Result<String, Error> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        _ => {
            Err(usage("a part of the URL is not UTF-8 once decoded").with_hint("percent-encode it"))
        }
    }
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>, Error> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(key)?, decode(value)?))
    };
    query.split('&').filter(|p| !p.is_empty()).map(pair).collect()
}

/// What stands before a separator, and after it if there is one.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn parse_host(text: &str) -> Result<Host, Error> {
    // Only what is before the colon: the rest is a password where the login holds a bare / or ?.
    let shown = text.split(':').next().unwrap_or_default();
    let fault = || {
        usage(format!("what starts with {shown:?} is not a host of a URL")).with_hint(
            "host, host:port or [ipv6]:port, several with commas between; \
             in a login write / as %2F and ? as %3F",
        )
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(fault)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| fault())?;
            let port = || rest.strip_prefix(':').ok_or_else(fault);
            (host, (!rest.is_empty()).then(port).transpose()?)
        }
        None => split(text, ':'),
    };
    let host = decode(host)?;
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(fault());
    }
    let number = |port: &str| port.parse::<u16>().ok().filter(|n| *n > 0).ok_or_else(fault);
    Ok(Host { host, port: port.map(number).transpose()? })
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() || self.user.is_some() || self.password.is_some() {
            f.write_str("//")?;
            if self.user.is_some() || self.password.is_some() {
                f.write_str(self.user.as_deref().unwrap_or(""))?;
                f.write_str(if self.password.is_some() { ":***@" } else { "@" })?;
            }
            let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
            f.write_str(&hosts.join(","))?;
        }
        f.write_str(&self.path)?;
        for (i, (key, value)) in self.query.iter().enumerate() {
            // A node of a quorum may carry a password of its own.
            let value = if value.contains('@') { "***" } else { value };
            write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_user_password_path_and_query() {
        let mut url =
            StoreUrl::parse("redis+sentinel://me:p%40ss,w@h1:1,h2,[::1]:3/svc?a=1&node=x&node=y")
                .unwrap();
        assert_eq!(url.scheme, "redis+sentinel");
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_ref().unwrap().reveal(), "p@ss,w");
        assert_eq!(
            url.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["h1:1", "h2", "[::1]:3"]
        );
        assert_eq!(url.path, "/svc");
        assert_eq!(url.take_all("node"), ["x", "y"]);
        let e = url.finish(&["b", "c"]).unwrap_err();
        assert!(e.to_string().contains("\"a\"") && e.hint() == Some("known: node, b, c"));
        assert_eq!(url.take("a").as_deref(), Some("1"));
        assert!(url.finish(&[]).is_ok());
    }

    #[test]
    fn files_need_no_host() {
        assert_eq!(StoreUrl::parse("sqlite:a b.db").unwrap().path, "a b.db");
        assert_eq!(StoreUrl::parse("sqlite:/x/y").unwrap().path, "/x/y");
        assert_eq!(StoreUrl::parse("sqlite:///x/y").unwrap().path, "/x/y");
        assert_eq!(StoreUrl::parse("memory:").unwrap().path, "");
    }

    #[test]
    fn nothing_prints_a_password() {
        let url = StoreUrl::parse("redis://u:hunter2@h?node=redis://:hunter2@h2").unwrap();
        assert!(!format!("{url} {url:?}").contains("hunter2"), "{url:?}");
        for wrong in [
            "redis://u:hunter2@h:0",
            "redis://u:hunter2@[::",
            "hunter2",
            "redis://u:hunter2/x@h",
            "redis://u:hunter2?x@h",
        ] {
            let e = StoreUrl::parse(wrong).unwrap_err();
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e}");
        }
    }

    #[test]
    fn wrong_urls_say_why() {
        for wrong in
            ["", "nocolon", "://h", "re dis://h", "r://h:99999", "r://h:", "r://,", "r:%ff"]
        {
            assert_eq!(StoreUrl::parse(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    #[test]
    fn an_option_is_of_its_kind_and_in_its_range_or_says_what_is_allowed() {
        let url = || StoreUrl::parse("x://h?n=7&d=2s&w=b&f=/a&e=").unwrap();
        assert_eq!(url().take_number("n", 1..=7).unwrap(), Some(7));
        assert_eq!(url().take_number::<u8>("none", 1..=7).unwrap(), None);
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(url().take_duration("d", ms(5)..=s(2)).unwrap(), Some(s(2)));
        assert_eq!(url().take_word("w", &[("a", 1), ("b", 2)]).unwrap(), Some(2));
        assert_eq!(url().take_path("f"), Some(PathBuf::from("/a")));
        assert_eq!(url().take_path("e"), None);
        let told = |e: Error| (e.message().to_owned(), e.hint().unwrap_or_default().to_owned());
        let pair = |what: &str, hint: &str| (what.to_owned(), hint.to_owned());
        let wrong = url().take_number("n", 1..=6).unwrap_err();
        assert_eq!(told(wrong), pair("invalid n=7", "a number from 1 to 6"));
        let wrong = url().take_duration("d", ms(5)..=s(1)).unwrap_err();
        assert_eq!(told(wrong), pair("invalid d=2s", "5ms to 1s"));
        let wrong = url().take_word("w", &[("a", 1), ("c", 2)]).unwrap_err();
        assert_eq!(told(wrong), pair("invalid w=b", "one of a, c"));
    }
}
