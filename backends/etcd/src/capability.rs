//! What the store promises, which depends on the version of the server.

use std::time::Duration;

use distlock_core::{Capability, Family, Fence, Order, Reentry, Survives, WakeUp};

/// The version of an etcd server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// A version by its three numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads `3.4.23`, and what pre-releases add.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(['.', '-', '+']).map(|n| n.parse().ok());
        Some(Self::new(numbers.next()??, numbers.next()??, numbers.next()??))
    }

    /// Whether a fix that came with these patches of 3.4, 3.5 and 3.6 is in it.
    fn has(self, fixed: [u32; 3]) -> bool {
        match (self.major, self.minor) {
            (3, minor @ 4..=6) => {
                fixed.iter().zip(4..).any(|(patch, m)| m == minor && self.patch >= *patch)
            }
            (3, minor) => minor > 6,
            (major, _) => major > 3,
        }
    }
}

/// Where a lease that is being revoked is not kept alive any more: later than [`REVISIONS`].
const LEASES: [u32; 3] = [38, 23, 5];
/// Where revisions do not fall after a crash in the midst of a compaction.
const REVISIONS: [u32; 3] = [32, 14, 0];

const RESTORE: &str = "Tokens are revisions of the cluster: after a restore from a snapshot they \
                       rise only if it was made with --bump-revision.";
const DETACHED: &str = "A hold lives on a lease of its client and ends with it, so it cannot be \
                        taken up by another process.";
const OLD_LEASES: &str = "Servers before 3.4.38, 3.5.23 and 3.6.5 can acknowledge a keep-alive of a \
                          lease they are about to end: two holders are possible for up to a TTL, \
                          and only the fence helps.";
const OLD_REVISIONS: &str = "Servers before 3.4.32 and 3.5.14 can lose revisions in a crash in the \
                             midst of a compaction: tokens rise only if that does not happen.";

/// What the store promises on a server of this version; without one, what the oldest do.
#[must_use]
pub fn capability(version: Option<Version>) -> Capability {
    let leases = version.is_some_and(|v| v.has(LEASES));
    let revisions = version.is_some_and(|v| v.has(REVISIONS));
    let event = if leases { Survives::Yes } else { Survives::TwoHolders };
    Capability {
        fence: if revisions { Fence::Durable } else { Fence::Clocked },
        // Raised to a server's own minimum, one and a half election timeouts.
        ttl_min: Duration::from_secs(2),
        ttl_step: Duration::from_secs(1),
        restart: Survives::Yes,
        failover: event,
        partition: event,
        order: Order::Fifo,
        reentry: Reentry::Client,
        shared: true,
        permits: true,
        force: true,
        wake: WakeUp::Push,
        notes: match (leases, revisions) {
            (true, _) => &[RESTORE, DETACHED],
            (false, true) => &[OLD_LEASES, RESTORE, DETACHED],
            (false, false) => &[OLD_LEASES, OLD_REVISIONS, RESTORE, DETACHED],
        },
        ..Capability::new(Family::Queue, "etcd", "etcd://H1,H2,H3", "hosts that reach the cluster")
    }
}

/// What the store promises on current servers; older ones promise less when they are connected to.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![capability(Some(Version::new(3, 6, 9)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_promised_less_of() {
        let of = |text: &str| {
            let c = capability(Version::read(text));
            (c.fence, c.failover)
        };
        use {Fence::*, Survives::*};
        assert_eq!(of("3.4.23"), (Clocked, TwoHolders));
        assert_eq!(of("3.4.32"), (Durable, TwoHolders));
        assert_eq!(of("3.4.38"), (Durable, Yes));
        assert_eq!(of("3.5.13"), (Clocked, TwoHolders));
        assert_eq!(of("3.5.23-rc.1"), (Durable, Yes));
        assert_eq!(of("3.6.4"), (Durable, TwoHolders));
        assert_eq!(of("3.7.0-alpha.0"), (Durable, Yes));
        assert_eq!(of("nonsense"), (Clocked, TwoHolders));
    }
}
