//! What each of the mysql stores promises.

use std::time::Duration;

use distlock_core::{Capability, Mutex, Order, WakeUp};

use crate::options::{Algorithm, MysqlOptions};
use crate::server_variables::Settings;

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
        Algorithm::Queue => ("mysql", "mysql://HOST/DATABASE"),
        Algorithm::Version => ("mysql (version)", "mysql://HOST/DATABASE?algorithm=version"),
        Algorithm::RowLock => ("mysql (row-lock)", "mysql://HOST/DATABASE?algorithm=row-lock"),
    };
    let shared =
        distlock_sql::capability((store, url, "hosts that reach the server"), lease, durable);
    Capability {
        ttl_step: Duration::from_micros(1),
        order: if lease { Order::Fifo } else { Order::None },
        wake: match options.algorithm {
            Algorithm::Version => WakeUp::Poll,
            Algorithm::Queue | Algorithm::RowLock => WakeUp::Push,
        },
        drift_percent: options.drift_percent,
        notes: notes(options.algorithm, if durable { &[] } else { &[FLUSH] }),
        ..shared
    }
}

/// What the store promises at a durable server, in each of its algorithms.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    let kinds = [Algorithm::Queue, Algorithm::Version, Algorithm::RowLock];
    kinds
        .map(|algorithm| capability(&MysqlOptions { algorithm, ..MysqlOptions::default() }, true))
        .into()
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
        Algorithm::Queue => &[CLOCK, REPLICA, OTHERS],
        Algorithm::Version => &[CLOCK, REPLICA, ASKS],
        Algorithm::RowLock => &[LONG, REPLICA],
    };
    let all: Vec<_> = usual.iter().chain(more).copied().collect();
    let mut made = MADE.lock();
    if let Some(same) = made.iter().find(|notes| ***notes == *all) {
        return same;
    }
    let notes: &'static [_] = Vec::leak(all);
    made.push(notes);
    notes
}
