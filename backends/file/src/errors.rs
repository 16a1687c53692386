//! Turns what the operating system says into our one error.

use std::io;
use std::path::Path;

use distlock_core::host::link;
use distlock_core::{Error, Kind};
use rustix::io::Errno;

/// An error about a path, with what to do next where that is known.
pub(crate) fn trouble(what: &str, path: &Path, e: io::Error) -> Error {
    let fault = |kind| Error::new(kind, format!("cannot {what} {}", path.display()));
    let is = |code: Errno| e.raw_os_error() == Some(code.raw_os_error());
    match e.kind() {
        io::ErrorKind::PermissionDenied => fault(Kind::Credentials)
            .with_hint("the directory must be writable by this user, who alone may use it"),
        io::ErrorKind::ReadOnlyFilesystem => {
            fault(Kind::Store).with_hint("choose a directory on a file system that can be written")
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => fault(Kind::Usage)
            .with_hint("name a directory that nothing else uses; it is made when missing"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            fault(Kind::Store).transient().with_hint("make room on that file system")
        }
        _ if is(Errno::LOOP) => return link(path),
        _ if is(Errno::MFILE) => fault(Kind::Store)
            .transient()
            .with_hint("every held lock is an open file: raise `ulimit -n`"),
        _ => fault(Kind::Store),
    }
    .because(e)
}

/// The result of an operation on a path, `None` where nothing is there.
pub(crate) fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The answer after [`close`](distlock_core::session::SessionStore::close).
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "this store was closed").with_hint("open it again")
}
