//! A request that reaches a database late, after its own repetition was answered: a connection broke
//! while it was on its way, and the store has sent it again on another.

use std::time::Duration;

use distlock_core::{Busy, Error, Guard, Locks};

use crate::proxy::{Proxy, Way};
use crate::wait::{LONG, give_back, take_for, task, until_within, within};

/// The lock that is asked for.
pub const LOCK: &str = "a";
/// What marks the request that is late.
const LABEL: &str = "the late one";
/// How long each step may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A client whose connections lead through a proxy, and others.
pub struct Late {
    /// On the way of `locks`.
    pub proxy: Proxy,
    /// Has used [`LOCK`] before, so that its statements are prepared and each is sent whole.
    pub locks: Locks,
    /// Its connections lead to the server itself.
    pub others: Locks,
}

impl Late {
    /// The repetition is granted, given back, and pushed out of the row's memory of releases by
    /// others: the late request takes nothing.
    ///
    /// # Panics
    /// When it takes the lock.
    pub async fn was_released(&self) {
        give_back(self.repeated().await.expect("an answer").expect("a grant")).await;
        for _ in 0..8 {
            give_back(take_for(&self.others, LOCK, LONG).await).await;
        }
        self.arrives().await;
    }

    /// Somebody else holds the lock at the repetition, and has given it back when the late request
    /// arrives: it takes nothing.
    ///
    /// # Panics
    /// When it takes the lock.
    pub async fn was_busy(&self) {
        let held = take_for(&self.others, LOCK, LONG).await;
        assert!(self.repeated().await.expect("an answer").is_err());
        give_back(held).await;
        self.arrives().await;
    }

    /// Asks; the connection breaks while the request is on its way.
    async fn repeated(&self) -> Result<Result<Guard, Busy>, Error> {
        self.proxy.cut(Way::Requests);
        let lock = self.locks.lock(LOCK).ttl(LONG).label(LABEL);
        let asking = task(async move { lock.try_acquire().await });
        until_within(SOON, "it is on its way", async || self.proxy.holds(LABEL.as_bytes())).await;
        self.proxy.strand();
        within(SOON, "an answer", asking).await.expect("no panic")
    }

    /// The server gets what was held up on the way.
    async fn arrives(&self) {
        self.proxy.arrive();
        until_within(SOON, "it has arrived", async || !self.proxy.holds(LABEL.as_bytes())).await;
        let shown = self.others.show(LOCK).await.expect("an answer");
        assert!(shown.is_none(), "a ghost holds the lock: {shown:?}");
    }
}
