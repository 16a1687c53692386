//! What a URL or a program sets.

use std::time::Duration;

use distlock_core::url::{Host, usage};
use distlock_core::{Error, Secret, StoreUrl};
use zookeeper_client::{Acl as Grant, Acls, AuthId, Permission};

const PORT: u16 = 2181;
/// Where locks are kept when the URL names no path.
const ROOT: &str = "/distlock";

/// The access list of the nodes that this client makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acl {
    /// Everybody everything: the default without a login.
    Open,
    /// This login everything, others nothing: the default with one.
    Creator,
    /// This login everything, others may look.
    CreatorRead,
}

impl Acl {
    /// As the server is told.
    pub(crate) fn list(self) -> Vec<Grant> {
        let mine = || Grant::new(Permission::ALL, AuthId::authed());
        match self {
            Acl::Open => vec![Grant::new(Permission::ALL, AuthId::anyone())],
            Acl::Creator => vec![mine()],
            Acl::CreatorRead => vec![mine(), Grant::new(Permission::READ, AuthId::anyone())],
        }
    }
}

/// Where the ensemble is, and how its locks are kept.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    pub(crate) hosts: Vec<Host>,
    pub(crate) root: String,
    pub(crate) login: Option<(String, Secret)>,
    pub(crate) grants: Vec<Grant>,
    /// The URL asks for this very access list: to keep less would be to break a promise.
    pub(crate) acl_named: bool,
    pub(crate) tick: Option<Duration>,
}

impl ZooKeeperOptions {
    /// Reads `zookeeper://USER:PASSWORD@H1:PORT,H2/PATH?tick=2s&acl=creator`. The port is 2181 and
    /// the path `/distlock` unless named.
    ///
    /// # Errors
    /// [`Kind::Usage`](distlock_core::Kind::Usage) for an invalid URL.
    pub fn from_url(url: &StoreUrl) -> Result<Self, Error> {
        let mut url = url.clone();
        let words =
            [("open", Acl::Open), ("creator", Acl::Creator), ("creator-read", Acl::CreatorRead)];
        let acl = url.take_word("acl", &words)?;
        let ticks = Duration::from_millis(1)..=Duration::from_secs(60);
        let tick = url.take_duration("tick", ticks)?;
        url.finish(&["namespace", "require"])?;
        if url.hosts.is_empty() {
            return Err(usage("zookeeper:// needs a host")
                .with_hint("write zookeeper://HOST, or zookeeper://H1,H2,H3/PATH"));
        }
        let port = |h: &Host| Host { port: h.port.or(Some(PORT)), ..h.clone() };
        let login = match (url.user.clone(), url.password.clone()) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => {
                return Err(usage("a ZooKeeper login is a user and a password")
                    .with_hint("write zookeeper://USER:PASSWORD@HOST"));
            }
        };
        let acl_named = acl.is_some();
        let acl = match (acl, &login) {
            (Some(Acl::Open), _) | (None, None) => Acl::Open,
            (Some(_), None) => {
                return Err(usage("acl=creator needs a login")
                    .with_hint("write zookeeper://USER:PASSWORD@HOST?acl=creator"));
            }
            (acl, Some(_)) => acl.unwrap_or(Acl::Creator),
        };
        let hosts = url.hosts.iter().map(port).collect();
        Ok(Self { hosts, root: root(&url.path)?, login, grants: acl.list(), acl_named, tick })
    }

    /// The servers, as the client library wants them.
    pub(crate) fn cluster(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// What it is called, fit to print.
    pub(crate) fn site(&self) -> String {
        format!("zookeeper://{}{}", self.cluster(), self.root)
    }

    /// Whether the access list keeps others from writing.
    pub(crate) fn is_closed(&self) -> bool {
        self.grants != Acl::Open.list()
    }

    pub(crate) fn acls(&self) -> Acls<'_> {
        Acls::new(&self.grants)
    }

    /// How far apart two heartbeats must be for the second to prove the first: longer than the
    /// servers' own tick, which no client can read.
    pub(crate) fn tick(&self, ttl: Duration) -> Duration {
        self.tick.unwrap_or_else(|| (ttl / 4).min(Duration::from_secs(2)))
    }
}

/// A path that ZooKeeper takes, without a slash at its end.
fn root(path: &str) -> Result<String, Error> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(ROOT.to_owned());
    }
    let bad = |part: &str| part.is_empty() || matches!(part, "." | "..");
    if path.split('/').skip(1).any(bad) || path.contains(char::is_control) {
        return Err(usage(format!("{path:?} is not a path of ZooKeeper"))
            .with_hint("for example zookeeper://HOST/apps/locks"));
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return Err(usage("/zookeeper is ZooKeeper's own").with_hint("use another path"));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use distlock_core::Kind;

    use super::*;

    fn read(url: &str) -> Result<ZooKeeperOptions, Error> {
        ZooKeeperOptions::from_url(&StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_hosts_path_login_and_tick() {
        let o = read("zookeeper://u:p@a,b:1/x/y/?tick=3s").unwrap();
        assert_eq!((o.cluster().as_str(), o.root.as_str()), ("a:2181,b:1", "/x/y"));
        assert_eq!(
            (o.grants.clone(), o.tick(Duration::from_secs(1))),
            (Acl::Creator.list(), Duration::from_secs(3))
        );
        let o = read("zk://a").unwrap();
        assert_eq!((o.root.as_str(), o.grants.clone()), ("/distlock", Acl::Open.list()));
        assert_eq!(o.tick(Duration::from_secs(4)), Duration::from_secs(1));
        assert_eq!(o.tick(Duration::from_secs(40)), Duration::from_secs(2));
        assert!(
            !format!("{:?} {}", read("zk://u:hunter2@h").unwrap(), o.site()).contains("hunter2")
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_hint() {
        for url in [
            "zk:",
            "zk://h//x",
            "zk://h/./x",
            "zk://h/zookeeper",
            "zk://u@h",
            "zk://h?acl=creator",
            "zk://h?acl=all",
            "zk://h?tick=0",
            "zk://h?tick=x",
            "zk://h?tock=1",
        ] {
            let e = read(url).unwrap_err();
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{url}: {e:?}");
        }
    }
}
