//! Which processes are alive: each keeps a file locked for as long as it lives.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use distlock_core::{Error, ReqId};
use rustix::fd::AsRawFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::errors::{if_there, trouble};
use crate::layout::exclusive;
use crate::lockfile::{make_dir, own};

/// How many dead sessions a new one clears away.
const CLEAR: usize = 64;

/// This client's sign of life, and where it can be told that it is first in the queue.
pub(crate) struct Session {
    pub(crate) id: String,
    dir: PathBuf,
    sessions: File,
    _live: File,
    out: UnixDatagram,
}

impl Session {
    /// Starts one and clears away some that are dead. From when its id is known to anybody, its
    /// file is locked: the directory is ours alone meanwhile.
    pub(crate) fn start(root: &Path) -> Result<Self, Error> {
        let dir = root.join("sessions");
        let say = |e| trouble("make a session in", &dir, e);
        let _alone = exclusive(root)?;
        // Empty directories are what a tmp-cleaner removes first.
        make_dir(&dir).map_err(say)?;
        let dead = |id: &String| matches!(is_alive(&dir, id), Ok(false));
        let known = ids(&dir).map_err(say)?;
        known.into_iter().filter(dead).take(CLEAR).for_each(|id| remove(&dir, &id));
        let id = ReqId::random().to_string()[..16].to_owned();
        let live = own().write(true).create_new(true).open(dir.join(format!("{id}.live")));
        let live = live.map_err(say)?;
        flock(&live, FlockOperation::NonBlockingLockExclusive).map_err(|e| say(e.into()))?;
        let sessions = File::open(&dir).map_err(say)?;
        let out = UnixDatagram::unbound().map_err(say)?;
        out.set_nonblocking(true).map_err(say)?;
        Ok(Self { id, sessions, _live: live, out, dir })
    }

    /// Whether the sign of life is still where others look for it.
    pub(crate) fn is_seen(&self) -> bool {
        !matches!(is_alive(&self.dir, &self.id), Ok(false))
    }

    /// Binds the socket others tell us on.
    pub(crate) fn listen(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::bind(self.socket(&self.id))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Tells another session something; false when that did not get there.
    pub(crate) fn tell(&self, session: &str, text: &str) -> bool {
        self.out.send_to(text.as_bytes(), self.socket(session)).is_ok()
    }

    /// Socket addresses end at 108 bytes, paths do not: through the open directory every one fits.
    fn socket(&self, session: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{session}.sock", self.sessions.as_raw_fd()).into()
    }

    /// Removes what the session left.
    pub(crate) fn end(&self) {
        remove(&self.dir, &self.id);
    }
}

/// Whether a session's process lives. An error is neither yes nor no.
///
/// The look takes a shared lock for a moment; nobody but the session itself, before its id was
/// known, ever wants the exclusive one, so it disturbs nobody.
pub(crate) fn is_alive(sessions: &Path, id: &str) -> io::Result<bool> {
    let file = own().read(true).open(sessions.join(format!("{id}.live")));
    let Some(file) = if_there(file)? else { return Ok(false) };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Whether any session lives.
pub(crate) fn any_alive(sessions: &Path) -> bool {
    ids(sessions).is_ok_and(|ids| ids.iter().any(|id| is_alive(sessions, id).unwrap_or(true)))
}

fn ids(sessions: &Path) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(sessions)? {
        if let Some(id) = entry?.file_name().to_str().and_then(|n| n.strip_suffix(".live")) {
            ids.push(id.to_owned());
        }
    }
    Ok(ids)
}

fn remove(sessions: &Path, id: &str) {
    // The socket first: without the live file nobody would find it again.
    let _ = std::fs::remove_file(sessions.join(format!("{id}.sock")));
    let _ = std::fs::remove_file(sessions.join(format!("{id}.live")));
}
