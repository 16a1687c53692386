//! The redis store: the lease family on atomic scripts.
//!
//! 1. Every move is one script, so one step at the server; it reads the server's clock itself.
//! 2. A free lock nobody waits for costs one round trip to take and one to give back.
//! 3. A busy one puts the request in line, with the channel on which its process listens.
//! 4. A release promotes the head and publishes to its channel; nobody there means that the waiter
//!    is passed over, but keeps its place.
//! 5. The woken waiter asks again, which confirms the promotion, and believes that answer.
//! 6. After a restart or failover that may have lost locks nothing is granted until they have all
//!    run out (see `epoch.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_core::capability::Capability;
use distlock_core::info::Query;
use distlock_core::lease::{Answer, Ears, LeaseStore, Renewal, Wake};
use distlock_core::leased::Leased;
use distlock_core::seam::{Ask, Backend, Due, Event, Force, Forced, Key, Released};
use distlock_core::state::{Pulse, answer};
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, FullName, LockInfo, Store, Token, Why};
use futures_util::future::join_all;

use crate::keys::Keys;
use crate::link::Link;
use crate::moves::{self, Message, Told};
use crate::node::Shared;
use crate::open::Target;
use crate::promises::capability;
use crate::replicas;
use crate::router::Router;
use crate::scan;

/// A redis store that answered.
pub struct Redis {
    capability: Capability,
    site: String,
    shared: Arc<Shared>,
    router: Router,
}

impl Redis {
    /// Connects to what a URL names, with the script algorithm.
    ///
    /// # Errors
    /// [`Usage`](distlock_core::Kind::Usage) for a URL that cannot be, [`Refused`](distlock_core::Kind::Refused) for a server on which locks
    /// cannot be kept, [`Credentials`](distlock_core::Kind::Credentials), and whatever keeps the server from answering.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn open(url: StoreUrl) -> Result<Self, Error> {
        Self::at(&Target::of(url)?).await
    }

    pub(crate) async fn at(target: &Target) -> Result<Self, Error> {
        let (shared, router) = target.router(reads);
        let store = Self {
            capability: capability(target.kind, &target.options),
            site: target.site.clone(),
            shared,
            router,
        };
        store.router.greet().await?;
        Ok(store)
    }

    fn told<'a>(&'a self, what: &'static str, lock: &'a FullName) -> impl Fn(Error) -> Error + 'a {
        move |e| e.during(what).lock(lock).store(&self.site)
    }

    /// Waits for the replicas that were asked for.
    async fn replicated(&self, link: &Link, ttl: Duration) -> Result<(), Error> {
        replicas::wait(link, self.shared.options.replicas, ttl).await
    }

    /// One call per group of locks that may share it, side by side; answers in order.
    async fn batched<T, R>(
        &self,
        all: &[T],
        keys: impl Fn(&T) -> Keys,
        play: impl AsyncFn(&[(usize, Keys)]) -> Vec<R>,
    ) -> Vec<R> {
        let mut groups: HashMap<u16, Vec<(usize, Keys)>> = HashMap::new();
        for (i, item) in all.iter().enumerate() {
            let keys = keys(item);
            groups.entry(self.router.group(&keys)).or_default().push((i, keys));
        }
        let batches = groups.values().flat_map(|group| group.chunks(moves::BATCH));
        let played = batches.map(|batch| async { (batch, play(batch).await) });
        let mut answers: Vec<Option<R>> = all.iter().map(|_| None).collect();
        for (batch, given) in join_all(played).await {
            for ((i, _), answer) in batch.iter().zip(given) {
                answers[*i] = Some(answer);
            }
        }
        answers.into_iter().flatten().collect()
    }
}

fn reads(message: &[u8]) -> Option<Wake> {
    let Message { told, key } = Message::parse(message)?;
    Some(match told {
        Told::Turn => Wake::Turn(key.req),
        Told::Contended => Wake::Event(Event::Contended(key)),
        Told::Revoked => Wake::Event(Event::Lost(key, Why::Revoked)),
    })
}

impl Store for Redis {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(Leased::new(self))
    }
}

impl LeaseStore for Redis {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    async fn acquire(&self, ask: &Ask, wait_lease: Option<Duration>) -> Result<Answer, Error> {
        let (keys, told) = (Keys::of(&ask.lock), self.told("acquire", &ask.lock));
        let link = self.router.link(&keys).await.map_err(&told)?;
        if let Some((left, why)) = link.quarantined(&self.shared.clock) {
            return Ok(Answer::NotYet { left, why });
        }
        let make = |link: &Link| moves::acquire(&keys, ask, wait_lease, &link.via);
        let (value, link) = self.router.play(&keys, make).await.map_err(&told)?;
        let answer = moves::reply(value).and_then(answer::acquired).map_err(&told)?;
        if let Answer::Granted { left, .. } = &answer
            && let Err(e) = self.replicated(&link, *left).await
        {
            // The error says that the outcome is unknown, and whoever asked cancels.
            return Err(told(e));
        }
        Ok(answer)
    }

