//! What each of the mysql stores promises.

use std::time::Duration;

use distlock_core::Ttl;
use distlock_core::capability::{
    Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp,
};

use crate::options::{Algorithm, MysqlOptions};

const CLOCK: &str = "Leases run on the server's wall clock: when somebody steps it forward, a lock \
                     can pass on before its holder knows; the fence still refuses the older one.";
const REPLICA: &str = "One primary keeps the locks: after a failover to a replica that lacks the \
                       latest commits two holders are possible for up to a TTL, unless replication \
                       is semi-synchronous (AFTER_SYNC).";
const FLUSH: &str = "The server does not put every commit on disk (innodb_flush_log_at_trx_commit \
                     is not 1): a crash of its machine may forget the last grants and tokens.";
const OTHERS: &str = "Waiters of other database users are not woken by us unless we may KILL their \
                      queries: they find out by asking.";
const ASKS: &str = "Nobody is called up: a process whose waiter is the first in line reads the row \
                    again every 20 to 250 ms.";
const LONG: &str = "Each held lock is an open transaction on a connection of its own: at most \
                    ?sessions= of them, and a long hold keeps the server from clearing old \
                    rows. One more connection notices when the server goes.";

/// What a store of this kind promises; `durable` when the server puts every commit on disk before
/// it answers.
#[must_use]
pub fn capability(options: &MysqlOptions, durable: bool) -> Capability {
    let lease = options.algorithm != Algorithm::RowLock;
    let (store, url) = match options.algorithm {
        Algorithm::Line => ("mysql", "mysql://HOST/DATABASE"),
        Algorithm::Version => ("mysql (version)", "mysql://HOST/DATABASE?algorithm=version"),
        Algorithm::RowLock => ("mysql (row-lock)", "mysql://HOST/DATABASE?algorithm=row-lock"),
    };
    Capability {
        store,
        url,
        scope: "hosts that reach the server",
        family: if lease { Family::Lease } else { Family::Session },
        fence: if durable { Fence::Durable } else { Fence::Clocked },
        expiry: Expiry::Ttl,
        ttl_min: Ttl::MIN.get(),
        ttl_max: Ttl::MAX.get(),
        ttl_step: Duration::from_micros(1),
        restart: match (lease, durable) {
            (false, _) => Survives::Ends,
            (true, true) => Survives::Yes,
            (true, false) => Survives::TwoHolders,
        },
        failover: Survives::TwoHolders,
        partition: Survives::Ends,
        order: if lease { Order::Fifo } else { Order::None },
        reentry: if lease { Reentry::Anywhere } else { Reentry::Client },
        shared: lease,
        permits: lease,
        detach: lease,
        force: lease,
        lock_delay: lease,
        wake: match options.algorithm {
            Algorithm::Version => WakeUp::Poll,
            Algorithm::Line | Algorithm::RowLock => WakeUp::Push,
        },
        drift_percent: options.drift_percent,
        drift_floor: Duration::from_millis(2),
        wall_witness: true,
        notes: match (options.algorithm, durable) {
            (Algorithm::Line, true) => &[CLOCK, REPLICA, OTHERS],
            (Algorithm::Line, false) => &[CLOCK, REPLICA, OTHERS, FLUSH],
            (Algorithm::Version, true) => &[CLOCK, REPLICA, ASKS],
            (Algorithm::Version, false) => &[CLOCK, REPLICA, ASKS, FLUSH],
            (Algorithm::RowLock, true) => &[LONG, REPLICA],
            (Algorithm::RowLock, false) => &[LONG, REPLICA, FLUSH],
        },
    }
}
