//! Turns what the operating system says into our one error.

use std::io;
use std::path::Path;

use distlock_core::host::link;
use distlock_core::{Error, Kind};

/// An error about a path, with what to do next where that is known.
pub(crate) fn trouble(what: &str, path: &Path, e: io::Error) -> Error {
    let (at, path) = (path, path.display());
    match e.kind() {
        io::ErrorKind::PermissionDenied => {
            Error::new(Kind::Credentials, format!("cannot {what} {path}"))
                .with_hint("the directory must be writable by this user, who alone may use it")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(Kind::Store, format!("cannot {what} {path}"))
                .with_hint("choose a directory on a file system that can be written")
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Error::new(Kind::Usage, format!("cannot {what} {path}"))
                .with_hint("name a directory that nothing else uses; it is made when missing")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::new(Kind::Store, format!("cannot {what} {path}"))
                .transient()
                .with_hint("make room on that file system")
        }
        _ if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => return link(at),
        _ if e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            Error::new(Kind::Store, format!("cannot {what} {path}"))
                .transient()
                .with_hint("every held lock is an open file: raise `ulimit -n`")
        }
        _ => Error::new(Kind::Store, format!("cannot {what} {path}")),
    }
    .because(e)
}

/// The answer after [`close`](distlock_core::session::SessionStore::close).
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "this store was closed").with_hint("open it again")
}
