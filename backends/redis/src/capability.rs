//! What each of the redis stores promises.

use std::time::Duration;

use distlock_core::{Capability, Expiry, Family, Fence, Order, Reentry, Survives, Ttl, WakeUp};

use crate::options::{Algorithm, RedisOptions};

/// Which servers keep the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One server.
    Single,
    /// A primary with replicas, and sentinels that watch it.
    Sentinel,
    /// Several primaries, a share of the slots each.
    Cluster,
}

const CLOCK: &str = "Leases run on the server's wall clock: when somebody steps it forward, a lock \
                     can pass on before its holder knows; the fence still refuses the older one.";
pub(crate) const MEMORY: &str = "A name that nobody has used for a day (?keep=) is forgotten: from then on its tokens rise \
                      only if no clock was stepped back by more than that meanwhile.";
pub(crate) const FLUSH: &str =
    "FLUSHALL and keys deleted by hand are found out at the next renewal only.";
const RESTART: &str = "After a restart that may have lost locks nothing is granted for max_ttl, \
                       the longest TTL, unless the server has appendfsync always.";
const RESTART_OFF: &str = "The quarantine is off: after a restart without durable data two holders \
                           are possible for up to a TTL.";
const FAILOVER: &str = "Replication is asynchronous, so a promoted replica may lack the latest \
                        locks: nothing is granted for max_ttl after a failover. A primary \
                        that is cut off with its clients must be kept from granting by \
                        min-replicas-to-write 1.";
const FAILOVER_OFF: &str = "The quarantine is off: a promoted replica may lack the latest locks, \
                            and two holders are possible for up to a TTL.";
const SLOTS: &str = "While a slot moves to another node its locks are renewed, taken when free and handed \
                     over, but nobody can begin to wait for one; and the quarantine of a node does \
                     not go along with the slots that are moved off it meanwhile.";
const PLAIN: &str = "Key and value are those of the SET NX PX recipe, so clients in other languages \
                     exclude us and we them; they take no fencing token.";

/// What a store of this kind promises under these options.
#[must_use]
pub fn capability(kind: Kind, options: &RedisOptions) -> Capability {
    let plain = options.algorithm == Algorithm::Plain;
    let after_loss = match options.quarantine {
        true => Survives::Ends,
        false => Survives::TwoHolders,
    };
    let (store, url) = match (kind, plain) {
        (Kind::Single, false) => ("redis", "redis://HOST:PORT/DB"),
        (Kind::Sentinel, false) => ("redis+sentinel", "redis+sentinel://S1,S2,S3/NAME"),
        (Kind::Cluster, false) => ("redis+cluster", "redis+cluster://H1,H2,H3"),
        (Kind::Sentinel, true) => {
            ("redis+sentinel (plain)", "redis+sentinel://S1,S2,S3/NAME?algorithm=plain")
        }
        (_, true) => ("redis (plain)", "redis://HOST:PORT/DB?algorithm=plain"),
    };
    Capability {
        store,
        url,
        scope: "hosts that reach the server",
        family: Family::Lease,
        fence: Fence::Clocked,
        expiry: Expiry::Ttl,
        ttl_min: Ttl::MIN.get(),
        ttl_max: options.max_ttl,
        ttl_step: Duration::from_millis(1),
        restart: after_loss,
        failover: match kind {
            Kind::Single => Survives::NotApplicable,
            Kind::Sentinel | Kind::Cluster => after_loss,
        },
        partition: Survives::Ends,
        order: if plain { Order::None } else { Order::Fifo },
        reentry: if plain { Reentry::None } else { Reentry::Anywhere },
        shared: !plain,
        permits: !plain,
        detach: true,
        force: true,
        lock_delay: !plain,
        handover: !plain && kind == Kind::Single,
        linger: !plain && kind == Kind::Single,
        wake: WakeUp::Push,
        drift_percent: options.drift_percent,
        drift_floor: Duration::from_millis(2),
        wall_witness: true,
        notes: notes(kind, plain, options.quarantine),
    }
}

fn notes(kind: Kind, plain: bool, quarantine: bool) -> &'static [&'static str] {
    match (kind, plain, quarantine) {
        (Kind::Single, false, true) => &[RESTART, CLOCK, FLUSH, MEMORY],
        (Kind::Single, false, false) => &[RESTART_OFF, CLOCK, FLUSH, MEMORY],
        (Kind::Single | Kind::Cluster, true, true) => &[PLAIN, RESTART, CLOCK, FLUSH, MEMORY],
        (Kind::Single | Kind::Cluster, true, false) => &[PLAIN, RESTART_OFF, CLOCK, FLUSH, MEMORY],
        (Kind::Sentinel, true, true) => &[PLAIN, FAILOVER, RESTART, CLOCK, FLUSH, MEMORY],
        (Kind::Sentinel, true, false) => &[PLAIN, FAILOVER_OFF, RESTART_OFF, CLOCK, FLUSH, MEMORY],
        (Kind::Sentinel, false, true) => &[FAILOVER, RESTART, CLOCK, FLUSH, MEMORY],
        (Kind::Sentinel, false, false) => &[FAILOVER_OFF, RESTART_OFF, CLOCK, FLUSH, MEMORY],
        (Kind::Cluster, false, true) => &[FAILOVER, RESTART, SLOTS, CLOCK, FLUSH, MEMORY],
        (Kind::Cluster, false, false) => &[FAILOVER_OFF, RESTART_OFF, SLOTS, CLOCK, FLUSH, MEMORY],
    }
}
