//! From a URL to a quorum whose majority answers.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::url::usage;
use distlock_core::{Backend, Error, Kind, QuorumDriver, QuorumNode, Store, StoreUrl, Wake};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::capability::redlock_capability;
use super::keys;
use super::node::RedlockNode;
use crate::address::{Address, Credentials, PORT};
use crate::open::database;
use crate::options::{RedisOptions, Tls};
use crate::script_calls::Message;

/// The schemes of Redlock.
pub(crate) const SCHEMES: [&str; 2] = ["redlock", "redlocks"];

/// On top of `max_ttl`, a node that lost its data stays shut for tokens that ran ahead of its clock
/// and for clocks that differ: a second each.
const SLACK: Duration = Duration::from_secs(2);
/// How long a node may take to answer, unless the URL says otherwise; a tenth of the TTL counts when
/// that is less.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// Once a majority answers, the others are waited for as long again, and at least this long.
const GRACE: Duration = Duration::from_millis(20);

/// Connects to the servers that a URL of one of [`SCHEMES`] names.
pub(crate) async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    let plan = Plan::of(url)?;
    let (site, bound) = (plan.site(), plan.node_timeout);
    let capability = Arc::new(redlock_capability(&plan.options));
    let node = |(address, credentials)| {
        RedlockNode::new(address, credentials, plan.options.clone(), capability.clone())
    };
    let nodes: Vec<_> = plan.nodes.into_iter().map(node).collect();
    greet(&site, &nodes).await?;
    Ok(QuorumDriver::new(site, nodes)?.per_node(bound).into_backend())
}

/// Which servers, and how they are entered: what a URL says, checked.
struct Plan {
    scheme: String,
    options: RedisOptions,
    node_timeout: Duration,
    nodes: Vec<(Address, Credentials)>,
}

impl Plan {
    fn of(mut url: StoreUrl) -> Result<Self, Error> {
        let mut options = RedisOptions::take_from(&mut url)?;
        let (db, urls) = (url.take("db"), url.take_all("node"));
        let node_timeouts = Duration::from_millis(5)..=Duration::from_secs(10);
        let node_timeout =
            url.take_duration("node_timeout", node_timeouts)?.unwrap_or(NODE_TIMEOUT);
        url.finish(&["namespace", "require"])?;
        if options.replicas > 0 || options.sentinel_password.is_some() {
            return Err(usage("wait and sentinel_password are not for Redlock")
                .with_hint("its nodes are independent servers, without replicas or sentinels"));
        }
        options.slack = SLACK;
        let scheme = url.scheme.clone();
        let nodes = match (urls.is_empty(), url.hosts.is_empty()) {
            (true, _) => hosts(&url, db.as_deref(), &options.tls)?,
            (false, true) if url.path.is_empty() => {
                let node = |text: &String| node(text, db.as_deref(), &options.tls);
                urls.iter().map(node).collect::<Result<_, _>>()?
            }
            (false, _) => {
                return Err(usage("hosts or node=, not both").with_hint(
                    "redlock://h1,h2,h3 for servers with one login, redlock:?node=redis://…&node=… \
                     for servers with a login each",
                ));
            }
        };
        let plan = Self { scheme, options, node_timeout, nodes };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), Error> {
        let count = self.nodes.len();
        if count < 3 || count.is_multiple_of(2) {
            return Err(usage(format!("{count} nodes make no quorum")).with_hint(
                "name an odd number of independent servers, 3 or more: redlock://h1,h2,h3",
            ));
        }
        let mut seen = HashSet::new();
        for (address, _) in &self.nodes {
            if !seen.insert(address.to_string().to_lowercase()) {
                return Err(usage(format!("{address} is named twice"))
                    .with_hint("each node must be a server of its own: its vote counts once"));
            }
        }
        Ok(())
    }

    fn site(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|(a, _)| a.to_string()).collect();
        format!("{}://{}", self.scheme, nodes.join(","))
    }
}

/// The hosts of the URL: one login, one database.
fn hosts(
    url: &StoreUrl,
    db: Option<&str>,
    tls: &Tls,
) -> Result<Vec<(Address, Credentials)>, Error> {
    let mut each = url.clone();
    each.scheme = if url.scheme == "redlocks" { "rediss" } else { "redis" }.to_owned();
    let db = database_of(db, &url.path)?;
    let credentials = Credentials::of(&each, db, tls)?;
    Ok(url.hosts.iter().map(|host| (Address::of(host, PORT), credentials.clone())).collect())
}

/// A node by a URL of its own.
fn node(text: &str, db: Option<&str>, tls: &Tls) -> Result<(Address, Credentials), Error> {
    let hint = "node=redis://user:password@host:port/db, or rediss://…, or redis+unix:/path";
    let mut url = StoreUrl::parse(text)?;
    let own = url.take("db");
    url.finish(&[])?;
    let none = Tls::default();
    let unix = url.scheme == "redis+unix";
    let tls = match url.scheme.as_str() {
        "rediss" => tls,
        "redis" | "redis+unix" => &none,
        other => return Err(usage(format!("invalid scheme of a node {other}:")).with_hint(hint)),
    };
    let path = if unix { "" } else { &url.path };
    let db = database_of(own.as_deref().or(db), path)?;
    let address = match (unix, &url.hosts[..]) {
        (true, []) if !url.path.is_empty() => Address::Unix(PathBuf::from(&url.path)),
        (false, [host]) => Address::of(host, PORT),
        _ => return Err(usage("a node is one server").with_hint(hint)),
    };
    Ok((address, Credentials::of(&url, db, tls)?))
}