    async fn heartbeat(&self, waiting: &[(Key, Duration)]) -> Result<Vec<Pulse>, Error> {
        let play = async |batch: &[(usize, Keys)]| {
            let beats: Vec<_> = batch
                .iter()
                .map(|(i, keys)| (keys, waiting[*i].0.req, waiting[*i].1))
                .collect();
            let played =
                self.router.play(&batch[0].1, |link| moves::heartbeat(&beats, &link.via)).await;
            each(played.and_then(|(value, _)| moves::replies(value, batch.len())), batch.len())
        };
        let replies = self.batched(waiting, |(key, _)| Keys::of(&key.lock), play).await;
        let pulses = replies.into_iter().map(|r| r.and_then(answer::pulsed));
        pulses.collect::<Result<_, _>>().map_err(|e| e.during("heartbeat").store(&self.site))
    }

    async fn renew(&self, due: &[Due]) -> Vec<Renewal> {
        let play = async |batch: &[(usize, Keys)]| {
            let renewals: Vec<_> =
                batch.iter().map(|(i, keys)| (keys, due[*i].key.req, due[*i].ttl)).collect();
            let shortest = renewals.iter().map(|(_, _, ttl)| *ttl).min().unwrap_or_default();
            let played = async {
                let played = self.router.play(&batch[0].1, |_| moves::renew(&renewals)).await;
                let (value, link) = played?;
                self.replicated(&link, shortest).await?;
                moves::replies(value, batch.len())
            };
            each(played.await, batch.len())
        };
        let replies = self.batched(due, |d| Keys::of(&d.key.lock), play).await;
        let told = |(reply, d): (Result<_, Error>, &Due)| {
            answer::renewed(reply.map_err(self.told("renew", &d.key.lock)))
        };
        replies.into_iter().zip(due).map(told).collect()
    }

    /// The requeued request joins by its own acquire.
    async fn release(&self, key: &Key, _requeue: Option<&Ask>) -> Result<Released, Error> {
        let (keys, told) = (Keys::of(&key.lock), self.told("release", &key.lock));
        let played = self.router.play(&keys, |_| moves::release(&keys, key.req)).await;
        played.and_then(|(value, _)| moves::reply(value)).and_then(answer::released).map_err(told)
    }

    async fn cancel(&self, key: &Key) -> Result<(), Error> {
        let (keys, told) = (Keys::of(&key.lock), self.told("cancel", &key.lock));
        let played = self.router.play(&keys, |_| moves::cancel(&keys, key.req)).await;
        played.and_then(|(value, _)| moves::reply(value)).map(drop).map_err(told)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let told = |e: Error| e.during("inspect").store(&self.site);
        self.look(query).await.map_err(told)
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let (keys, told) = (Keys::of(lock), self.told("force", lock));
        let played = self.router.play(&keys, |_| moves::force(&keys, token, how)).await;
        played.and_then(|(value, _)| moves::reply(value)).and_then(answer::forced).map_err(told)
    }

    fn listen(&self, ears: Ears) {
        let _ = self.shared.ears.set(ears);
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.router.close();
    }
}

impl Redis {
    async fn look(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let names = match query {
            Query::Name(lock) => vec![lock.clone()],
            Query::Prefix { space, prefix, after, .. } => {
                let mut names = Vec::new();
                for node in self.router.all().await? {
                    names.extend(scan::scan(&node, space, prefix, "").await?);
                }
                names.sort();
                names.dedup();
                names.retain(|lock| after.as_ref().is_none_or(|after| lock.name > *after));
                names
            }
        };
        let limit = match query {
            Query::Name(_) => 1,
            Query::Prefix { limit, .. } => *limit,
        };
        let mut found = Vec::new();
        // A record stays for a day after its last use: most of what was found may be free.
        for names in names.chunks(moves::BATCH) {
            let play = async |batch: &[(usize, Keys)]| {
                let locks: Vec<_> = batch.iter().map(|(i, keys)| (keys, &names[*i])).collect();
                let played = self.router.play(&batch[0].1, |_| moves::inspect(&locks)).await;
                let views = played.and_then(|(value, _)| moves::views(value, &locks));
                each(views, batch.len())
            };
            for view in self.batched(names, Keys::of, play).await {
                found.extend(view?);
            }
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }
}

/// The answers of a batch, or its failure once for each.
fn each<T>(answers: Result<Vec<T>, Error>, count: usize) -> Vec<Result<T, Error>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(e) => (0..count).map(|_| Err(e.clone())).collect(),
    }
}

impl Drop for Redis {
    /// Takes effect at once: connections end, and nothing is connected again.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}
