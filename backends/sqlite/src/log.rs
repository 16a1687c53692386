//! Keeping the write-ahead log small.
//!
//! SQLite starts the log over only when a writer comes just after everything was copied into the
//! database. Under a steady load of several processes that moment never comes: eight of them wrote
//! 20 MB a second. So whoever finds it too long stops the others for a moment and empties it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::Connection;

/// What is too long: four times what SQLite aims at.
const LONG: u64 = 16 << 20;
/// After how many transactions to look.
const LOOK: u32 = 64;
/// And after one that did not succeed, because somebody reads: each try stops the others. The
/// longer the log has become, the more a try may cost and the sooner the next one comes.
const LATER: u32 = 1024;
/// How long a try may stop the others while the log is just too long.
const HASTE_MS: u32 = 20;

pub(crate) struct Log {
    path: PathBuf,
    hasty: Arc<AtomicU32>,
    wait: u32,
}

impl Log {
    pub(crate) fn of(file: &Path) -> Self {
        let mut path = file.to_owned().into_os_string();
        path.push("-wal");
        Self { path: path.into(), hasty: Arc::default(), wait: LOOK }
    }

    /// Tells the connection's busy handler to give up after so many milliseconds; 0: in its own time.
    pub(crate) fn hasty(&self) -> &Arc<AtomicU32> {
        &self.hasty
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
            self.hasty.store(HASTE_MS * times, Ordering::Relaxed);
            let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
            let busy = conn.query_row(sql, [], |r| r.get::<_, bool>(0));
            self.hasty.store(0, Ordering::Relaxed);
            if !matches!(busy, Ok(false)) {
                tracing::debug!(?busy, len, "the log stays long for now");
                self.wait = (LATER / times).max(LOOK);
            }
        }
    }
}
