//! Keeper, guard and release over the memory store, on a clock that stands still.

#![allow(clippy::disallowed_methods)] // waits for events in real time beside the held clock

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::memory::Memory;
use crate::state::Pulse;
use crate::{
    Ask, Attempt, Backend, Capability, Class, Clock, Due, Error, Event, EventSink, Force, Forced,
    FullName, Fut, Guard, Kept, Key, Kind, LeaseDriver, LeaseStore, LockInfo, Locks, LossReason,
    Lost, Move, Query, Released, Replies, Reply, Store, StoreInfo, Token, Watcher,
};

/// The calls of a lease store over memory that it passes on as they are; it has a field `memory`.
macro_rules! as_memory {
    () => {
        as_memory!(except listen);
        fn listen(&self, sink: EventSink) {
            self.memory.listen(sink);
        }
    };
    (except listen) => {
        async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
            self.memory.inspect(query).await
        }
        async fn force(
            &self,
            lock: &FullName,
            token: Option<Token>,
            how: Force,
        ) -> Result<Forced, Error> {
            self.memory.force(lock, token, how).await
        }
        async fn close(&self) {
            self.memory.close().await;
        }
    };
}

mod bounds;
mod cohort;
mod confirm;
mod doubt;
mod edges;
mod linger;
mod many;
mod news;
mod session;
mod takeover;
mod wall;

const TTL: Duration = Duration::from_secs(9);

/// Looks at what passes the backend, and holds it up when told to.
pub(crate) struct Spy {
    inner: Arc<dyn Backend>,
    promises: Capability,
    batches: Mutex<Vec<usize>>,
    /// Renewals wait here while set, after the store has answered.
    hold_replies: AtomicBool,
    go: Notify,
    /// How many answers to a release are thrown away, after the store has done it.
    drop_releases: AtomicUsize,
    /// An abandon panics while set.
    panics: AtomicBool,
    calls: Mutex<VecDeque<&'static str>>,
    /// Tells the renewer of a hold what a store would.
    news: UnboundedSender<Event>,
    heard: Mutex<Option<UnboundedReceiver<Event>>>,
    /// A grant and a renewal are answered only after the renewer has heard that the hold is gone.
    lost_first: AtomicBool,
    /// Releases wait here while set, before the store has heard of them.
    hold_releases: AtomicBool,
    /// How many renewal calls from now on never end.
    hang: AtomicUsize,
    /// Locks are spread over so many servers by the last letter of their names.
    servers: AtomicUsize,
    /// Renewals at the first server never end while set.
    first_server_hangs: AtomicBool,
    /// The tokens that were forced.
    forced: Mutex<Vec<Option<Token>>>,
}

