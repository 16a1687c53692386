//! The redis store: the lease family on atomic scripts.
//!
//! 1. Every move is one script, so one step at the server; it reads the server's clock itself.
//! 2. A free lock nobody waits for costs one round trip to take and one to give back.
//! 3. A busy one puts the request in line, with the channel on which its process listens.
//! 4. A release promotes the head and publishes to its channel; nobody there means that the waiter
//!    is passed over, but keeps its place.
//! 5. The woken waiter asks again, which confirms the promotion, and believes that answer.
//! 6. After a restart or failover that may have lost locks nothing is granted until they have all
//!    run out (see `quarantine.rs`).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_core::backend::{Ask, Backend, Due, Event, Force, Forced, Key};
use distlock_core::capability::Capability;
use distlock_core::contention::ContentionHint;
use distlock_core::info::Query;
use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Run, Wake, only};
use distlock_core::lease_driver::LeaseDriver;
use distlock_core::state::Reply;
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, FullName, LockInfo, LossReason, ReqId, Store, Token};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use crate::capability::capability;
use crate::combiner::{self, Combined, Item};
use crate::errors;
use crate::keys::Keys;
use crate::link::Link;
use crate::listing::Listing;
use crate::moves::{self, BATCH, Message};
use crate::node::Shared;
use crate::open::Target;
use crate::replicas;
use crate::router::{LEAST, Router};
use crate::scan;

/// A lock, a request and a span: what a batch is made of.
type Renewable = (Keys, ReqId, Duration);

