//! The driver of the session family over a session store in this process, whose connections can
//! die and whose answers can hang.

use std::sync::atomic::AtomicU64;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore};

use super::*;
use crate::{
    Alive, Expiry, Family, Locked, Owner, Patience, QueueStatus, SessionDriver, SessionStore,
    StoreInfo, TokenRange, Wake,
};

/// One lock, whatever its name.
#[derive(Clone)]
struct Room(Arc<Inside>);

struct Inside {
    promises: Capability,
    clock: Clock,
    /// Who has it; a new one when the connection of the old one died.
    door: Mutex<(Arc<AsyncMutex<()>>, Arc<AtomicBool>)>,
    last: AtomicU64,
    /// Looking whether a connection lives needs one of these.
    looks: Semaphore,
    /// Telling that a lock was granted needs one of these.
    answers: Semaphore,
    sink: std::sync::OnceLock<EventSink>,
}

struct Inmate(#[allow(dead_code)] OwnedMutexGuard<()>, Arc<AtomicBool>);

impl Room {
    fn new(expiry: Expiry) -> Self {
        let mut promises = crate::memory::capability().clone();
        promises.handover = false;
        (promises.expiry, promises.detach) = (expiry, false);
        promises.family = Family::Session;
        Self(Arc::new(Inside {
            promises,
            clock: Clock::held(),
            door: Mutex::default(),
            last: AtomicU64::new(0),
            looks: Semaphore::new(1),
            answers: Semaphore::new(1),
            sink: std::sync::OnceLock::new(),
        }))
    }

    /// The connection that has the lock dies, and the lock is free.
    fn disconnect(&self) {
        let (_, dead) = std::mem::take(&mut *self.0.door.lock().unwrap());
        dead.store(true, Ordering::SeqCst);
    }
}

impl SessionStore for Room {
    type Conn = Inmate;
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.0.promises, site: "room:", clock: &self.0.clock }
    }
    async fn lock(&self, ask: &Ask, _: Watcher<'_>) -> Result<Locked<Inmate>, Error> {
        let (door, dead) = self.0.door.lock().unwrap().clone();
        let inside = match ask.patience {
            Patience::Never => door.try_lock_owned().ok(),
            _ => Some(door.lock_owned().await),
        };
        let Some(inside) = inside else { return Ok(Locked::Busy(QueueStatus::default())) };
        let token = Token::new(self.0.last.fetch_add(1, Ordering::SeqCst) + 1)?;
        let conn = Inmate(inside, dead);
        let sent = Some(self.0.clock.reading());
        let _answer = self.0.answers.acquire().await;
        Ok(Locked::Held { conn, sent, tokens: TokenRange::one(token), waiters: 0 })
    }
    async fn alive(&self, conn: &mut Inmate) -> Alive {
        let _look = self.0.looks.acquire().await;
        match conn.1.load(Ordering::SeqCst) {
            true => Alive::No(LossReason::Disconnected),
            false => Alive::Yes { waiters: 0 },
        }
    }
    async fn unlock(&self, _: Inmate) -> Result<Released, Error> {
        Ok(Released::Released)
    }
    async fn inspect(&self, _: &Query) -> Result<Vec<LockInfo>, Error> {
        Ok(Vec::new())
    }
    async fn force(&self, _: &FullName, _: Option<Token>, _: Force) -> Result<Forced, Error> {
        Ok(Forced::NoMatch)
    }
    fn listen(&self, sink: EventSink) {
        let _ = self.0.sink.set(sink);
    }
    async fn close(&self) {}
}

fn room() -> (Room, Locks) {
    room_with(Expiry::WithProcess)
}

fn room_with(expiry: Expiry) -> (Room, Locks) {
    let room = Room::new(expiry);
    let backend: Arc<dyn Backend> = Arc::new(SessionDriver::new(room.clone()));
    (room, Locks::options().ttl(TTL).open(backend).unwrap())
}