impl Spy {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        let promises = inner.capability().clone();
        Self::promising(inner, promises)
    }

    /// Tells the renewer that a hold is gone, and waits until it has heard.
    async fn tell_lost(&self, key: Key) {
        if self.lost_first.load(Ordering::SeqCst) {
            self.news.send(Event::Lost(key, LossReason::Disconnected)).unwrap();
            // The library's thread runs its tasks in turn.
            for _ in 0..3 {
                let (tx, rx) = tokio::sync::oneshot::channel();
                crate::engine::spawn(async move { tx.send(()).unwrap() });
                rx.await.unwrap();
            }
        }
    }

    fn promising(inner: Arc<dyn Backend>, promises: Capability) -> Arc<Self> {
        let (news, heard) = tokio::sync::mpsc::unbounded_channel();
        if let Some(mut events) = inner.events() {
            let news = news.clone();
            crate::engine::spawn(async move {
                while let Some(event) = events.recv().await {
                    let _ = news.send(event);
                }
            });
        }
        Arc::new(Self {
            news,
            heard: Mutex::new(Some(heard)),
            lost_first: AtomicBool::new(false),
            hold_releases: AtomicBool::new(false),
            hang: AtomicUsize::new(0),
            servers: AtomicUsize::new(1),
            first_server_hangs: AtomicBool::new(false),
            forced: Mutex::default(),
            inner,
            promises,
            batches: Mutex::default(),
            hold_replies: AtomicBool::new(false),
            go: Notify::new(),
            drop_releases: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }
}

impl Backend for Arc<Spy> {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.promises, ..self.inner.info() }
    }
    fn acquire<'a>(
        &'a self,
        ask: Arc<Ask>,
        seen: Option<Watcher<'a>>,
    ) -> Fut<'a, Result<Attempt, Error>> {
        Box::pin(async move {
            let key = ask.key();
            let answer = self.inner.acquire(ask, seen).await;
            self.tell_lost(key).await;
            answer
        })
    }
    fn abandon<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<(), Error>> {
        assert!(!self.panics.load(Ordering::SeqCst), "this store has a bug");
        self.calls.lock().unwrap().push_back("abandon");
        self.inner.abandon(key)
    }
    fn keep<'a>(&'a self, due: &'a [Due]) -> Fut<'a, Vec<Kept>> {
        Box::pin(async move {
            self.batches.lock().unwrap().push(due.len());
            let shards: Vec<_> = due.iter().map(|d| self.shard(&d.key.lock)).collect();
            assert!(shards.iter().all(|s| *s == shards[0]), "one call to several servers");
            let first = self.first_server_hangs.load(Ordering::SeqCst) && shards[0] == 0;
            let take = |n: usize| n.checked_sub(1);
            if first || self.hang.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                std::future::pending::<()>().await;
            }
            let kept = self.inner.keep(due).await;
            while self.hold_replies.load(Ordering::SeqCst) {
                self.go.notified().await;
            }
            if let Some(due) = due.first() {
                self.tell_lost(due.key.clone()).await;
            }
            kept
        })
    }
    fn release<'a>(&'a self, key: &'a Key) -> Fut<'a, Result<Released, Error>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push_back("release");
            while self.hold_releases.load(Ordering::SeqCst) {
                self.go.notified().await;
            }
            let done = self.inner.release(key).await;
            let take = |n: usize| n.checked_sub(1);
            match self.drop_releases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
                Ok(_) => Err(Error::new(Kind::Unreachable, "no answer").unknown()),
                Err(_) => done,
            }
        })
    }
    fn inspect<'a>(&'a self, query: &'a Query) -> Fut<'a, Result<Vec<LockInfo>, Error>> {
        self.inner.inspect(query)
    }
    fn force<'a>(
        &'a self,
        lock: &'a FullName,
        token: Option<Token>,
        how: Force,
    ) -> Fut<'a, Result<Forced, Error>> {
        self.forced.lock().unwrap().push(token);
        self.inner.force(lock, token, how)
    }
    fn proof(&self, key: &Key) -> Option<crate::Proof> {
        self.inner.proof(key)
    }
    fn detach(&self, key: &Key) -> bool {
        self.inner.detach(key)
    }
    fn tells_of_waiters(&self) -> bool {
        self.inner.tells_of_waiters()
    }
    fn shard(&self, lock: &FullName) -> u64 {
        let servers = self.servers.load(Ordering::SeqCst) as u64;
        let last = lock.name.as_str().bytes().last().unwrap_or_default();
        self.inner.shard(lock) + u64::from(last) % servers
    }
    fn events(&self) -> Option<UnboundedReceiver<Event>> {
        self.heard.lock().unwrap().take()
    }
    fn close(&self) -> Fut<'_, ()> {
        self.calls.lock().unwrap().push_back("close");
        self.inner.close()
    }
}

/// A lease store whose answers take a second of the held clock.
struct Slow {
    memory: Memory,
}

impl LeaseStore for Slow {
    as_memory!();
    fn info(&self) -> StoreInfo<'_> {
        self.memory.info()
    }
    async fn play(&self, class: Class, moves: Vec<Move>) -> Replies {
        let late = |one: &Move| matches!(one, Move::Acquire(..) | Move::Renew(_));
        let late = moves.iter().any(late);
        let replies = self.memory.play(class, moves).await;
        if late {
            self.info().clock.advance(Duration::from_secs(1));
        }
        replies
    }
}

#[tokio::test]
async fn a_deadline_counts_from_before_the_question_not_from_the_answer() {
    let clock = Clock::held();
    let backend: Arc<dyn Backend> =
        Arc::new(LeaseDriver::new(Slow { memory: Memory::on(clock.clone()) }));
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    // Each answer took a second, and that second is gone.
    let tried = locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(tried.remaining(), TTL - Duration::from_secs(1));
    let _ = tried.release().await.unwrap(); // its renewal would move the clock, too
    let waited = locks.lock("b").await.unwrap();
    assert_eq!(waited.remaining(), TTL - Duration::from_secs(1));
    let ticket = waited.detach().unwrap();
    let resumed = locks.resume(&ticket).await.unwrap();
    assert_eq!(resumed.remaining(), TTL - Duration::from_secs(1));
}

