//! Keeping the write-ahead log small.
//!
//! SQLite starts the log over only when a writer comes just after everything was copied into the
//! database. Under a steady load of several processes that moment never comes: eight of them wrote
//! 20 MB a second. So a process that finds it too long stops the others for a moment and empties it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::database_file::beside;
use crate::schema::impatiently;

/// What is too long: four times what SQLite aims at.
const LONG: u64 = 16 << 20;
/// After how many transactions to look.
const LOOK: u32 = 64;
/// And after one that did not succeed, because somebody reads: each try stops the others. The
/// longer the log has become, the more a try may cost and the sooner the next one comes.
const LATER: u32 = 1024;
/// How long a try may stop the others while the log is just too long.
const HASTE: Duration = Duration::from_millis(20);

pub(crate) struct Log {
    path: PathBuf,
    wait: u32,
}

impl Log {
    pub(crate) fn of(file: &Path) -> Self {
        Self { path: beside(file, "-wal"), wait: LOOK }
    }

    /// To be called after each transaction.
    pub(crate) fn trim(&mut self, conn: &Connection) {
        self.wait -= 1;
        if self.wait > 0 {
            return;
        }
        self.wait = LOOK;
        let len = fs::metadata(&self.path).map_or(0, |m| m.len());
        let times = u32::try_from(len / LONG).unwrap_or(u32::MAX).min(16);
        if times > 0 {
            let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
            let checkpoint = || conn.query_row(sql, [], |r| r.get::<_, bool>(0));
            let busy = impatiently(HASTE * times, checkpoint);
            if !matches!(busy, Ok(false)) {
                tracing::debug!(?busy, len, "the log stays long for now");
                self.wait = (LATER / times).max(LOOK);
            }
        }
    }
}
