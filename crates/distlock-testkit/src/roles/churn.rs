//! A child that does everything one can do with locks, until it is killed.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::{Clock, Force, Locks, ReqId};

use super::{Stage, say};
use crate::wait::task;

/// The names that it uses for exclusive and shared holds.
pub(crate) const CHURNED: [&str; 3] = ["c0", "c1", "c2"];
const LANES: usize = 6;

pub(super) async fn churn(stage: Stage) {
    let locks = stage.client().await;
    for lane in 0..LANES {
        let locks = locks.clone();
        task(async move {
            loop {
                one(&locks, ReqId::random().as_bytes()).await;
                say(format!("did {lane}"));
            }
        });
    }
    std::future::pending::<()>().await;
}

/// One of everything, as the dice say. Errors are of no interest: servers may be killed under it.
pub(crate) async fn one(locks: &Locks, dice: &[u8; 16]) {
    let (name, can) = (CHURNED[usize::from(dice[0] % 3)], locks.capability());
    let mut lock = match dice[2] % 4 {
        0 if can.shared => locks.lock(name).shared(),
        1 if can.permits => {
            locks.lock(format!("p{}", dice[0] % 2)).permits(const { NonZeroU32::new(3).unwrap() })
        }
        _ => locks.lock(name),
    };
    lock = lock.ttl(millis(150 + u64::from(dice[1])));
    if can.lock_delay && dice[3].is_multiple_of(4) {
        lock = lock.lock_delay(millis(20));
    }
    if dice[4].is_multiple_of(4) {
        lock = lock.min_hold(millis(30));
    }
    let patience = millis(u64::from(dice[5] % 40));
    let asking = async {
        match dice[6] % 3 {
            0 => lock.try_acquire().await.ok().and_then(Result::ok),
            1 => lock.try_acquire_for(patience).await.ok().and_then(Result::ok),
            _ => lock.acquire().await.ok(),
        }
    };
    // Dropped midway, now and then.
    let bound = if dice[7].is_multiple_of(3) { patience } else { millis(400) };
    let Some(Some(guard)) = Clock::system().timeout(bound, asking).await else { return };
    // Long enough to be renewed, now and then.
    let hold = if dice[8].is_multiple_of(5) { 200 } else { u64::from(dice[9] % 5) };
    Clock::system().sleep(millis(hold)).await;
    match dice[10] % 6 {
        0 if can.force => drop(locks.force(name, None, Force::Revoke).await),
        1 if can.force => drop(locks.force(name, None, Force::Now).await),
        2 if can.detach => drop(guard.detach()),
        3 => drop(guard),
        _ => drop(guard.release().await),
    }
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