#[tokio::test]
async fn a_replayed_grant_is_good_only_for_what_is_left() {
    let clock = Clock::held();
    let backend = Memory::on(clock.clone()).into_backend();
    let ask = Ask {
        lock: FullName { space: crate::Namespace::default(), name: crate::Name::new("a").unwrap() },
        req: crate::ReqId::random(),
        owner: crate::Owner::new(),
        mode: crate::Mode::Exclusive,
        ttl: TTL,
        patience: crate::Patience::Never,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: crate::Label::new("replay"),
        block: std::num::NonZeroU32::MIN,
    };
    let Attempt::Granted(first) = backend.acquire(Arc::new(ask.clone()), None).await.unwrap()
    else {
        panic!()
    };
    clock.advance(Duration::from_secs(4));
    let Attempt::Granted(again) = backend.acquire(Arc::new(ask.clone()), None).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(again.tokens, first.tokens);
    assert_eq!(again.deadline(), first.deadline());
}

struct Scene {
    clock: Clock,
    memory: Memory,
    spy: Arc<Spy>,
    locks: Locks,
}

fn scene() -> Scene {
    scene_with(|_| ())
}

fn scene_with(change: impl FnOnce(&mut Capability)) -> Scene {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let mut promises = memory.info().capability.clone();
    change(&mut promises);
    let spy = Spy::promising(memory.clone().into_backend(), promises);
    let backend: Arc<dyn Backend> = Arc::new(spy.clone());
    let locks = Locks::options().ttl(TTL).open(backend).unwrap();
    Scene { clock, memory, spy, locks }
}

/// Waits until something has happened, and fails if it does not.
async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// Lets so many thirds of a TTL pass, each time until a renewal was sent.
async fn renewing(s: &Scene, thirds: u32) {
    for _ in 0..thirds {
        let before = s.spy.batches().len();
        s.clock.advance(TTL / 3);
        until("a renewal", || s.spy.batches().len() > before).await;
    }
}

