//! How processes tell each other: a datagram socket a session, in a directory beside the database.
//!
//! A datagram is only ever a hint, so none is acknowledged. What it also tells is life: the kernel
//! refuses one to a socket whose process is gone.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use distlock_core::{
    Effects, Error, Event, EventSink, FullName, Key, Kind, LossReason, ReqId, Wake, engine,
};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

/// At most this many notes in a datagram: with the longest names that is below [`MAX_DATAGRAM`].
const NOTES: usize = 32;
/// The room for one datagram.
const MAX_DATAGRAM: usize = 96 * 1024;
/// A reader that is alive empties a full socket within this.
const FULL: (u32, Duration) = (20, Duration::from_micros(250));

/// What a note says.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Turn,
    Contended,
    Revoked,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    what: What,
    lock: FullName,
    req: ReqId,
}

impl Note {
    fn wake(self) -> Wake {
        let key = Key { lock: self.lock, req: self.req };
        match self.what {
            What::Turn => Wake::Turn(key.req),
            What::Contended => Wake::Event(Event::Contended(key)),
            What::Revoked => Wake::Event(Event::Lost(key, LossReason::Revoked)),
        }
    }
}

/// This session's address and its way to the others.
pub(crate) struct PeerSocket {
    session: String,
    path: PathBuf,
    /// `None` once it is closed.
    home: RwLock<Option<Arc<Home>>>,
    out: UnixDatagram,
    sink: Arc<OnceLock<EventSink>>,
}

/// The directory as it was found, and our socket in it.
struct Home {
    dir: OwnedFd,
    inbox: UnixDatagram,
    /// Tells the reader that it was ended on purpose: an empty datagram looks the same.
    over: AtomicBool,
}

/// The sessions that were not reached, and whether they are gone for ever.
pub(crate) type Silent = HashMap<String, bool>;

impl PeerSocket {
    /// Binds a socket for a new session and starts the thread that reads it.
    pub(crate) fn open(dir: &Path) -> Result<Arc<Self>, Error> {
        let wrong = |e: io::Error| {
            let kind = match e.kind() {
                io::ErrorKind::PermissionDenied => Kind::Credentials,
                _ => Kind::Store,
            };
            Error::new(kind, format!("no socket can be made in {}", dir.display()))
                .with_hint("the directory must be this user's own; it may be removed when unused")
                .because(e)
        };
        let session = ReqId::random().to_string();
        let sink: Arc<OnceLock<EventSink>> = Arc::default();
        let home = Home::make(dir, &session, &sink).map_err(wrong)?;
        let out = UnixDatagram::unbound().map_err(wrong)?;
        out.set_nonblocking(true).map_err(wrong)?;
        home.clean(dir);
        let (path, home) = (dir.to_owned(), RwLock::new(Some(home)));
        Ok(Arc::new(Self { session, path, home, out, sink }))
    }

    /// An address that nobody can reach, for a client that only looks.
    pub(crate) fn none(dir: &Path) -> Result<Arc<Self>, Error> {
        let out = UnixDatagram::unbound()
            .map_err(|e| Error::new(Kind::Store, "no socket can be made").because(e))?;
        let (session, sink) = (ReqId::random().to_string(), Arc::default());
        Ok(Arc::new(Self { session, path: dir.to_owned(), home: RwLock::new(None), out, sink }))
    }

    /// Makes the address anew if somebody removed it: without it others take us for dead. Says
    /// whether that was needed.
    pub(crate) fn heal(&self) -> bool {
        if self.home().is_none_or(|home| home.is_there(&self.path, &self.session)) {
            return false;
        }
        let mut slot = self.home.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have done it, or closed it, meanwhile.
        match &*slot {
            Some(home) if !home.is_there(&self.path, &self.session) => {}
            _ => return slot.is_some(),
        }
        match Home::make(&self.path, &self.session, &self.sink) {
            Ok(home) => {
                tracing::warn!(path = %self.path.display(), "our socket was removed; made anew");
                slot.replace(home).into_iter().for_each(|old| old.end());
                // Peers that could not reach this process meanwhile have given up.
                self.sink.get().into_iter().for_each(|sink| sink(Wake::Everybody));
                true
            }
            Err(e) => {
                tracing::warn!(error = %e, "our socket was removed and cannot be made anew");
                false
            }
        }
    }