#[tokio::test]
async fn a_release_dropped_while_somebody_looks_leaves_nothing_locked() {
    let (room, locks) = room();
    let guard = locks.lock("a").await.unwrap();
    let ticket = guard.ticket();
    // A renewal is under way, and its answer hangs.
    let hang = room.0.looks.acquire().await.unwrap();
    let backend = locks.backend().clone();
    let due = [Due { key: Key { lock: ticket.lock, req: ticket.req }, ttl: TTL }];
    let mut look = std::pin::pin!(backend.keep(&due));
    let mut release = Box::pin(guard.release());
    tokio::select! {
        biased;
        _ = &mut look => panic!("it hangs"),
        _ = &mut release => panic!("it waits for the look"),
        () = std::future::ready(()) => {}
    }
    drop(release);
    drop(hang);
    assert_eq!(look.await.len(), 1);
    gets_free(&locks).await;
}

/// An undo that was dropped is repeated, and then there must still be something to undo.
#[tokio::test]
async fn an_undo_dropped_while_somebody_looks_leaves_nothing_locked() {
    let (room, locks) = room();
    let backend = locks.backend().clone();
    let ask = ask("a");
    assert!(matches!(backend.acquire(Arc::new(ask.clone()), None).await, Ok(Attempt::Granted(_))));
    let hang = room.0.looks.acquire().await.unwrap();
    let (key, due) = (ask.key(), [Due { key: ask.key(), ttl: TTL }]);
    let mut look = std::pin::pin!(backend.keep(&due));
    let mut undo = backend.abandon(&key);
    tokio::select! {
        biased;
        _ = &mut look => panic!("it hangs"),
        _ = &mut undo => panic!("it waits for the look"),
        () = std::future::ready(()) => {}
    }
    drop(undo);
    drop(hang);
    assert_eq!(look.await.len(), 1);
    backend.abandon(&key).await.unwrap();
    gets_free(&locks).await;
}

async fn gets_free(locks: &Locks) {
    for _ in 0..5000 {
        if locks.lock("a").try_acquire().await.unwrap().is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it is locked for ever");
}

fn ask(name: &str) -> Ask {
    Ask {
        lock: FullName { space: Default::default(), name: crate::Name::new(name).unwrap() },
        req: crate::ReqId::random(),
        owner: Owner::new(),
        mode: crate::Mode::Exclusive,
        ttl: TTL,
        patience: Patience::Never,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: crate::Label::new("test"),
        block: std::num::NonZeroU32::MIN,
    }
}

#[tokio::test]
async fn an_owner_does_not_enter_again_what_it_has_lost() {
    let (room, locks) = room();
    let me = Owner::new();
    let first = locks.lock("a").owner(&me).await.unwrap();
    let nested = locks.lock("a").owner(&me).await.unwrap();
    assert_eq!(nested.token(), first.token());
    room.disconnect();
    let other = locks.lock("a").await.unwrap();
    let again = locks.lock("a").owner(&me).try_acquire().await.unwrap();
    assert!(again.is_err(), "two guards are valid at once");
    assert_eq!(other.release().await.unwrap(), Released::Released);
    // What it holds anew has nothing to do with what it had.
    let again = locks.lock("a").owner(&me).try_acquire().await.unwrap().unwrap();
    assert!(again.token() > first.token());
    assert_eq!(first.release().await.unwrap(), Released::WasLost);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_err(), "freed by the old guard");
    assert_eq!(again.release().await.unwrap(), Released::Released);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_ok(), "kept by the old guard");
    drop(nested);
}

#[tokio::test]
async fn a_lease_counts_from_the_answer_and_not_from_the_start_of_the_wait() {
    let (room, locks) = room_with(Expiry::Ttl);
    let inside = room.0.door.lock().unwrap().0.clone().try_lock_owned().unwrap();
    let mut waits = Box::pin(locks.lock("a").acquire());
    tokio::select! {
        biased;
        _ = &mut waits => panic!("it is held"),
        () = std::future::ready(()) => {}
    }
    room.0.clock.advance(TTL * 5);
    drop(inside);
    // Nobody has to look again whether it holds what it was just given.
    let _hang = room.0.looks.acquire().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(30), waits).await.unwrap().unwrap();
    assert!(guard.check().is_ok() && guard.remaining() > TTL / 2);
}

#[tokio::test]
async fn what_was_lost_by_its_deadline_is_given_back_though_its_connection_lives() {
    let (room, locks) = room_with(Expiry::Ttl);
    let guard = locks.lock("a").await.unwrap();
    // No look is answered any more, so nobody knows, and the deadline comes.
    let _hang = room.0.looks.acquire().await.unwrap();
    room.0.clock.advance(TTL);
    assert!(guard.check().is_err());
    let next = tokio::time::timeout(Duration::from_secs(30), locks.lock("a").acquire());
    assert!(next.await.expect("it is locked for ever").unwrap().token() > guard.token());
}