/// Moves the clock in small steps, each time until somebody sleeps on it again.
async fn pass(clock: &Clock, d: Duration) {
    let step = Duration::from_millis(250);
    let mut left = d;
    while !left.is_zero() {
        let now = step.min(left);
        clock.advance(now);
        left -= now;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn all_holds_of_a_client_are_renewed_in_one_call() {
    let s = scene();
    let mut guards = Vec::new();
    for i in 0..20 {
        guards.push(s.locks.lock(format!("n{i}")).await.unwrap());
    }
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.clock.advance(TTL / 3);
    until("a renewal", || !s.spy.batches().is_empty()).await;
    assert_eq!(s.spy.batches(), [20]);
    // Far beyond the first lease everything is still held.
    renewing(&s, 9).await;
    for guard in &guards {
        guard.check().unwrap();
    }
    assert!(s.spy.batches().len() < 20, "{:?}", s.spy.batches());
}

#[tokio::test]
async fn a_short_lease_does_not_take_the_patience_of_a_long_one() {
    let s = scene();
    let long = s.locks.lock("long").await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.clock.advance(TTL / 4);
    let brief = Duration::from_millis(300);
    let short = s.locks.lock("short").ttl(brief).await.unwrap();
    s.spy.hold_replies.store(true, Ordering::SeqCst);
    s.clock.advance(brief / 3);
    until("a renewal of both", || s.spy.batches().iter().sum::<usize>() == 2).await;
    // Too long for the short one, while the long one's answer is still worth waiting for.
    s.clock.advance(brief);
    let _ = short.lost().await;
    s.spy.hold_replies.store(false, Ordering::SeqCst);
    s.spy.go.notify_waiters();
    until("the long one's answer counts", || long.remaining() == TTL - brief).await;
}

#[tokio::test]
async fn s05_an_ok_after_the_deadline_does_not_bring_a_guard_back() {
    let s = scene();
    let guard = s.locks.lock("a").await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.spy.hold_replies.store(true, Ordering::SeqCst);
    s.clock.advance(TTL / 3);
    until("a renewal", || !s.spy.batches().is_empty()).await;
    // The store has renewed; the answer hangs until after our own deadline.
    s.clock.advance(TTL);
    let lost = guard.lost().await;
    assert_eq!(lost.why, LossReason::Expired);
    s.spy.hold_replies.store(false, Ordering::SeqCst);
    s.spy.go.notify_waiters();
    let renewals = s.spy.batches().len();
    pass(&s.clock, TTL).await;
    assert!(matches!(guard.check(), Err(Lost { why: LossReason::Expired, .. })));
    assert_eq!(s.spy.batches().len(), renewals, "renewed after its deadline");
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn a_check_at_the_deadline_latches_before_any_timer_fires() {
    let clock = Clock::held();
    let locks = Locks::from_store(Memory::on(clock.clone()));
    let guard = locks.lock("a").ttl(TTL).without_renewal().await.unwrap();
    assert!(guard.check_for(TTL - Duration::from_millis(1)).is_ok());
    assert_eq!(guard.check_for(TTL).unwrap_err().why, LossReason::TooShort);
    guard.check().unwrap(); // too short does not latch
    clock.advance(TTL - Duration::from_nanos(1));
    guard.check().unwrap();
    clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.check().unwrap_err().why, LossReason::Expired);
    assert!(guard.cancellation_token().is_cancelled());
    assert_eq!(guard.release().await.unwrap(), Released::WasLost);
}

/// A thread that latches is between its two steps: the reason is set, the token is not cancelled yet.
#[tokio::test]
async fn a_check_that_says_lost_comes_with_a_cancelled_token() {
    let locks = Locks::from_store(Memory::on(Clock::held()));
    let guard = locks.lock("a").ttl(TTL).without_renewal().await.unwrap();
    let held = guard.held();
    held.0.set_reason_only(LossReason::Gone);
    assert_eq!(held.check().unwrap_err().why, LossReason::Gone);
    assert!(held.cancellation_token().is_cancelled());
}

#[tokio::test]
async fn a_stolen_lock_is_lost_at_the_next_renewal_and_stays_lost() {
    let s = scene();
    let guard = s.locks.lock("a").await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.memory.wipe(guard.lock());
    s.clock.advance(TTL / 3);
    assert_eq!(guard.lost().await.why, LossReason::Gone);
    // Its own deadline is still to come, and yet it stays lost.
    assert_eq!(guard.check().unwrap_err().why, LossReason::Gone);
    // Somebody else has it now; our release must not touch it.
    let other = s.locks.lock("a").await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::WasLost);
    until("the background release", || s.spy.calls.lock().unwrap().contains(&"release")).await;
    other.check().unwrap();
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_err());
}

#[tokio::test]
async fn s11_a_release_without_an_answer_is_tried_again_and_known_to_be_ours() {
    let s = scene();
    let clock = s.clock.clone();
    let guard = s.locks.lock("a").await.unwrap();
    s.spy.drop_releases.store(1, Ordering::SeqCst);
    let (released, ()) = tokio::join!(guard.release(), async {
        until("the wait before the next try", || clock.sleepers() > 1).await;
        clock.advance(Duration::from_millis(50));
    });
    assert_eq!(released.unwrap(), Released::Released);
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_ok());
}

/// Gives back, while none of the three tries gets an answer.
async fn unanswered(s: &Scene, guard: &mut Guard) -> Result<Released, Error> {
    s.spy.drop_releases.store(3, Ordering::SeqCst);
    let (released, ()) = tokio::join!(guard.give_back(), async {
        for n in 1..3 {
            until("a try", || s.spy.calls.lock().unwrap().len() == n).await;
            until("the wait before the next", || s.clock.sleepers() > 1).await;
            s.clock.advance(Duration::from_millis(50));
        }
    });
    released
}

#[tokio::test]
async fn s11_a_release_that_never_gets_an_answer_is_unknown_and_can_be_repeated() {
    let s = scene();
    let mut guard = s.locks.lock("a").await.unwrap();
    let released = unanswered(&s, &mut guard).await;
    assert_eq!(released.unwrap_err().outcome(), crate::Outcome::Unknown);
    let _ = guard.give_back().await.unwrap();
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_ok());
}

