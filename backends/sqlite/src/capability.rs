//! What the store promises.

use std::time::Duration;

use distlock_core::{Capability, Family, Fence, Order, Reentry, Survives, WakeUp};

use crate::options::Sync;

const NOTES_NORMAL: &[&str] = &[
    "a reboot ends every lease, because leases count time since boot; tokens rise across it",
    "the end of a process does not end its locks: they run out with their TTL",
    "only local file systems are served: ext2/3/4, xfs, btrfs, zfs, f2fs, tmpfs, overlayfs",
    "on tmpfs the tokens are only clocked, because a reboot takes the file away",
    "processes in different time namespaces cannot share a file",
    "synchronous=normal: a power cut may forget the last grants, never the ceiling of their tokens",
];

/// The same without the last, which is about `synchronous=normal` alone.
const NOTES: &[&str] = NOTES_NORMAL.split_at(NOTES_NORMAL.len() - 1).0;

/// What the store promises.
#[must_use]
pub fn capability(sync: Sync) -> Capability {
    Capability {
        fence: Fence::Durable,
        ttl_step: Duration::from_micros(1),
        restart: Survives::Ends,
        failover: Survives::NotApplicable,
        partition: Survives::NotApplicable,
        order: Order::Fifo,
        reentry: Reentry::Anywhere,
        shared: true,
        permits: true,
        detach: true,
        force: true,
        lock_delay: true,
        handover: true,
        linger: true,
        wake: WakeUp::Push,
        drift_percent: 0,
        drift_floor: Duration::ZERO,
        wall_witness: false,
        notes: match sync {
            Sync::Full => NOTES,
            Sync::Normal => NOTES_NORMAL,
        },
        ..Capability::new(Family::Lease, "sqlite", "sqlite:PATH", "processes of one host")
    }
}

/// What the store promises, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![capability(Sync::Full)]
}
