//! What the store promises, which is less than the others do.

use std::time::Duration;

use distlock_core::{Capability, Family, Fence, Reentry, Survives};

use crate::time::COARSE;

static CAPABILITY: Capability = Capability {
    fence: Fence::Clocked,
    // Less would leave nothing to believe in once the coarseness of the clock is given up.
    ttl_min: Duration::from_secs(4),
    ttl_step: Duration::from_secs(1),
    failover: Survives::NotApplicable,
    partition: Survives::Ends,
    reentry: Reentry::Client,
    detach: true,
    force: true,
    drift_floor: COARSE,
    notes: &[
        "advisory: memcached may drop any item, and a lock with it, while its holder believes in it",
        "an eviction, a flush or a restart ends locks silently: two holders are possible until the first one's next renewal",
        "tokens rise while the fence item lives (two days unused); after a loss they start from the wall clock of the client that asks, so clients' clocks must agree",
        "memcached counts whole seconds, two of them uncertain: a guard gives up 2 s and a tenth of its TTL",
        "a server that was stopped for a while may end locks early when it goes on",
    ],
    ..Capability::new(Family::Lease, "memcached", "memcached://HOST:PORT", "clients of one server")
};

/// What the store promises.
#[must_use]
pub fn capability() -> &'static Capability {
    &CAPABILITY
}

/// What the store promises, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![CAPABILITY.clone()]
}
