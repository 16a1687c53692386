//! SQLite's errors in our words.

use std::path::Path;

use distlock_core::{Error, FullName, Kind};
use rusqlite::ErrorCode;
use rustix::io::Errno;

/// What SQLite said, as an error of ours with what to do next.
pub(crate) fn trouble(file: &Path, e: rusqlite::Error) -> Error {
    let code = e.sqlite_error_code();
    let error = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::new(Kind::Unreachable, "another process keeps the database locked").with_hint(
                "look for a stopped process or an sqlite3 shell in a transaction (fuser)",
            )
        }
        Some(ErrorCode::NotADatabase) => {
            Error::new(Kind::Layout, "this file is not a database").with_hint("choose another path")
        }
        Some(ErrorCode::DatabaseCorrupt) => Error::new(Kind::Layout, "the database is damaged")
            .with_hint(
                "stop its users and move the file away; tokens then restart at the wall clock",
            ),
        Some(ErrorCode::ReadOnly) => Error::new(Kind::Refused, "the database cannot be written")
            .with_hint("check who owns the file, and whether its file system is read-only"),
        Some(ErrorCode::CannotOpen) if out_of_descriptors() => {
            Error::new(Kind::Store, "no file descriptor is left for the database")
                .with_hint("raise `ulimit -n`, or look for what keeps so many files open")
                .transient()
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            Error::new(Kind::Credentials, "the database cannot be opened")
                .with_hint("check who owns the file, its -wal and -shm files and their directory")
        }
        Some(ErrorCode::DiskFull) => {
            Error::new(Kind::Store, "the disk is full").with_hint("make room").transient()
        }
        _ => Error::new(Kind::Store, "SQLite failed"),
    };
    error.store(format!("sqlite:{}", file.display())).because(e)
}

/// SQLite does not say why it could not open a file; another one fails for the same reason.
fn out_of_descriptors() -> bool {
    std::fs::File::open("/dev/null").is_err_and(|e| {
        let code = e.raw_os_error();
        [Errno::MFILE, Errno::NFILE].iter().any(|n| code == Some(n.raw_os_error()))
    })
}

/// Whether trying again at once may help: another process is opening or recovering the same file.
pub(crate) fn passing(e: &rusqlite::Error) -> bool {
    matches!(
        e.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::SchemaChanged
        )
    )
}

/// Whether a value in a row cannot be decoded.
pub(crate) fn is_damaged(e: &rusqlite::Error) -> bool {
    matches!(e, rusqlite::Error::FromSqlConversionFailure(..))
}

/// The error of a lock whose row cannot be decoded.
pub(crate) fn damaged(lock: &FullName, e: rusqlite::Error) -> Error {
    Error::new(Kind::Layout, "the row of this lock cannot be decoded")
        .with_hint(
            "with the sqlite3 shell: UPDATE meta SET floor = max(floor, (SELECT max(hi) FROM \
             locks)); then DELETE the row from locks",
        )
        .lock(lock)
        .because(e)
}
