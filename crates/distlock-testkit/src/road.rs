//! A way to a store that leads through proxies, one for each server behind it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use distlock_core::{Error, Kind};

use crate::StoreUnderTest;
use crate::proxy::{Proxy, Way};

/// A way to a store through proxies, all of which misbehave together. Dropping it closes them.
pub struct ProxiedRoute {
    url: String,
    proxies: Vec<Proxy>,
    /// How many of the proxies misbehave when told: the first ones.
    struck: usize,
    undo_needs_answers: bool,
}

impl ProxiedRoute {
    /// The URL that leads through the proxies, and the proxies. Of a store that is a majority of
    /// independent nodes, one proxy for each of them.
    pub fn new(url: impl Into<String>, proxies: Vec<Proxy>) -> Self {
        let struck = proxies.len();
        Self { url: url.into(), proxies, struck, undo_needs_answers: false }
    }

    /// A proxy before each server that a URL names, and the URL that names the proxies instead.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn past(url: &str, servers: &[SocketAddr]) -> Result<Self, Error> {
        let (mut url, mut proxies) = (url.to_owned(), Vec::new());
        for server in servers {
            let proxy = Proxy::to(*server).await.map_err(no_proxy)?;
            url = url.replace(&server.to_string(), &proxy.addr().to_string());
            proxies.push(proxy);
        }
        Ok(Self::new(url, proxies))
    }

    /// [`ProxiedRoute::past`] the one server of a site.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// As [`ProxiedRoute::past`].
    pub async fn past_its_server(site: &StoreUnderTest) -> Result<Self, Error> {
        Self::past(site.url(), &[site.server().addr()]).await
    }

    /// Proxies at another host of this machine, under the very ports of the servers: for servers
    /// that tell clients each other's ports, and leave it to them at which host.
    ///
    /// # Errors
    /// When one of the ports is taken there.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn at_host(host: IpAddr, url: &str, servers: &[SocketAddr]) -> Result<Self, Error> {
        let (mut url, mut proxies) = (url.to_owned(), Vec::new());
        for server in servers {
            let here = SocketAddr::new(host, server.port());
            proxies.push(Proxy::at(here, *server).await.map_err(no_proxy)?);
            url = url.replace(&server.to_string(), &here.to_string());
        }
        Ok(Self::new(url, proxies))
    }

    /// The same road under another URL, where servers other than those behind it lead to it.
    #[must_use]
    pub fn named(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// Says that undoing an acquire takes several calls at this store, each made of the answer to
    /// the one before: without answers it is not done, and the lock ends with its TTL.
    #[must_use]
    pub fn undo_needs_answers(mut self) -> Self {
        self.undo_needs_answers = true;
        self
    }

    pub(crate) fn undoes_unanswered(&self) -> bool {
        !self.undo_needs_answers
    }

    /// Where clients that take it connect to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on only as many misbehave as a quorum cannot do without.
    #[must_use]
    pub fn majority(mut self) -> Self {
        self.struck = self.proxies.len() / 2 + 1;
        self
    }

    /// From now on only as many misbehave as a quorum can do without.
    #[must_use]
    pub fn minority(mut self) -> Self {
        self.struck = self.proxies.len() - (self.proxies.len() / 2 + 1);
        self
    }

    /// The last instead of the first are those that misbehave.
    pub(crate) fn turned(mut self) -> Self {
        self.proxies.reverse();
        self
    }

    fn each(&self, command: impl Fn(&Proxy)) {
        self.proxies[..self.struck].iter().for_each(command);
    }

    /// Requests arrive, and their answers never do.
    pub fn drop_answers(&self) {
        self.each(Proxy::drop_replies);
    }

    /// Requests arrive, and their answers only after [`ProxiedRoute::heal`].
    pub fn hold_answers(&self) {
        self.each(|proxy| proxy.cut(Way::Replies));
    }

    /// Nothing arrives before [`ProxiedRoute::heal`].
    pub fn cut(&self) {
        self.each(Proxy::cut_both);
    }

    /// Whatever goes either way is this late.
    pub fn delay(&self, d: Duration) {
        self.each(|proxy| proxy.delay(d));
    }

    /// Every connection is reset, and what was held back is lost.
    pub fn reset(&self) {
        self.each(Proxy::reset);
    }

    /// All is well again.
    pub fn heal(&self) {
        self.each(Proxy::heal);
    }
}

fn no_proxy(e: std::io::Error) -> Error {
    Error::new(Kind::Store, "no proxy for the test").because(e)
}