/// A redis store that answered.
pub struct Redis {
    capability: Capability,
    site: String,
    shared: Arc<Shared>,
    router: Router,
    listing: Listing,
    contention: ContentionHint,
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
            listing: Listing::default(),
            contention: ContentionHint::new(Clock::system()),
        };
        store.router.greet().await?;
        Ok(store)
    }

    /// With others, if that makes sense and was enough.
    async fn combined(
        &self,
        link: &Arc<Link>,
        lock: &FullName,
        item: Item,
    ) -> Result<Option<u64>, Error> {
        if self.contention.lately(lock) {
            return Ok(None);
        }
        match combiner::combine(link, &self.shared.clock, Keys::of(lock), item).await {
            Combined::Done(n) => Ok(Some(n)),
            Combined::Alone => Ok(None),
            Combined::Failed(fault) => {
                self.router.judge(link, &fault);
                Err(fault.told())
            }
        }
    }

    async fn acquire(&self, ask: &Arc<Ask>, wait: Option<Duration>) -> Result<Reply, Error> {
        let link = self.router.combines();
        let alone = link.as_ref().and_then(|link| link.acquires.alone());
        if let (None, Some(link), NonZeroU32::MIN) = (&alone, &link, ask.block) {
            let item = Item::Acquire(ask.clone());
            if let Some(token) = Box::pin(self.combined(link, &ask.lock, item)).await? {
                let (token, remaining) = (Token::new(token)?, ask.ttl);
                self.replicated(link, remaining).await?;
                let (block, floor) = (NonZeroU32::MIN, token);
                return Ok(Reply::Granted { token, block, remaining, waiters: 0, floor });
            }
        }
        let reply = self.acquire_alone(ask, wait).await?;
        match &reply {
            Reply::Waiting { .. } | Reply::Busy { .. } => self.contention.note(&ask.lock),
            reply => self.contention.hear(&ask.lock, reply),
        }
        Ok(reply)
    }

    async fn acquire_alone(&self, ask: &Ask, wait: Option<Duration>) -> Result<Reply, Error> {
        let keys = Keys::of(&ask.lock);
        loop {
            let link = self.router.link(&keys).await?;
            if let Some((left, why)) = link.quarantined(&self.shared.clock) {
                return Err(Error::not_yet(left, why));
            }
            let _room = link.room.acquire().await;
            // Ended while we waited for room: all who did look for another one together. Kept in
            // here they would do so in turns, each turn as long as a connection may take.
            if link.wire.is_over() {
                continue;
            }
            return Box::pin(self.ask(keys, ask, wait)).await;
        }
    }

    async fn ask(&self, keys: Keys, ask: &Ask, wait: Option<Duration>) -> Result<Reply, Error> {
        let clock = &self.shared.clock;
        let make = |link: &Link| {
            let make = || {
                let Link { via, counted, agreed, .. } = link;
                moves::acquire(&keys, ask, wait, via, counted, agreed)
            };
            link.quarantined(clock).is_none().then(make)
        };
        let (value, link) = self.router.play_if(&keys, make).await?;
        let Some(value) = value else {
            let (left, why) = link.quarantined(clock).unwrap_or_default();
            return Err(Error::not_yet(left, why));
        };
        let reply = moves::acquired(&value, ask.ttl)?;
        if let Reply::Granted { remaining, .. } = &reply {
            // An error says that the outcome is unknown, and whoever asked cancels.
            self.replicated(&link, *remaining).await?;
        }
        Ok(reply)
    }

    async fn heartbeat(&self, waiting: Vec<(Key, Duration)>) -> Replies {
        let shortest = waiting.iter().map(|(_, wait)| *wait).min().unwrap_or_default();
        let beats = waiting.iter().map(|(key, wait)| (Keys::of(&key.lock), key.req, *wait));
        let play = |batch: Vec<Renewable>| async move {
            let make = |link: &Link| moves::heartbeat(&batch, &link.via, &link.counted);
            let (value, _) = self.router.play(&batch[0].0, make).await?;
            moves::pulses(&value, batch.len())
        };
        self.batched(beats.collect(), |beat| &beat.0, shortest / 4, play).await
    }

    async fn renew(&self, due: Vec<Due>) -> Replies {
        let all = due.iter().map(|d| (Keys::of(&d.key.lock), d.key.req, d.ttl));
        let shortest = due.iter().map(|d| d.ttl).min().unwrap_or_default();
        let play = |batch: Vec<Renewable>| async move {
            let make = |link: &Link| moves::renew(&batch, &link.counted, &link.agreed);
            let (value, link) = self.router.play(&batch[0].0, make).await?;
            self.replicated(&link, shortest).await?;
            moves::renewals(&value, batch.len())
        };
        self.batched(all.collect(), |due| &due.0, shortest / 4, play).await
    }

    async fn release(&self, key: &Key) -> Result<Reply, Error> {
        let link = self.router.combines();
        let alone = link.as_ref().and_then(|link| link.releases.alone());
        if let (None, Some(link)) = (&alone, &link)
            && Box::pin(self.combined(link, &key.lock, Item::Release(key.req))).await?.is_some()
        {
            return Ok(Reply::Released);
        }
        let keys = Keys::of(&key.lock);
        let make = |link: &Link| moves::release(&keys, &key.req, &link.counted);
        let (value, _) = self.router.play(&keys, make).await?;
        moves::released(&value)
    }

    async fn cancel(&self, key: &Key) -> Result<Reply, Error> {
        let keys = Keys::of(&key.lock);
        let make = |link: &Link| moves::cancel(&keys, &key.req, &link.counted);
        let (value, _) = self.router.play(&keys, make).await?;
        moves::cancelled(&value)
    }

    /// Waits for the replicas that were asked for.
    async fn replicated(&self, link: &Link, ttl: Duration) -> Result<(), Error> {
        replicas::wait(link, &self.shared, ttl).await
    }

    /// Plays one call per group of locks that may share it, side by side; answers in order. The calls
    /// to one server go in chunks, each bounded by `within` on its own: what was answered by then
    /// counts, whatever became of the rest, and one server that is silent keeps no other's back.
    async fn batched<T, R, F>(
        &self,
        items: Vec<T>,
        keys: impl Fn(&T) -> &Keys,
        within: Duration,
        play: impl Fn(Vec<T>) -> F,
    ) -> Vec<Result<R, Error>>
    where
        F: Future<Output = Result<Vec<R>, Error>>,
    {
        let mut answers: Vec<_> = items.iter().map(|_| None).collect();
        let mut chunks: Vec<Chunk<T>> = Vec::new();
        // The chunk of each server, and the call of each group, that there is still room in.
        let (mut open, mut calls) = (HashMap::<u64, usize>::new(), HashMap::new());
        for (i, item) in items.into_iter().enumerate() {
            let (shard, group) = (self.router.shard(keys(&item)), self.router.group(keys(&item)));
            let at = match open.get(&shard) {
                Some(at) if chunks[*at].len < BATCH => *at,
                _ => {
                    chunks.push(Chunk { home: keys(&item).clone(), len: 0, calls: Vec::new() });
                    open.insert(shard, chunks.len() - 1);
                    chunks.len() - 1
                }
            };
            let chunk = &mut chunks[at];
            chunk.len += 1;
            let call = *calls.entry((at, group.to_owned())).or_insert_with(|| {
                chunk.calls.push(Default::default());
                chunk.calls.len() - 1
            });
            chunk.calls[call].0.push(i);
            chunk.calls[call].1.push(item);
        }
        let run = |chunk| self.chunk(chunk, within, &play);
        for (places, given) in join_all(chunks.into_iter().map(run)).await.into_iter().flatten() {
            match given {
                Ok(given) => places.iter().zip(given).for_each(|(i, r)| answers[*i] = Some(Ok(r))),
                Err(e) => places.iter().for_each(|i| answers[*i] = Some(Err(e.clone()))),
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// The calls of one chunk: what each answered, or that it did not in time.
    async fn chunk<T, R, F>(
        &self,
        chunk: Chunk<T>,
        within: Duration,
        play: impl Fn(Vec<T>) -> F,
    ) -> Vec<(Vec<usize>, Result<Vec<R>, Error>)>
    where
        F: Future<Output = Result<Vec<R>, Error>>,
    {
        let clock = &self.shared.clock;
        let (sent, within) = (clock.now(), within.max(LEAST));
        let mut answers: Vec<_> = chunk.calls.iter().map(|_| None).collect();
        let (places, items): (Vec<_>, Vec<_>) = chunk.calls.into_iter().unzip();
        let call = |(n, items)| {
            let call = play(items);
            async move { (n, call.await) }
        };
        let mut calls: FuturesUnordered<_> = items.into_iter().enumerate().map(call).collect();
        let collect = async {
            while let Some((n, answer)) = calls.next().await {
                answers[n] = Some(answer);
            }
        };
        let late = clock.timeout(within, collect).await.is_none();
        let late = late.then(|| self.router.silent(&chunk.home, sent, within));
        let told = |answer: Option<_>| match (answer, &late) {
            (Some(answer), _) => answer,
            (None, Some(late)) => Err(late.clone()),
            (None, None) => Err(errors::silent(within)),
        };
        places.into_iter().zip(answers.into_iter().map(told)).collect()
    }
}

/// Calls to one server that are bounded together.
struct Chunk<T> {
    /// A lock of that server.
    home: Keys,
    len: usize,
    /// The places of the answers, and what the call is about.
    calls: Vec<(Vec<usize>, Vec<T>)>,
}

fn reads(message: &[u8]) -> Option<Wake> {
    let Message { kind, key } = Message::parse(message)?;
    Some(match kind {
        moves::Kind::Turn => Wake::Turn(key.req),
        moves::Kind::Contended => Wake::Event(Event::Contended(key)),
        moves::Kind::Revoked => Wake::Event(Event::Lost(key, LossReason::Revoked)),
    })
}

impl Store for Redis {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
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

    fn ends_in_time(&self) -> bool {
        true
    }

    fn shard(&self, lock: &FullName) -> u64 {
        self.router.shard(&Keys::of(lock))
    }

    /// One connection a server for both classes: the server answers in the order of the questions,
    /// and upkeep is a few calls for all.
    async fn play(&self, _: Class, moves: Vec<Move>) -> Replies {
        let mut replies = Replies::with_capacity(moves.len());
        for run in Run::split(moves) {
            match run {
                Run::Acquire(ask, wait) => replies.push(self.acquire(&ask, wait).await),
                Run::Heartbeat(waiting) => replies.extend(self.heartbeat(waiting).await),
                Run::Renew(due) => replies.extend(self.renew(due).await),
                Run::Release(key) => replies.push(self.release(&key).await),
                Run::Cancel(key) => replies.push(self.cancel(&key).await),
            }
        }
        replies
    }

    /// The rest in boxes: an acquire that waits for a connection should not carry room for it.
    async fn play_one(&self, class: Class, one: Move) -> Result<Reply, Error> {
        match one {
            Move::Acquire(ask, wait) => self.acquire(&ask, wait).await,
            Move::Release(key) => Box::pin(self.release(&key)).await,
            other => only(Box::pin(self.play(class, vec![other])).await),
        }
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
        let keys = Keys::of(lock);
        let played = self.router.play(&keys, |l| moves::force(&keys, token, how, &l.counted)).await;
        let forced = played.and_then(|(value, _)| moves::forced(&value)).and_then(Reply::forced);
        forced.map_err(|e| e.during("force").lock(lock).store(&self.site))
    }

    fn listen(&self, sink: EventSink) {
        let _ = self.shared.sink.set(sink);
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
                let scan = async {
                    let mut names = Vec::new();
                    for node in self.router.all().await? {
                        names.extend(scan::scan(&node, space, prefix, ("", "string")).await?);
                    }
                    Ok(names)
                };
                let page = (space, prefix.as_str(), after.as_ref());
                self.listing.names(&self.shared.clock, page, scan).await?
            }
        };
        let limit = match query {
            Query::Name(_) => 1,
            Query::Prefix { limit, .. } => *limit,
        };
        let mut found = Vec::new();
        // A record stays for a day after its last use: most of what was found may be free.
        for names in names.chunks(BATCH) {
            let play = |batch: Vec<Keys>| async move {
                let (value, _) = self.router.play(&batch[0], |_| moves::inspect(&batch)).await?;
                // One answer for the whole batch: which of its locks are in use.
                Ok(vec![moves::inspected(&value, &batch)?])
            };
            let (names, within) =
                (names.iter().map(Keys::of).collect(), 2 * self.shared.options.timeout);
            for seen in self.batched(names, |keys| keys, within, play).await {
                found.extend(seen?);
            }
            if found.len() >= limit {
                break;
            }
        }
        found.sort_by(|a, b| a.lock.cmp(&b.lock));
        found.truncate(limit);
        if let (Query::Prefix { prefix, .. }, Some(last)) = (query, found.get(limit - 1)) {
            self.listing.keep(&self.shared.clock, prefix, &last.lock, &names);
        }
        Ok(found)
    }
}

impl Drop for Redis {
    /// Takes effect at once: connections end, and nothing is connected again.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}
