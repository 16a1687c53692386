//! A client of one store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::ticket::fingerprint;
use crate::{
    Backend, Capability, Due, Error, Fence, Force, Forced, FullName, Grant, Guard, Kept, Key, Kind,
    Label, Lock, LockInfo, Lost, Name, Namespace, Query, Store, Ticket, Token, TokenRange, Ttl,
};

const PAGE: usize = 256;

/// A client of one store: where locks come from. Cheap to clone; clones are the same client.
///
/// Dropping the last clone gives nothing back by itself: guards do that. [`Locks::close`] does.
#[derive(Clone)]
pub struct Locks(Arc<Client>);

impl Locks {
    /// What can be chosen before connecting.
    pub fn options() -> Options {
        Options::default()
    }

    /// A client of a store that the caller made: its own pool, its own clock.
    #[must_use]
    pub fn from_store(store: impl Store) -> Self {
        Self(Arc::new(Options::default().client(store.into_backend())))
    }

    /// A lock of this name, to be asked for. An invalid name is an error of the acquire.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.0.clone(), Name::new(name))
    }

    /// What the store promises.
    #[must_use]
    pub fn capability(&self) -> &Capability {
        self.0.backend.capability()
    }

    /// The address of the store, fit to print: no password in it.
    #[must_use]
    pub fn site(&self) -> &str {
        self.0.backend.site()
    }

    /// The namespace of this client.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.0.space
    }

    /// The backend itself, for tools and tests.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Takes up a hold that was detached, here or in another process: renews it, and from then on
    /// it is held by the guard. A guard of this client that still had it has it no more.
    ///
    /// # Errors
    /// [`Kind::Lost`] when it is not held any more, or never was at this store; [`Kind::Usage`] for an
    /// invalid ticket; [`Kind::Closed`] after [`Locks::close`]; store trouble.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the hold detached, perhaps renewed once.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard, Error> {
        let client = &self.0;
        self.accepts(ticket)?;
        client.open().map_err(|e| e.during("resume").lock(&ticket.lock))?;
        let key = Key { lock: ticket.lock.clone(), req: ticket.req };
        let due = [Due { key: key.clone(), ttl: ticket.ttl }];
        // Before the question: a loss that comes before the guard must not be forgotten.
        let resuming = client.asking.resume(ticket.req);
        let kept = client.backend.keep(&due).await.pop();
        let fail = |e: Error| Err(e.during("resume").lock(&ticket.lock).store(self.site()));
        match kept {
            Some(Kept::Until { lease, waiters }) => {
                let tokens = TokenRange::one(ticket.token);
                let grant = Grant { req: ticket.req, tokens, lease, waiters };
                let guard = Guard::of_grant(client, key, &grant, ticket.ttl, None, true);
                if let Some(why) = resuming.lost() {
                    guard.lost_before(why);
                }
                // As after an acquire: `close` marks the client closed, then looks for holds.
                if client.closing.is_cancelled() { fail(client.closed()) } else { Ok(guard) }
            }
            Some(Kept::Lost(why)) => {
                let lost = Lost { lock: ticket.lock.clone(), token: ticket.token, why };
                fail(Error::from(lost).with_hint(self.why_not(ticket)))
            }
            Some(Kept::Unknown(e)) => fail(e),
            None => fail(Error::new(Kind::Store, "the store gave no answer to a renewal")),
        }
    }

    /// What to look for when a ticket's hold is not there. One store may be spelled in several ways,
    /// so that another spelling is no more than a hint.
    fn why_not(&self, ticket: &Ticket) -> String {
        let ended =
            "its TTL ended, somebody broke it, or it was released already: nobody may rely on it";
        if ticket.store == fingerprint(self.site()) {
            return ended.to_owned();
        }
        let site = self.site();
        format!("{ended}; or it is of another store: it was not given by one spelled {site}")
    }

    fn accepts(&self, ticket: &Ticket) -> Result<(), Error> {
        let here = |e: Error| e.lock(&ticket.lock).store(self.site());
        if !self.capability().detach {
            return Err(here(Error::new(Kind::Unsupported, "this store cannot resume a hold"))
                .with_hint("its locks end with their process"));
        }
        // It asks for that lease again and again: of nothing, without a pause; of a year, for one.
        let Ok(ttl) = Ttl::new(ticket.ttl) else {
            return Err(here(Error::new(Kind::Usage, "invalid TTL in this ticket"))
                .with_hint("use a ticket as it was printed"));
        };
        // Nor for longer than this store grants: its promises after a restart count on that.
        self.capability().grantable(ttl).map(drop).map_err(here)
    }

    /// Every lock whose name starts with a prefix that is held or waited for, in order of name.
    ///
    /// # Errors
    /// Store trouble.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>, Error> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let query = Query::Prefix {
                space: self.0.space.clone(),
                prefix: prefix.as_ref().to_owned(),
                after: after.take(),
                limit: PAGE,
            };
            let page = self.0.backend.inspect(&query).await;
            let page = page.map_err(|e| e.during("list").store(self.site()))?;
            after = page.last().map(|l| l.lock.name.clone());
            let full = page.len() >= PAGE;
            all.extend(page);
            if !full {
                return Ok(all);
            }
        }
    }

    /// One lock, if it is held or waited for.
    ///
    /// # Errors
    /// Store trouble, or an invalid name.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>, Error> {
        let lock = self.0.full(Name::new(name)?);
        let found = self.0.backend.inspect(&Query::Name(lock.clone())).await;
        Ok(found.map_err(|e| e.during("show").lock(lock).store(self.site()))?.pop())
    }

    /// Takes a lock away from whoever holds it; with a token, only if it is one of the holder's.
    ///
    /// Without one the holders are looked at first, and each is taken away by its own token: a call
    /// that is repeated after a broken connection cannot break whoever holds the lock by then.
    ///
    /// # Errors
    /// Store trouble, an invalid name, or a store that cannot.
    ///
    /// # Cancel safety
    /// Whether it took effect is unknown; it can be repeated.
    pub async fn force(
        &self,
        name: impl AsRef<str>,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let lock = self.0.full(Name::new(name)?);
        let done = match token {
            None if self.capability().force => self.force_seen(&lock, how).await,
            token => self.0.backend.force(&lock, token, how).await,
        };
        done.map_err(|e| e.during("force").lock(lock).store(self.site()))
    }

    /// Takes a lock away from those who are seen to hold it.
    async fn force_seen(&self, lock: &FullName, how: Force) -> Result<Forced, Error> {
        let backend = &self.0.backend;
        let seen = backend.inspect(&Query::Name(lock.clone())).await?;
        let mut tokens: Vec<_> =
            seen.iter().flat_map(|l| &l.holds).map(|h| h.holder.token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        // A holder that another program made has no token to be named by.
        if tokens.first() == Some(&Token::MIN) {
            return backend.force(lock, None, how).await;
        }
        let mut done = Forced::NoMatch;
        for token in tokens {
            if backend.force(lock, Some(token), how).await? == Forced::Done {
                done = Forced::Done;
            }
        }
        Ok(done)
    }

    /// Gives everything back, waits until the store has acknowledged it, and ends the client. Its
    /// guards are lost, its waiting acquires fail with [`Kind::Closed`]. Releases that other tasks
    /// have under way are waited for as well.
    ///
    /// It lasts as long as the store goes on acknowledging: it gives up when there was no
    /// acknowledgement for five seconds, and ends a second later. What is left behind then is
    /// counted in the answer and logged by name; it ends with its TTL.
    ///
    /// # Cancel safety
    /// What was begun goes on in the background; call it again to wait for it.
    pub async fn close(&self) -> Closed {
        Closed { left: self.0.close().await }
    }

    #[cfg(test)]
    pub(crate) fn is_closing(&self) -> bool {
        self.0.closing.is_cancelled()
    }
}

