//! What can be set, and what the store promises with it.

use std::time::Duration;

use distlock_core::capability::{
    Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp,
};
use distlock_core::{Clock, Ttl};

/// When a commit is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sync {
    /// Before it is answered. The default, because the fence is promised always.
    #[default]
    Full,
    /// At the next checkpoint. A power cut may undo the last commits, but ends every lease anyway;
    /// tokens stay below a ceiling that is itself written as [`Sync::Full`] would, and start above
    /// it after a reboot.
    Normal,
}

/// How a database is opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// When a commit is on the disk.
    pub sync: Sync,
    /// The clock; tests may hold it.
    pub clock: Clock,
    /// Whether this client only looks: it creates no database and no socket, so it can list and
    /// show locks but must not wait for one.
    pub look_only: bool,
    /// Whether to use a directory although other users can write in it or above it.
    pub trust_all: bool,
    /// Stands in for the machine's boot id: lets a test reboot.
    #[doc(hidden)]
    pub boot_id: Option<String>,
}

impl SqliteOptions {
    /// The default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when a commit is on the disk.
    #[must_use]
    pub fn sync(mut self, sync: Sync) -> Self {
        self.sync = sync;
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets whether this client only looks, and creates nothing.
    #[must_use]
    pub fn look_only(mut self, look_only: bool) -> Self {
        self.look_only = look_only;
        self
    }

    /// Sets whether to use a directory although other users can write in it or above it.
    #[must_use]
    pub fn trust_all(mut self, trust_all: bool) -> Self {
        self.trust_all = trust_all;
        self
    }

    /// Stands in for the machine's boot id.
    #[doc(hidden)]
    #[must_use]
    pub fn boot_id(mut self, id: impl Into<String>) -> Self {
        self.boot_id = Some(id.into());
        self
    }
}

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
        store: "sqlite",
        url: "sqlite:PATH",
        scope: "processes of one host",
        family: Family::Lease,
        fence: Fence::Durable,
        expiry: Expiry::Ttl,
        ttl_min: Ttl::MIN.get(),
        ttl_max: Ttl::MAX.get(),
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
        wake: WakeUp::Push,
        drift_percent: 0,
        drift_floor: Duration::ZERO,
        wall_witness: false,
        notes: match sync {
            Sync::Full => NOTES,
            Sync::Normal => NOTES_NORMAL,
        },
    }
}
