//! What a quorum of redis servers promises.

use std::time::Duration;

use distlock_core::{Capability, Family, Fence, Order, Reentry, WakeUp};

use crate::capability::{FLUSH, Kind, MEMORY, capability};
use crate::options::{Algorithm, RedisOptions};

/// A node may take a tenth of the TTL to answer: with less than this a healthy one would seem dead.
const TTL_MIN: Duration = Duration::from_millis(500);

const MAJORITY: &str = "A lock needs a majority of the nodes: of 5, two may be down; with three down \
                        nobody is granted and holders are told by their deadline.";
const TOKENS: &str = "Tokens rise without any condition while the nodes keep their data. A node that \
                      lost it makes them depend on the quarantine and on clocks that are within a \
                      second of each other.";
const RESTART: &str = "A node that restarts without durable data grants nothing for max_ttl + 2s, so \
                       that it lets no second holder in; locks live on at the others.";
const RESTART_OFF: &str = "The quarantine is off: when a node restarts without durable data, two \
                           holders are possible for up to a TTL, and tokens may repeat.";
const CLOCK: &str = "Leases run on the nodes' wall clocks: when somebody steps so many forward that \
                     the rest of the nodes that granted a lock are no majority (one is enough where \
                     only a bare majority had granted it), it can pass on before its holder knows; \
                     the fence still refuses the older one.";
const PLAIN: &str = "Key and value are those of the Redlock recipe, so clients in other languages \
                     exclude us and we them. It has no ordered fence: a resource cannot tell an \
                     older holder from a newer one.";
const LATE: &str = "The recipe has no tombstones: a request that arrives after it was given up keeps \
                    one node for up to its TTL.";
const CLOCK_PLAIN: &str = "Leases run on the nodes' wall clocks: when somebody steps so many forward \
                           that the rest of the nodes that granted a lock are no majority, it can \
                           pass on before its holder knows.";
const RESTART_PLAIN: &str = "A node that restarts without durable data grants nothing to us for \
                             max_ttl + 2s; foreign clients do not know of it.";

/// What a Redlock under these options promises.
#[must_use]
pub fn redlock_capability(options: &RedisOptions) -> Capability {
    let plain = options.algorithm == Algorithm::Plain;
    let (store, url) = match plain {
        true => ("redlock (plain)", "redlock://H1,H2,H3?algorithm=plain"),
        false => ("redlock", "redlock://H1,H2,H3"),
    };
    Capability {
        store,
        url,
        scope: "hosts that reach a majority of the nodes",
        family: Family::Quorum,
        fence: if plain { Fence::Unordered } else { Fence::Clocked },
        ttl_min: TTL_MIN,
        order: if plain { Order::None } else { Order::Bounded },
        reentry: Reentry::Client,
        shared: false,
        permits: false,
        detach: !plain,
        lock_delay: false,
        wake: if plain { WakeUp::Poll } else { WakeUp::Push },
        notes: match (plain, options.quarantine) {
            (false, true) => &[MAJORITY, TOKENS, RESTART, CLOCK, FLUSH, MEMORY],
            (false, false) => &[MAJORITY, TOKENS, RESTART_OFF, CLOCK, FLUSH, MEMORY],
            (true, true) => &[PLAIN, MAJORITY, RESTART_PLAIN, LATE, CLOCK_PLAIN, FLUSH],
            (true, false) => &[PLAIN, MAJORITY, RESTART_OFF, LATE, CLOCK_PLAIN, FLUSH],
        },
        handover: false,
        linger: false,
        ..capability(Kind::Single, options)
    }
}
