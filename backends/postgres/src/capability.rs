//! What each of the PostgreSQL stores promises.

use std::time::Duration;

use distlock_core::{Capability, Order, WakeUp};

use crate::options::{Algorithm, PostgresOptions};

const CLOCK: &str = "Leases run on the server's wall clock: when somebody steps it forward, a lock \
                     can pass on before its holder knows; the fence still refuses the older one.";
const FAILOVER: &str = "A standby that takes over without synchronous replication may lack the \
                        latest grants: two holders are possible for up to a TTL, and tokens go on \
                        rising only if its clock is right.";
const CONNECTIONS: &str = "Three connections a process, however many locks: calls, renewals, and \
                           one that listens; up to three more while calls queue.";
const POOLER: &str = "Needs the database itself or a pool in session mode; a pool in transaction \
                      mode is found out and refused.";
const RETENTION: &str = "A lock's row goes a day after its last use: tokens then rise as long as the \
                         server's clock does not fall by more than that.";
const RACES: &str = "Every move is a race on one row, and a process whose waiter is the first in line \
                     reads it again every 20 to 250 ms: right for few clients, or for databases \
                     that only look like PostgreSQL.";
const VERSION_CONNECTIONS: &str = "Two connections a process, however many locks.";

const SESSIONS: &str = "Each lock that is held or waited for is a connection of its own: at most \
                        ?sessions= a process (32), one more is refused; one for everything \
                        else, and one that notices when the server goes.";
const COLLISION: &str = "A lock is a 64-bit number made of its name: two names of the same number \
                         would exclude each other, which is safe, and rarer than a broken disk.";
const LONG: &str = "A held lock is an open transaction: a long hold keeps the server from clearing \
                    away old rows.";
const SILENT: &str = "The server ends a session that is silent for the TTL, and with it the lock; \
                      from version 14 on. It counts that on its wall clock: when somebody steps it \
                      forward, a lock may end early, and its holder learns of it at its next \
                      renewal; the fence refuses it meanwhile.";
const SESSION_FAILOVER: &str = "A standby that takes over knows of no session: for up to a TTL the \
                                holder at the old primary may believe in its lock, and tokens go on \
                                rising only if the standby had the latest, or its clock is right.";

const FSYNC: &str = "The server does not keep commits through a crash of its machine (fsync or \
                     full_page_writes is off): the last grants and tokens may be forgotten, or \
                     everything.";

/// What a store promises under these options; `durable` when the server puts every commit on disk
/// before it answers.
#[must_use]
pub fn capability(options: &PostgresOptions, durable: bool) -> Capability {
    let (store, url) = match options.algorithm {
        Algorithm::Queue => ("postgres", "postgres://HOST/DATABASE"),
        Algorithm::Version => ("postgres (version)", "postgres://HOST/DATABASE?algorithm=version"),
        Algorithm::Advisory => {
            ("postgres (advisory)", "postgres://HOST/DATABASE?algorithm=advisory")
        }
        Algorithm::RowLock => {
            ("postgres (row-lock)", "postgres://HOST/DATABASE?algorithm=row-lock")
        }
    };
    // What is not durable has one more to say.
    let all: &[&str] = match options.algorithm {
        Algorithm::Queue => &[FSYNC, CLOCK, FAILOVER, RETENTION, CONNECTIONS, POOLER],
        Algorithm::Version => &[FSYNC, CLOCK, FAILOVER, RETENTION, RACES, VERSION_CONNECTIONS],
        Algorithm::Advisory => {
            &[FSYNC, SILENT, SESSIONS, COLLISION, SESSION_FAILOVER, RETENTION, POOLER]
        }
        Algorithm::RowLock => &[FSYNC, SILENT, SESSIONS, LONG, SESSION_FAILOVER, RETENTION, POOLER],
    };
    let notes = if durable { &all[1..] } else { all };
    let lease = matches!(options.algorithm, Algorithm::Queue | Algorithm::Version);
    let scope = "hosts that reach the database";
    Capability {
        order: match options.algorithm {
            Algorithm::RowLock => Order::None,
            _ => Order::Fifo,
        },
        wake: match options.algorithm {
            Algorithm::Queue | Algorithm::Advisory | Algorithm::RowLock => WakeUp::Push,
            Algorithm::Version => WakeUp::Poll,
        },
        drift_percent: options.drift_percent,
        drift_floor: Duration::from_millis(1),
        notes,
        ..distlock_sql::capability((store, url, scope), lease, durable)
    }
}

/// What the store promises at a durable server, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    let of = |algorithm| PostgresOptions { algorithm, ..PostgresOptions::default() };
    Algorithm::ALL.map(|algorithm| capability(&of(algorithm), true)).into()
}
