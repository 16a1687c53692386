//! The redis store: the lease family on atomic scripts.
//!
//! 1. Every move is one script, so one step at the server; it reads the server's clock itself.
//! 2. A free lock nobody waits for costs one round trip to take and one to give back.
//! 3. A busy one queues the request, with the channel on which its process listens.
//! 4. A release promotes the head and publishes to its channel; nobody there means that the waiter
//!    is passed over, but keeps its place.
//! 5. The library's thread asks again for the waiter, which confirms the promotion; that answer is
//!    believed.
//! 6. After a restart or failover that may have lost locks nothing is granted until they have all
//!    run out (see `quarantine.rs`).

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::lease::only;
use distlock_core::{
    Ask, Backend, Capability, Class, Clock, ContentionHint, Due, Error, EventSink, Force, Forced,
    FullName, Key, LeaseDriver, LeaseStore, LockInfo, Move, Query, Replies, Reply, ReqId, Run,
    Store, StoreInfo, Token, Wake,
};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use crate::batcher::{self, Combined, Item};
use crate::capability::capability;
use crate::checked_connection::CheckedConnection;
use crate::errors;
use crate::inspect::Listed;
use crate::keys::{Keys, PREFIX};
use crate::open::Target;
use crate::router::{LEAST, Router};
use crate::script_calls::{self, BATCH, Message};

/// What is listed: the records of locks.
const RECORDS: Listed = Listed { prefix: PREFIX, part: "", kind: "string" };

/// A lock, a request and a span: what a batch is made of.
type Renewable = (Keys, ReqId, Duration);

/// What one call is about, and the places of its answers among those of all calls.
type Part<T> = (Vec<usize>, Vec<T>);

/// A redis store that answered.
pub(crate) struct Redis {
    capability: Capability,
    router: Router,
    contention: ContentionHint,
}

impl Redis {
    pub(crate) async fn at(target: Target) -> Result<Self, Error> {
        let capability = capability(target.kind, &target.options);
        let (router, contention) =
            (target.connect(reads).await?, ContentionHint::new(Clock::system()));
        Ok(Self { capability, router, contention })
    }