    fn home(&self) -> Option<Arc<Home>> {
        self.home.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where this session is told things: what a claim says in `via`.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Sets where wake-ups go.
    pub(crate) fn listen(&self, sink: EventSink) {
        let _ = self.sink.set(sink);
    }

    /// Tells everybody; answers with the promotions that reached nobody, and whether for ever.
    /// A peer that was not reached is not tried again in the same round.
    pub(crate) fn deliver(
        &self,
        effects: Vec<(FullName, Effects)>,
        silent: &mut Silent,
    ) -> Vec<(FullName, ReqId, bool)> {
        let mut letters: BTreeMap<String, Vec<Note>> = BTreeMap::new();
        for (lock, effects) in effects {
            let Effects { turns, contended, revoked } = effects;
            for (what, whom) in
                [(What::Turn, turns), (What::Contended, contended), (What::Revoked, revoked)]
            {
                for (req, via) in whom {
                    letters.entry(via).or_default().push(Note { what, lock: lock.clone(), req });
                }
            }
        }
        let mut unheard = Vec::new();
        for (via, mut notes) in letters {
            if via == self.session {
                if let Some(sink) = self.sink.get() {
                    notes.into_iter().for_each(|n| sink(n.wake()));
                }
                continue;
            }
            while !notes.is_empty() {
                let rest = notes.split_off(notes.len().min(NOTES));
                let gone = silent.get(&via).copied().or_else(|| self.send(&via, &notes).err());
                // A full socket is no proof of death: it keeps its place in the queue and is passed
                // over until it is heard of. Leaving it the claim would keep all others waiting for
                // that long, and then cost it its place.
                if let Some(gone) = gone {
                    silent.insert(via.clone(), gone);
                    let turns = notes.into_iter().filter(|n| n.what == What::Turn);
                    unheard.extend(turns.map(|n| (n.lock, n.req, gone)));
                }
                notes = rest;
            }
        }
        unheard
    }

    /// Ends the reader and takes the address away.
    pub(crate) fn close(&self) {
        let home = self.home.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(home) = home {
            let _ = rustix::fs::unlinkat(&home.dir, socket(&self.session), AtFlags::empty());
            home.end();
        }
    }

    /// Sends notes to a session. The error is whether its socket is dead: nobody reads it, and nobody
    /// ever will. Else somebody should, and does not now.
    fn send(&self, via: &str, notes: &[Note]) -> Result<(), bool> {
        // What is no session of ours is no path either.
        via.parse::<ReqId>().map_err(|_| false)?;
        let datagram = serde_json::to_vec(notes).map_err(|_| false)?;
        let (tries, nap) = FULL;
        for _ in 0..tries {
            let home = self.home().ok_or(false)?;
            match self.out.send_to(&datagram, within(&home.dir, &socket(via))) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::park_timeout(nap),
                // Not in a directory that is not the one any more.
                Err(e) if e.kind() == io::ErrorKind::NotFound && self.heal() => {}
                Err(e) if is_dead(&e) => return Err(true),
                Err(e) => {
                    tracing::warn!(error = %e, session = via, "a wake-up could not be sent");
                    return Err(false);
                }
            }
        }
        Err(false)
    }
}

