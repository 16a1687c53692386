//! Writing and reading histories.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Clock, Error, Guard, Lock, Locks, Released};

use super::{Event, What};

/// Appends what happens to the requests of one process to a file.
pub struct Recorder {
    file: Arc<Mutex<File>>,
    clock: Clock,
    process: String,
    count: u64,
    held: String,
}

fn put(file: &Mutex<File>, clock: &Clock, who: &str, lock: &str, what: What) {
    let (who, lock) = (who.to_owned(), lock.to_owned());
    let event = Event { at: clock.now().as_nanos(), who, lock, what };
    let mut line = serde_json::to_vec(&event).expect("an event is JSON");
    line.push(b'\n');
    // One write per line: a killed process leaves whole lines.
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    file.write_all(&line).expect("a history can be written");
}

impl Recorder {
    /// Starts a history file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let process = std::process::id().to_string();
        let file = Arc::new(Mutex::new(File::create(path)?));
        Ok(Self { file, clock: Clock::system(), process, count: 0, held: String::new() })
    }

    fn put(&self, lock: &str, what: What) {
        put(&self.file, &self.clock, &self.held, lock, what);
    }

    fn until(&self, guard: &Guard) -> u64 {
        self.clock.now().plus(guard.remaining()).as_nanos()
    }

    /// Acquires a lock and records how that went.
    ///
    /// # Errors
    /// As the acquire.
    ///
    /// # Panics
    /// When the history cannot be written.
    ///
    /// # Cancel safety
    /// As the acquire; the history then has a request without an end.
    pub async fn acquire(&mut self, locks: &Locks, name: &str) -> Result<Guard, Error> {
        self.acquire_lock(locks.lock(name), name).await
    }

    /// Like [`Recorder::acquire`], for a lock of this name that was given its TTL and the like.
    ///
    /// # Errors
    /// As the acquire.
    ///
    /// # Panics
    /// When the history cannot be written.
    ///
    /// # Cancel safety
    /// As the acquire; the history then has a request without an end.
    pub async fn acquire_lock(&mut self, lock: Lock, name: &str) -> Result<Guard, Error> {
        self.count += 1;
        self.held = format!("{}-{}", self.process, self.count);
        let (file, clock, who) = (self.file.clone(), self.clock.clone(), self.held.clone());
        let shown = name.to_owned();
        let seen = Mutex::new(false);
        let asking = lock.on_wait(move |standing| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if standing.ahead.is_some() && !std::mem::replace(&mut *seen, true) {
                put(&file, &clock, &who, &shown, What::Enqueued);
            }
        });
        self.put(name, What::Asked);
        match asking.await {
            Ok(guard) => {
                let until = self.until(&guard);
                self.put(name, What::Granted { token: guard.token().get(), until });
                Ok(guard)
            }
            Err(e) => {
                self.put(name, What::GaveUp);
                Err(e)
            }
        }
    }

    /// Releases a lock of the last [`Recorder::acquire`] and records how that went.
    ///
    /// # Errors
    /// As the release.
    ///
    /// # Panics
    /// When the history cannot be written.
    ///
    /// # Cancel safety
    /// As the release.
    pub async fn release(&mut self, guard: Guard) -> Result<Released, Error> {
        let name = guard.lock().name.to_string();
        let until = self.until(&guard);
        match guard.check() {
            Ok(()) => {
                self.put(&name, What::Valid { until });
                self.put(&name, What::ReleaseSent);
            }
            Err(_) => self.put(&name, What::Lost),
        }
        guard.release().await
    }

    /// Writes down that another process is about to be killed.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn kills(&mut self, pid: u32) {
        put(&self.file, &self.clock, &format!("{pid}-"), "", What::Killed);
    }

    /// Ends the history in order.
    ///
    /// # Errors
    /// When the file cannot be written out.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn end(&mut self) -> io::Result<()> {
        self.held = format!("{}-", self.process);
        self.put("", What::End);
        self.file.lock().unwrap_or_else(PoisonError::into_inner).sync_all()
    }
}

/// Reads every history in a directory.
///
/// # Errors
/// When the directory or a file cannot be read, or a line is not an event. A last line without an
/// end, of a process that was killed, is left out.
pub fn read(dir: &Path) -> io::Result<Vec<Event>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let text = fs::read_to_string(entry?.path())?;
        for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            all.push(serde_json::from_str(line)?);
        }
    }
    Ok(all)
}
