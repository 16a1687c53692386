//! Clients that are killed in the middle of whatever they do.

use std::collections::BTreeSet;

use crate::StoreUnderTest;
use crate::child::Child;
use crate::roles::CHURNED;
use crate::wait::{LONG, give_back, soon};

const ROUNDS: usize = 8;

/// Two processes do everything one can do with locks, and are killed: every key that is left ends
/// by itself, and what the dead held and waited for is over with their TTLs.
pub async fn a_kill_leaves_no_key_without_an_end(site: &StoreUnderTest) {
    let (leftovers, kinds) = site.suite().leaves.expect("listed only with this hook");
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        // Two at a time, so that they meet.
        let args = [("url", site.url())];
        let mut two = [Child::start("churn", &args), Child::start("churn", &args)];
        for n in 0..8 + 9 * round {
            two[n % 2].hear("did").await;
        }
        for child in &mut two {
            child.kill().await;
        }
        let left = leftovers(site).await;
        let endless: Vec<_> = left.iter().filter(|(_, ends)| !ends).collect();
        assert!(endless.is_empty(), "without an end: {endless:?}");
        assert!(!left.is_empty(), "nothing was left: this law would show nothing");
        seen.extend(left.into_iter().map(|(key, _)| key));
    }
    // The look was at everything that a lock can leave.
    for kind in kinds {
        assert!(seen.iter().any(|key| key.contains(kind)), "no {kind:?} among {seen:?}");
    }
    let locks = site.client().await;
    for name in CHURNED {
        let lock = locks.lock(name).ttl(LONG);
        give_back(soon("what the dead held", lock.acquire()).await.expect("a grant")).await;
    }
}
