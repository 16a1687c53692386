//! What the file store promises.

use std::time::Duration;

use distlock_core::{Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp};

/// What the file store promises where its directory outlives a reboot.
pub static CAPABILITY: Capability = Capability {
    fence: Fence::Durable,
    expiry: Expiry::WithProcess,
    ttl_step: Duration::from_nanos(1),
    restart: Survives::Ends,
    failover: Survives::NotApplicable,
    partition: Survives::NotApplicable,
    order: Order::Fifo,
    reentry: Reentry::Client,
    lock_delay: true,
    wake: WakeUp::Push,
    drift_percent: 0,
    drift_floor: Duration::ZERO,
    wall_witness: false,
    notes: &[
        "A lock lasts as long as its process: a crash frees it at once, a stopped process keeps it.",
        "A child forked without exec keeps a killed parent's locks until it ends too.",
        "The TTL plays no part; nobody can take a lock away from a living process.",
        "Local file systems only: ext, xfs, btrfs, zfs, f2fs, tmpfs, overlayfs. On tmpfs \
         nothing outlives a reboot, so its tokens are only clocked.",
    ],
    ..Capability::new(Family::Session, "file", "file:DIR", "processes of one host")
};

/// What the store promises, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![CAPABILITY.clone()]
}
