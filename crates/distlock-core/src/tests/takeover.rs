//! Who enters when others die, and when.

use super::*;
use crate::{Label, Mode, Name, Owner, Patience, ReqId};

/// A request of a process that will not be heard of again.
fn ask(name: &str, ttl: Duration) -> Ask {
    Ask {
        lock: FullName { space: crate::Namespace::default(), name: Name::new(name).unwrap() },
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl,
        patience: Patience::Forever,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("dead"),
        block: std::num::NonZeroU32::MIN,
    }
}

#[tokio::test]
async fn the_second_in_line_enters_when_holder_and_head_die_together() {
    let clock = Clock::held();
    let memory = Memory::on(clock.clone());
    let dead = memory.client();
    let (lease, long) = (Duration::from_secs(11), Duration::from_secs(60));
    dead.play_one(Class::Caller, Move::Acquire(Arc::new(ask("a", lease)), None)).await.unwrap();
    dead.play_one(Class::Caller, Move::Acquire(Arc::new(ask("a", long)), Some(long)))
        .await
        .unwrap();
    // Each waiter in the queue of the store.
    let options = Locks::options().strict_order().ttl(Duration::from_secs(60));
    let locks = options.open(memory.client()).unwrap();
    let began = clock.now();
    let waiters: Vec<_> = (0..3).map(|_| tokio::spawn(locks.lock("a").acquire())).collect();
    let in_line = || {
        let lock = ask("a", lease).lock;
        memory.peek(&lock).unwrap().queue.len() == 4
    };
    until("they wait", in_line).await;
    let mut waited = Duration::ZERO;
    while !waiters.iter().any(|w| w.is_finished()) && waited < lease * 2 {
        clock.advance(Duration::from_millis(10));
        waited = clock.now().since(began);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The lease of the holder, the claim of the head, and a little.
    let due = lease + Duration::from_secs(1);
    assert!(waited >= due && waited <= due + Duration::from_millis(300), "{waited:?}");
}