fn database_of(query: Option<&str>, path: &str) -> Result<i64, Error> {
    let path = path.trim_matches('/');
    let text = query.or((!path.is_empty()).then_some(path));
    database(text, "redlock://H1,H2,H3/DB, as in …/0")
}

/// Connects to all and is content with a majority; the others are connected in the background.
async fn greet(site: &str, servers: &[RedlockNode]) -> Result<(), Error> {
    let clock = servers[0].info().clock.clone();
    let (start, majority) = (clock.now(), servers.len() / 2 + 1);
    let greet = async |node: &RedlockNode| (node.site.clone(), node.server.link().await);
    let mut greeting: FuturesUnordered<_> = servers.iter().map(greet).collect();
    let (mut runs, mut silent) = (Vec::new(), Vec::new());
    let mut until = None;
    loop {
        let next = match until {
            None => greeting.next().await,
            Some(until) => clock.timeout(until, greeting.next()).await.flatten(),
        };
        match next {
            Some((site, Ok(link))) => runs.push((link.run().to_owned(), site)),
            Some((site, Err(e))) => silent.push((site, e)),
            None => break,
        }
        if runs.len() >= majority {
            until = Some(clock.now().since(start).max(GRACE));
        }
    }
    runs.sort();
    for pair in runs.windows(2) {
        // One that names no run is let in only where the quarantine is off.
        if pair[0].0 == pair[1].0 && !pair[0].0.is_empty() {
            let what = format!("{} and {} are one server", pair[0].1, pair[1].1);
            return Err(usage(what)
                .store(site)
                .with_hint("its vote must count once: name it once"));
        }
    }
    let told = |(site, e): &(String, Error)| format!("{site}: {}", e.message());
    let why: Vec<String> = silent.iter().map(told).collect();
    if runs.len() >= majority {
        if !why.is_empty() {
            tracing::warn!(store = site, "nodes that do not answer: {}", why.join("; "));
        }
        return Ok(());
    }
    // What a person must mend counts more than what may mend itself.
    let worst = silent.iter().map(|(_, e)| e.kind()).find(|kind| *kind != Kind::Unreachable);
    let hint = silent.iter().find(|(_, e)| Some(e.kind()) == worst).and_then(|(_, e)| e.hint());
    let usual = format!("a lock needs {majority} of {} nodes: see whether they run", servers.len());
    let what = format!("{} of {} nodes answer; {}", runs.len(), servers.len(), why.join("; "));
    Err(Error::new(worst.unwrap_or(Kind::Unreachable), what)
        .store(site)
        .with_hint(hint.map_or(usual, str::to_owned)))
}

/// Reads what a node tells unasked.
pub(super) fn reads(message: &[u8]) -> Option<Wake> {
    Message::parse(message, keys::lock_of).map(Message::wake)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(url: &str) -> Result<Plan, Error> {
        Plan::of(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn hosts_share_a_login_and_nodes_have_their_own() {
        let p = plan("redlock://me:pw@a,b:1,[::1]:2/3?max_ttl=2s").unwrap();
        assert_eq!(p.site(), "redlock://a:6379,b:1,[::1]:2");
        assert!(p.nodes.iter().all(|(_, e)| e.db == 3 && e.user.as_deref() == Some("me")));
        let p = plan("redlocks://a,b,c").unwrap();
        assert!(p.nodes.iter().all(|(_, e)| e.tls.is_some()));
        let p =
            plan("redlock:?node=redis://:x@a/1&node=rediss://b&node=redis%2Bunix:/r.sock").unwrap();
        assert_eq!(p.site(), "redlock://a:6379,b:6379,/r.sock");
        let found: Vec<_> = p.nodes.iter().map(|(_, e)| (e.db, e.tls.is_some())).collect();
        assert_eq!(found, [(1, false), (0, true), (0, false)]);
    }

    #[test]
    fn wrong_urls_say_what_is_allowed() {
        let wrong = [
            "redlock:",
            "redlock://a",
            "redlock://a,b",
            "redlock://a,b,c,d",
            "redlock://a,b,A",
            "redlock://a,b,a:6379",
            "redlock://a,b,c/x",
            "redlock://a,b,c?node=redis://d",
            "redlock://a,b,c?nonsense=1",
            "redlock://a,b,c?wait=1",
            "redlock://a,b,c?node_timeout=1h",
            "redlock:?node=redis://a&node=redis://b",
            "redlock:?node=redis://a&node=redis://b&node=http://c",
            "redlock:?node=redis://a&node=redis://b&node=redis://c,d",
            "redlock:?node=redis://a&node=redis://b&node=redis://c%3Fx=1",
        ];
        for url in wrong {
            let e = plan(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(e.kind() == Kind::Usage && e.hint().is_some(), "{url}: {e:?}");
        }
    }
}
