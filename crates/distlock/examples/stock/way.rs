//! The four ways to sell one, each with a moment between the look and the purchase at which a
//! process can be stopped.

use std::fmt;
use std::time::Duration;

use distlock::Locks;
use distlock::fence::optimistic::{self, Tries};
use distlock::fence::{Conflict, Error};

use crate::shop::{Shop, Trouble};

/// How to sell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Lock,
    LockAndFence,
    Optimistic,
    Statement,
}

impl Way {
    pub(crate) const ALL: &'static [Way] =
        &[Way::Lock, Way::LockAndFence, Way::Optimistic, Way::Statement];

    pub(crate) fn named(name: &str) -> Option<Way> {
        Self::ALL.iter().copied().find(|way| way.to_string() == name)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Lock => "a lock alone",
            Way::LockAndFence => "a lock and a fence",
            Way::Optimistic => "an optimistic update",
            Way::Statement => "one statement",
        })
    }
}

/// What became of a purchase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bought {
    Yes,
    SoldOut,
    /// The fence refused: the lock had passed on.
    Stale,
    /// Others were quicker in every try.
    Conflict,
}

/// One purchase. `pause` is awaited between the look and the purchase, once.
pub(crate) async fn buy(
    way: Way,
    shop: &Shop,
    locks: &Locks,
    ttl: Duration,
    mut pause: Pause,
) -> Result<Bought, Trouble> {
    match way {
        Way::Lock | Way::LockAndFence => {
            let guard = locks.lock("teapots").ttl(ttl).await?;
            let (seen, _) = shop.look().await?;
            if seen == 0 {
                return Ok(Bought::SoldOut);
            }
            guard.check()?; // still ours …
            pause.here().await?; // … and now?
            let token = (way == Way::LockAndFence).then(|| guard.token());
            match shop.sell_down_to(seen - 1, token).await {
                Ok(()) => Ok(Bought::Yes),
                Err(Error::Stale(_)) => Ok(Bought::Stale),
                Err(e) => Err(e.into()),
            }
        }
        Way::Optimistic => {
            let tries =
                Tries::at_most(200).pauses(Duration::from_millis(2), Duration::from_millis(50));
            let done = optimistic::update::<_, _, _, Error, _, _>(
                &tries,
                "teapots",
                || shop.look(),
                |seen, version| {
                    let pause = std::mem::take(&mut pause);
                    async move {
                        if seen == 0 {
                            return Ok(Some(Bought::SoldOut));
                        }
                        pause.here().await.map_err(Error::Store)?;
                        let sold = shop.sell_if_version(seen - 1, version).await?;
                        Ok(sold.then_some(Bought::Yes))
                    }
                },
            )
            .await;
            match done {
                Err(Error::Conflict(Conflict { .. })) => Ok(Bought::Conflict),
                done => Ok(done?),
            }
        }
        Way::Statement => {
            pause.here().await?;
            Ok(if shop.sell_if_there().await? { Bought::Yes } else { Bought::SoldOut })
        }
    }
}

/// Where a process can be stopped; most buyers walk past it.
#[derive(Default)]
pub(crate) struct Pause {
    pub(crate) stop: bool,
}

impl Pause {
    /// Tells the parent process, and waits for its word.
    async fn here(&self) -> Result<(), Trouble> {
        if self.stop { crate::sleeper::pause().await } else { Ok(()) }
    }
}