#[tokio::test]
async fn whose_connection_died_is_told_without_a_renewal_and_nobody_else_is() {
    let (room, locks) = room_with(Expiry::Ttl);
    let me = Owner::new();
    // Time stands still: no renewal is ever due, and the second never has one.
    let first = locks.lock("a").owner(&me).await.unwrap();
    let nested = locks.lock("a").owner(&me).without_renewal().await.unwrap();
    let sink = room.0.sink.get().unwrap();
    let (deadline, clock) = (nested.remaining(), &room.0.clock);
    sink(Wake::Everybody);
    clock.advance(Duration::from_millis(1));
    assert!(nested.remaining() < deadline, "a look is no renewal");
    assert!(first.check().is_ok() && nested.check().is_ok());
    room.disconnect();
    sink(Wake::Everybody);
    let told = async { (first.lost().await, nested.lost().await) };
    let (one, two) = tokio::time::timeout(Duration::from_secs(30), told).await.expect("told");
    assert_eq!((one.why, two.why), (LossReason::Disconnected, LossReason::Disconnected));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_ok());
}

/// The server grants and then ends the connection, and word of the end comes before the grant: who
/// is granted then must not hold what is gone, nor wait for word that will not come again.
#[tokio::test]
async fn an_end_told_before_the_grant_is_not_forgotten() {
    let (room, locks) = room();
    let sink = room.0.sink.get().unwrap();
    let hang = room.0.answers.acquire().await.unwrap();
    let mut waits = Box::pin(locks.lock("a").acquire());
    tokio::select! {
        biased;
        _ = &mut waits => panic!("its answer hangs"),
        () = std::future::ready(()) => {}
    }
    let gone = room.0.last.load(Ordering::SeqCst);
    room.disconnect();
    sink(Wake::Everybody);
    // Behind the look in the queue of the library's thread: it is over when this has run.
    tokio::task::spawn_blocking(|| crate::engine::block_on(async {})).await.unwrap();
    drop(hang);
    let guard = tokio::time::timeout(Duration::from_secs(30), waits).await.unwrap().unwrap();
    assert!(guard.token().get() > gone, "granted by a connection that had ended");
    assert!(guard.check().is_ok());
}

/// The application's task asks again for what it holds, and is not polled after that: its renewals
/// go on, and nobody waits for it.
#[tokio::test]
async fn a_reentry_that_is_not_polled_keeps_no_renewal_waiting() {
    let (room, locks) = room_with(Expiry::Ttl);
    let me = Owner::new();
    let guard = locks.lock("a").owner(&me).await.unwrap();
    let ticket = guard.ticket();
    let hang = room.0.looks.acquire().await.unwrap();
    let mut again = Box::pin(locks.lock("a").owner(&me).acquire());
    tokio::select! {
        biased;
        _ = &mut again => panic!("its look hangs"),
        () = std::future::ready(()) => {}
    }
    drop(hang);
    let due = [Due { key: Key { lock: ticket.lock, req: ticket.req }, ttl: TTL }];
    let kept = tokio::time::timeout(Duration::from_secs(30), locks.backend().keep(&due)).await;
    let kept = kept.expect("a renewal waits for a task that is not polled");
    assert!(matches!(kept[..], [Kept::Until { .. }]), "{kept:?}");
    assert_eq!(again.await.unwrap().token(), guard.token());
}

/// The server ends a session that was silent for the TTL it was opened with, whatever those who enter
/// again ask for.
#[tokio::test]
async fn a_reentry_counts_with_the_lease_of_its_connection() {
    let (_room, locks) = room_with(Expiry::Ttl);
    let me = Owner::new();
    let outer = locks.lock("a").owner(&me).await.unwrap();
    let inner = locks.lock("a").owner(&me).ttl(TTL * 10).await.unwrap();
    assert_eq!((inner.token(), inner.ttl()), (outer.token(), TTL));
    assert!(inner.remaining() <= TTL, "{:?}", inner.remaining());
    // A shorter one is its own.
    let short = locks.lock("a").owner(&me).ttl(TTL / 2).await.unwrap();
    assert_eq!(short.ttl(), TTL / 2);
}
