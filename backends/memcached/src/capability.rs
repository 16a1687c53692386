//! What the store promises, which is less than the others do.

use std::time::Duration;

use distlock_core::Ttl;
use distlock_core::capability::{
    Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp,
};

use crate::time::COARSE;

static CAPABILITY: Capability = Capability {
    store: "memcached",
    url: "memcached://HOST:PORT",
    scope: "clients of one server",
    family: Family::Lease,
    fence: Fence::Clocked,
    expiry: Expiry::Ttl,
    // Less would leave nothing to believe in once the coarseness of the clock is given up.
    ttl_min: Duration::from_secs(4),
    ttl_max: Ttl::MAX.get(),
    ttl_step: Duration::from_secs(1),
    restart: Survives::TwoHolders,
    failover: Survives::NotApplicable,
    partition: Survives::Ends,
    order: Order::None,
    reentry: Reentry::Client,
    shared: false,
    permits: false,
    detach: true,
    force: true,
    lock_delay: false,
    wake: WakeUp::Poll,
    drift_percent: 10,
    drift_floor: COARSE,
    wall_witness: true,
    notes: &[
        "advisory: memcached may drop any item, and a lock with it, while its holder believes in it",
        "an eviction, a flush or a restart ends locks silently: two holders are possible until the first one's next renewal",
        "tokens rise while the fence item lives (two days unused); after a loss they start from the wall clock of the client that asks, so clients' clocks must agree",
        "memcached counts whole seconds, two of them uncertain: a guard gives up 2 s and a tenth of its TTL",
        "a server that was stopped for a while may end locks early when it goes on",
    ],
};

/// What the store promises.
#[must_use]
pub fn capability() -> &'static Capability {
    &CAPABILITY
}
