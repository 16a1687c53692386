//! `?wait=1`: a grant or renewal counts once a replica has it.

use std::time::Duration;

use distlock_core::{Error, Kind, LossReason, Outcome};
use distlock_testkit::servers::Sentinels;

use crate::kit::*;

pub(crate) const TRIALS: Trials = &[
    ("wait_makes_a_grant_and_a_renewal_count_only_at_a_replica", || play(confirmed())),
    ("wait_for_replicas_that_are_gone_does_not_add_up", || play(together())),
];

async fn confirmed() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let a = connect(&sentinel_url(&set, "quarantine=off&wait=1")).await?;
    let b = connect(&sentinel_url(&set, "quarantine=off")).await?;
    let ttl = Duration::from_secs(8);
    let held = take(&a, "held", ttl).await?;
    let end = now().plus(held.remaining());
    until("a renewal", async || now().plus(held.remaining()) > end.plus(ttl / 6)).await;

    set.cut_replicas().await?;
    let e = a.lock("new").ttl(ttl).try_acquire().await.expect_err("no replica has it");
    assert!(e.to_string().contains("0 of 1 replicas confirmed"), "{e}");
    assert!(e.kind() == Kind::Unreachable && e.outcome() == Outcome::Unknown, "{e:?}");
    assert!(e.hint().is_some_and(|h| h.contains("?wait=")), "{e:?}");
    // What the primary had granted is taken back, and does not lie about until its TTL ends.
    let gone = until("nothing left", async || b.show("new").await.is_ok_and(|l| l.is_none()));
    let (took, ()) = timed(gone).await;
    assert!(took < ttl / 2, "it ran out instead of being cancelled");
    let lost = within(ttl, "word that no renewal counted", held.lost()).await;
    assert_eq!(lost.why, LossReason::Expired, "{lost}");

    set.heal().await?;
    let again = take_in_the_end(&a, "new", ttl).await;
    give_back(again).await
}

/// Each waits for a second, and a connection waits for one at a time.
async fn together() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let a = connect(&sentinel_url(&set, "quarantine=off&wait=1")).await?;
    set.cut_replicas().await?;
    let asks = (0..30).map(|n| {
        let lock = a.lock(format!("crowd-{n}")).ttl(Duration::from_secs(10));
        task(async move { lock.try_acquire().await.expect_err("no replica has it") })
    });
    let told = within(Duration::from_secs(8), "word", futures_util::future::join_all(asks)).await;
    for e in told {
        let e = e.expect("no panic");
        assert!(e.to_string().contains("0 of 1 replicas confirmed"), "{e}");
    }
    set.heal().await
}