impl Home {
    /// Binds a socket for a session and starts the thread that reads it.
    fn make(path: &Path, session: &str, sink: &Arc<OnceLock<EventSink>>) -> io::Result<Arc<Self>> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        // Between the making of a socket's name and its listening a dead one looks the same, so
        // it gets its real name, which others may clean up, only when it listens.
        let draft = format!("{session}.new");
        let inbox = UnixDatagram::bind(within(&dir, &draft))?;
        rustix::fs::renameat(&dir, &draft, &dir, socket(session))?;
        let home = Arc::new(Self { dir, inbox, over: AtomicBool::new(false) });
        let (reader, sink) = (home.clone(), sink.clone());
        engine::thread("distlock-post", move || listen(&reader, &sink))?;
        Ok(home)
    }

    /// Whether the directory at the path is this one, with our socket in it.
    fn is_there(&self, path: &Path, session: &str) -> bool {
        let here = rustix::fs::fstat(&self.dir).map(|s| (s.st_dev, s.st_ino));
        let there = rustix::fs::lstat(path).map(|s| (s.st_dev, s.st_ino));
        here.is_ok()
            && here == there
            && rustix::fs::statat(&self.dir, socket(session), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Ends the reader.
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        let _ = self.inbox.shutdown(Shutdown::Both);
    }

    /// Removes the sockets of sessions that ended without a word.
    fn clean(&self, dir: &Path) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|n| n.ends_with(".sock")) else { continue };
            let Ok(probe) = UnixDatagram::unbound() else { return };
            if probe.connect(within(&self.dir, name)).is_err_and(|e| is_dead(&e)) {
                let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
            }
        }
    }
}

impl Drop for PeerSocket {
    /// At once.
    fn drop(&mut self) {
        self.close();
    }
}

fn is_dead(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn socket(session: &str) -> String {
    format!("{session}.sock")
}

/// A name in the directory, by way of its descriptor: a socket's path has room for 108 bytes, and
/// the directory's own path may be longer.
fn within(dir: &OwnedFd, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()).into()
}

/// Reads until it is ended.
fn listen(home: &Home, sink: &OnceLock<EventSink>) {
    let mut datagram = vec![0; MAX_DATAGRAM];
    loop {
        match home.inbox.recv(&mut datagram) {
            _ if home.over.load(Ordering::Acquire) => return,
            Ok(n) => match serde_json::from_slice::<Vec<Note>>(&datagram[..n]) {
                Ok(notes) => {
                    if let Some(sink) = sink.get() {
                        notes.into_iter().for_each(|n| sink(n.wake()));
                    }
                }
                // Of a newer version, perhaps: something happened.
                Err(_) => sink.get().into_iter().for_each(|sink| sink(Wake::Everybody)),
            },
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                tracing::warn!(error = %e, "wake-ups are not heard any more");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::{Name, Namespace};

    fn turn(via: &str) -> Vec<(FullName, Effects)> {
        let lock = FullName { space: Namespace::default(), name: Name::new("x").unwrap() };
        let turns = vec![(ReqId::random(), via.to_owned())];
        vec![(lock, Effects { turns, ..Effects::default() })]
    }

    #[test]
    fn a_full_socket_is_deaf_and_a_closed_one_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let peers = PeerSocket::open(dir.path()).unwrap();
        let session = ReqId::random().to_string();
        let reader = UnixDatagram::bind(dir.path().join(socket(&session))).unwrap();
        let mut silent = Silent::new();
        let mut heard = 0;
        let unheard = loop {
            let unheard = peers.deliver(turn(&session), &mut silent);
            if !unheard.is_empty() {
                break unheard;
            }
            heard += 1;
        };
        assert!(heard > 0 && !unheard[0].2, "full is not dead");
        assert_eq!(silent.get(&session), Some(&false));
        drop(reader);
        let mut silent = Silent::new();
        assert!(peers.deliver(turn(&session), &mut silent)[0].2, "refused");
        assert_eq!(silent.get(&session), Some(&true));
        assert!(
            peers.deliver(turn(&ReqId::random().to_string()), &mut silent)[0].2,
            "no such file"
        );
        assert!(!peers.deliver(turn("../elsewhere"), &mut silent)[0].2, "not an address of ours");
    }

    #[test]
    fn the_longest_letter_fits() {
        let lock = FullName {
            space: Namespace::new("n".repeat(64)).unwrap(),
            name: Name::new("\u{1}".repeat(255)).unwrap(),
        };
        let note = || Note { what: What::Contended, lock: lock.clone(), req: ReqId::random() };
        let notes: Vec<Note> = (0..NOTES).map(|_| note()).collect();
        assert!(serde_json::to_vec(&notes).unwrap().len() < MAX_DATAGRAM);
    }
}