    /// In a batch, unless the lock missed in one a moment ago; `None` when it is to be sent alone.
    async fn combined(
        &self,
        link: &Arc<CheckedConnection>,
        lock: &FullName,
        item: Item,
    ) -> Result<Option<u64>, Error> {
        if self.contention.lately(lock) {
            return Ok(None);
        }
        match batcher::combine(link, self.router.clock(), Keys::of(lock), item).await {
            Combined::Done(n) => Ok(Some(n)),
            Combined::Alone => {
                self.contention.note(lock);
                Ok(None)
            }
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
                self.router.replicated(link, remaining).await?;
                let (block, floor) = (NonZeroU32::MIN, token);
                return Ok(Reply::Granted { token, block, remaining, waiters: 0, floor });
            }
        }
        self.acquire_alone(ask, wait).await
    }

    async fn acquire_alone(&self, ask: &Ask, wait: Option<Duration>) -> Result<Reply, Error> {
        let keys = Keys::of(&ask.lock);
        loop {
            let link = self.router.link(&keys).await?;
            if let Some((left, why)) = link.quarantined(self.router.clock()) {
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
        let make = |link: &CheckedConnection| {
            let CheckedConnection { via, counted, agreed, .. } = link;
            script_calls::acquire(&keys, ask, wait, via, counted, agreed)
        };
        let (value, link) = self.router.grant(&keys, make).await?;
        let reply = script_calls::acquired(&value, ask.ttl)?;
        if let Reply::Granted { remaining, .. } = &reply {
            // An error says that the outcome is unknown, and the driver cancels the request.
            self.router.replicated(&link, *remaining).await?;
        }
        Ok(reply)
    }

    async fn heartbeat(&self, waiting: Vec<(Key, Duration)>) -> Replies {
        let shortest = waiting.iter().map(|(_, wait)| *wait).min().unwrap_or_default();
        let beats = waiting.iter().map(|(key, wait)| (Keys::of(&key.lock), key.req, *wait));
        let play = |batch: Vec<Renewable>| async move {
            let make = |link: &CheckedConnection| {
                script_calls::heartbeat(&batch, &link.via, &link.counted)
            };
            let (value, _) = self.router.play(&batch[0].0, make).await?;
            script_calls::pulses(&value, batch.len())
        };
        self.batched(beats.collect(), |beat| &beat.0, shortest / 4, play).await
    }

    async fn renew(&self, due: Vec<Due>) -> Replies {
        let all = due.iter().map(|d| (Keys::of(&d.key.lock), d.key.req, d.ttl));
        let shortest = due.iter().map(|d| d.ttl).min().unwrap_or_default();
        let play = |batch: Vec<Renewable>| async move {
            let make =
                |link: &CheckedConnection| script_calls::renew(&batch, &link.counted, &link.agreed);
            let (value, link) = self.router.play(&batch[0].0, make).await?;
            self.router.replicated(&link, shortest).await?;
            script_calls::renewals(&value, batch.len())
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
        let make = |link: &CheckedConnection| script_calls::release(&keys, &key.req, &link.counted);
        let (value, _) = self.router.play(&keys, make).await?;
        script_calls::released(&value)
    }

    async fn cancel(&self, key: &Key) -> Result<Reply, Error> {
        let keys = Keys::of(&key.lock);
        let make = |link: &CheckedConnection| script_calls::cancel(&keys, &key.req, &link.counted);
        let (value, _) = self.router.play(&keys, make).await?;
        script_calls::cancelled(&value)
    }

    async fn look(&self, locks: Vec<FullName>) -> Result<Vec<LockInfo>, Error> {
        let play = |batch: Vec<Keys>| async move {
            let (value, _) = self.router.play(&batch[0], |_| script_calls::inspect(&batch)).await?;
            // One answer for the whole batch: which of its locks are in use.
            Ok(vec![script_calls::inspected(&value, &batch)?])
        };
        let (locks, within) = (locks.iter().map(Keys::of), 2 * self.router.shared.options.timeout);
        let seen = self.batched(locks.collect(), |keys| keys, within, play).await;
        Ok(seen.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
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
        // By server and chunk; in each the calls, by group.
        let mut chunks = BTreeMap::<_, BTreeMap<_, Part<T>>>::new();
        let mut counts = HashMap::<u64, usize>::new();
        for (i, item) in items.into_iter().enumerate() {
            let (shard, group) = (self.router.shard(keys(&item)), self.router.group(keys(&item)));
            let (group, count) = (group.to_owned(), counts.entry(shard).or_default());
            let (places, part) =
                chunks.entry((shard, *count / BATCH)).or_default().entry(group).or_default();
            *count += 1;
            places.push(i);
            part.push(item);
        }
        let run =
            |calls: BTreeMap<_, _>| self.chunk(calls.into_values().collect(), &keys, within, &play);
        for (places, given) in join_all(chunks.into_values().map(run)).await.into_iter().flatten() {
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
        calls: Vec<Part<T>>,
        keys: impl Fn(&T) -> &Keys,
        within: Duration,
        play: impl Fn(Vec<T>) -> F,
    ) -> Vec<(Vec<usize>, Result<Vec<R>, Error>)>
    where
        F: Future<Output = Result<Vec<R>, Error>>,
    {
        let clock = self.router.clock();
        let (sent, within) = (clock.now(), within.max(LEAST));
        let home = keys(&calls[0].1[0]).clone();
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        let (places, items): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
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
        let late = late.then(|| self.router.silent(&home, sent, within));
        let told = |answer: Option<_>| match (answer, &late) {
            (Some(answer), _) => answer,
            (None, Some(late)) => Err(late.clone()),
            (None, None) => Err(errors::silent(within)),
        };
        places.into_iter().zip(answers.into_iter().map(told)).collect()
    }
}

fn reads(message: &[u8]) -> Option<Wake> {
    Message::parse(message, Keys::lock_of).map(Message::wake)
}

impl Store for Redis {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(LeaseDriver::new(self))
    }
}

impl LeaseStore for Redis {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: &self.capability,
            site: &self.router.site,
            clock: self.router.clock(),
        }
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
        self.router.inspect(query, &RECORDS, |locks| self.look(locks)).await
    }

    async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let keys = Keys::of(lock);
        let played =
            self.router.play(&keys, |l| script_calls::force(&keys, token, how, &l.counted)).await;
        let forced =
            played.and_then(|(value, _)| script_calls::forced(&value)).and_then(Reply::forced);
        forced.map_err(|e| e.during("force").lock(lock).store(&self.router.site))
    }

    fn listen(&self, sink: EventSink) {
        self.router.listen(sink);
    }

    async fn close(&self) {
        self.router.close();
    }
}
