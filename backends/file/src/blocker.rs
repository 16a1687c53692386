//! The thread that waits inside `flock` for the first in the queue.
//!
//! A blocked `flock` can be ended only by a signal, and a library has no business with those. So a
//! wait nobody wants any more is left alone: when the kernel gives the lock after all, the thread
//! lets go of it at once, whatever keeps the worker busy just then.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use distlock_core::engine;

use crate::file_name::Stem;
use crate::lockfile::LockFile;
use crate::worker::{Cmd, LockCmd};

/// One thread for one name. It ends when this is dropped and the kernel has answered.
pub(crate) struct Blocker {
    orders: Sender<()>,
    /// Somebody would use the lock if it came now.
    wanted: Arc<AtomicBool>,
    /// An order is out and not answered by [`LockCmd::Got`].
    pub(crate) busy: bool,
}

impl Blocker {
    pub(crate) fn start(stem: Stem, path: PathBuf, worker: Sender<Cmd>) -> io::Result<Self> {
        let (orders, ordered) = channel();
        let wanted = Arc::new(AtomicBool::new(true));
        let use_for_it = wanted.clone();
        engine::thread("distlock-flock", move || {
            for () in ordered {
                let got = LockFile::wait(&path).map(Some);
                let got = got.map(|file| file.filter(|_| use_for_it.load(Ordering::Acquire)));
                // With nobody left to hear it the lock goes with the message.
                if worker.send(Cmd::At(stem.clone(), LockCmd::Got(got))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, wanted, busy: false })
    }

    /// Asks for the lock, unless that is under way.
    pub(crate) fn want(&mut self) {
        self.wanted.store(true, Ordering::Release);
        if !self.busy {
            self.busy = self.orders.send(()).is_ok();
        }
    }

    /// Nobody would use it any more.
    pub(crate) fn no_use(&self) {
        self.wanted.store(false, Ordering::Release);
    }
}