/// What [`Locks::close`] left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Closed {
    /// How many holds and requests the store has not acknowledged the end of. Each ends by itself
    /// after its TTL.
    pub left: usize,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locks").field(&self.site()).finish()
    }
}

/// What can be chosen before connecting.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a client is made with them"]
pub struct Options {
    space: Result<Namespace, Error>,
    ttl: Result<Ttl, Error>,
    label: Option<Label>,
    require: Option<Fence>,
    by_lock: bool,
    strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            space: Ok(Namespace::default()),
            ttl: Ok(Ttl::DEFAULT),
            label: None,
            require: None,
            by_lock: false,
            strict: false,
        }
    }
}

impl Options {
    /// Keeps the locks of this client apart from others' on the same store.
    pub fn namespace(mut self, space: impl AsRef<str>) -> Self {
        self.space = Namespace::new(space);
        self
    }

    /// The TTL of locks that do not say another.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Ttl::new(ttl);
        self
    }

    /// The label of locks that do not say another.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// Refuses a store whose fence is weaker.
    pub fn require(mut self, fence: Fence) -> Self {
        self.require = Some(self.require.map_or(fence, |f| f.max(fence)));
        self
    }

    /// Adds the lock's name to metrics. Each name becomes a series: only for few names.
    pub fn lock_names_in_metrics(mut self) -> Self {
        self.by_lock = true;
        self
    }

    /// Serves waiters in the order of the store alone. Without it tasks of one client hand a lock on
    /// among themselves, on stores whose capability says so: much faster on a lock that many tasks
    /// want, first come, first served within the process, and with a bounded advantage over other
    /// processes.
    pub fn strict_order(mut self) -> Self {
        self.strict = true;
        self
    }

    /// A client of a store with these options.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid option, [`Kind::Refused`] for a store that promises
    /// less than was required.
    pub fn open(self, store: impl Store) -> Result<Locks, Error> {
        let backend = store.into_backend();
        self.space.clone()?;
        self.ttl.clone()?;
        let has = backend.capability().fence;
        if let Some(want) = self.require.filter(|want| has < *want) {
            let what = format!("this store's fence is {has}, {want} is required");
            let hint = "choose a store whose table row promises it, or require less";
            return Err(Error::new(Kind::Refused, what).store(backend.site()).with_hint(hint));
        }
        Ok(Locks(Arc::new(self.client(backend))))
    }

    fn client(self, backend: Arc<dyn Backend>) -> Client {
        let label = self.label.unwrap_or_else(Label::of_this_process);
        let space = self.space.unwrap_or_default();
        let ttl = self.ttl.unwrap_or_default();
        Client::new(backend, space, ttl, label, self.by_lock, self.strict)
    }
}
