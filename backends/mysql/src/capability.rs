//! What each of the mysql stores promises.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::Ttl;
use distlock_core::capability::{
    Capability, Expiry, Family, Fence, Order, Reentry, Survives, WakeUp,
};

use crate::options::{Algorithm, MysqlOptions};
use crate::settings::Settings;

const CLOCK: &str = "Leases run on the server's wall clock: when somebody steps it forward, a lock \
                     can pass on before its holder knows; the fence still refuses the older one.";
const REPLICA: &str = "One primary keeps the locks: after a failover to a replica that lacks the \
                       latest commits two holders are possible for up to a TTL, unless replication \
                       is semi-synchronous (AFTER_SYNC).";
const FLUSH: &str = "The server does not put every commit on disk before it answers: a crash of its \
                     machine may forget the last grants and tokens.";
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
        notes: notes(options.algorithm, if durable { &[] } else { &[FLUSH] }),
    }
}

/// What a store promises at a server that is set so: `durable` where nothing is lacking, and a note for
/// each setting that is.
pub(crate) fn promised(options: &MysqlOptions, settings: &Settings) -> Capability {
    let lacks = settings.lacks();
    let durable = lacks.is_empty();
    let said: Vec<_> = lacks.into_iter().chain(settings.warns()).collect();
    Capability { notes: notes(options.algorithm, &said), ..capability(options, durable) }
}

/// The notes of an algorithm and more. They live as long as the program: each set of them is made once.
fn notes(algorithm: Algorithm, more: &[&'static str]) -> &'static [&'static str] {
    static MADE: Mutex<Vec<&'static [&'static str]>> = Mutex::new(Vec::new());
    let usual: &[&'static str] = match algorithm {
        Algorithm::Line => &[CLOCK, REPLICA, OTHERS],
        Algorithm::Version => &[CLOCK, REPLICA, ASKS],
        Algorithm::RowLock => &[LONG, REPLICA],
    };
    let all: Vec<_> = usual.iter().chain(more).copied().collect();
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = made.iter().find(|notes| ***notes == *all) {
        return same;
    }
    let notes: &'static [_] = Vec::leak(all);
    made.push(notes);
    notes
}
