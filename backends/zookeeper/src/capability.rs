//! What the store promises.

use std::time::Duration;

use distlock_core::{Capability, Family, Fence, Order, Reentry, Survives, WakeUp};

const NOTES: [&str; 4] = [
    "the TTL is the session's: all locks of a client with the same TTL end together, and the server may raise or lower it (by default 4 s to 40 s)",
    "a guard gives up a tenth of its TTL and one tick of the servers (?tick=, by default a quarter of the TTL, at most 2 s): raise it where the servers' tickTime is longer",
    "tokens are transaction ids: after data is restored from an older copy they start below what was given out",
    "a lock that was revoked without force is freed by its holder; one of another kind of client can only be removed at once",
];
/// Beside the others, for a login below a path that everybody may write to.
const OPEN: &str = "everybody may write under this path, so the login protects nothing: whoever comes first makes a lock's node and may take entries away (zkCli: setAcl closes it)";

const CAPABILITY: Capability = Capability {
    fence: Fence::Durable,
    // Below this too little is left to believe in, once the servers' tick is given up.
    ttl_min: Duration::from_secs(1),
    restart: Survives::Yes,
    failover: Survives::Yes,
    partition: Survives::Ends,
    order: Order::Fifo,
    reentry: Reentry::Client,
    shared: true,
    permits: true,
    force: true,
    handover: true,
    wake: WakeUp::Push,
    // A tenth for clocks, a quarter for the servers' tick. Less is given up where that is shorter.
    drift_percent: 35,
    drift_floor: Duration::ZERO,
    notes: &NOTES,
    ..Capability::new(
        Family::Queue,
        "zookeeper",
        "zookeeper://H1,H2,H3/CHROOT",
        "clients of one ensemble",
    )
};

/// What the store promises, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![CAPABILITY]
}

/// What the store promises.
#[must_use]
pub fn capability() -> &'static Capability {
    static HERE: Capability = CAPABILITY;
    &HERE
}

/// The same, where the access list of what is below the path protects nothing.
pub(crate) fn below_an_open_path() -> &'static Capability {
    static HERE: Capability =
        Capability { notes: &[OPEN, NOTES[0], NOTES[1], NOTES[2], NOTES[3]], ..CAPABILITY };
    &HERE
}