#[tokio::test]
async fn closing_does_not_wait_for_a_store_that_panicked() {
    let s = scene();
    let held = s.locks.lock("a").await.unwrap();
    s.spy.panics.store(true, Ordering::SeqCst);
    let mut waiting = Box::pin(s.locks.lock("a").acquire());
    let _ = tokio::time::timeout(Duration::from_millis(20), &mut waiting).await;
    drop(waiting); // undone in the background, where the store panics
    drop(held);
    tokio::time::timeout(Duration::from_secs(5), s.locks.close()).await.expect("it is closed");
}

#[tokio::test]
async fn max_hold_ends_renewal_and_says_so() {
    let s = scene();
    let guard = s.locks.lock("a").max_hold(Duration::from_secs(20)).await.unwrap();
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    renewing(&s, 6).await;
    s.clock.advance(Duration::from_millis(1_900));
    guard.check().unwrap();
    s.clock.advance(Duration::from_millis(100));
    assert_eq!(guard.lost().await.why, LossReason::MaxHold);
    // The store's lease ends with it, not a TTL later.
    assert!(s.locks.lock("a").try_acquire().await.unwrap().is_ok());
}

#[tokio::test]
async fn metrics_count_waits_holds_renewals_and_losses() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let clock = Clock::held();
    let backend = Memory::on(clock.clone());
    let locks = Locks::options().ttl(TTL).lock_names_in_metrics().open(backend).unwrap();
    let guard = locks.lock("measured").await.unwrap();
    assert!(locks.lock("measured").try_acquire().await.unwrap().is_err());
    until("the renewer sleeps", || clock.sleepers() > 0).await;
    clock.advance(TTL / 3);
    until("a renewal moves the deadline", || guard.remaining() > TTL * 2 / 3).await;
    let _ = locks.force("measured", None, Force::Now).await.unwrap();
    guard.lost().await;
    let _ = guard.release().await.unwrap();
    let keys: Vec<_> =
        snapshotter.snapshot().into_vec().into_iter().map(|(key, ..)| key.key().clone()).collect();
    for gauge in ["distlock_held", "distlock_waiting"] {
        assert!(keys.iter().any(|key| key.name() == gauge), "no {gauge}");
    }
    let seen: Vec<String> = keys
        .into_iter()
        .filter(|key| key.labels().any(|l| l.key() == "lock" && l.value() == "measured"))
        .map(|key| {
            let outcome = key.labels().find(|l| l.key() == "outcome").map(|l| l.value());
            format!("{} {}", key.name(), outcome.unwrap_or("-"))
        })
        .collect();
    for expected in [
        "distlock_wait_seconds granted",
        "distlock_wait_seconds busy",
        "distlock_renew_seconds kept",
        "distlock_lost_total revoked",
        "distlock_hold_seconds lost",
    ] {
        assert!(seen.iter().any(|s| s == expected), "no {expected} in {seen:?}");
    }
}

/// Keeps the messages of all events that name a lock, as `lock: message`.
struct Listener(Mutex<Vec<String>>);

struct Fields(String, String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "lock" => self.0 = format!("{value:?}"),
            "message" => self.1 = format!("{value:?}"),
            _ => {}
        }
    }
}

impl tracing::Subscriber for &'static Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut fields = Fields(String::new(), span.metadata().name().to_owned());
        span.record(&mut fields);
        self.0.lock().unwrap().push(format!("{}: span {}", fields.0, fields.1));
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new(), String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(format!("{}: {}", fields.0, fields.1));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn traces_tell_acquire_wait_grant_renewal_loss_and_release() {
    static HEARD: Listener = Listener(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(&HEARD).unwrap();
    let s = scene();
    let first = s.locks.lock("traced").await.unwrap();
    let (second, released) = tokio::join!(s.locks.lock("traced").acquire(), async {
        until("a waiter", || HEARD.0.lock().unwrap().iter().any(|l| l == "traced: waiting")).await;
        first.release().await
    });
    let (second, _) = (second.unwrap(), released.unwrap());
    until("the renewer sleeps", || s.clock.sleepers() > 0).await;
    s.clock.advance(TTL / 3);
    until("a renewal", || second.remaining() > TTL * 2 / 3).await;
    let _ = s.locks.force("traced", None, Force::Now).await.unwrap();
    second.lost().await;
    let heard = HEARD.0.lock().unwrap().clone();
    for expected in ["span acquire", "waiting", "granted", "ended", "renewed", "lost"] {
        let line = format!("traced: {expected}");
        assert!(heard.contains(&line), "no {line:?} in {heard:#?}");
    }
}
