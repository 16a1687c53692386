//! Writing and reading histories.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Clock, Error, Guard, Held, Lock, Locks, LossReason, Released};

use super::{Event, What};

/// Appends what happens to the requests of one process to a file.
pub struct Recorder {
    file: Arc<Mutex<File>>,
    process: String,
    count: u64,
    last: Option<Note>,
}

/// What happens to one request, written down as it happens. Clones speak of the same request.
#[derive(Clone)]
pub struct Note {
    file: Arc<Mutex<File>>,
    who: String,
    lock: String,
}

impl Note {
    /// Writes down what happens now.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn put(&self, what: What) {
        let (who, lock) = (self.who.clone(), self.lock.clone());
        let event = Event { at: Clock::system().now().as_nanos(), who, lock, what };
        let mut line = serde_json::to_vec(&event).expect("an event is JSON");
        line.push(b'\n');
        // One write per line: a killed process leaves whole lines.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("a history can be written");
    }

    /// The request, as the history calls it.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    fn until(held: &Held) -> u64 {
        Clock::system().now().plus(held.remaining()).as_nanos()
    }

    /// It was granted.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn granted(&self, held: &Held) {
        self.put(What::Granted { token: held.token().get(), until: Self::until(held) });
    }

    /// It was granted inside a hold of the same owner.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn entered(&self, held: &Held, outer: &Note) {
        let (token, until) = (held.token().get(), Self::until(held));
        self.put(What::Entered { token, until, outer: outer.who.clone() });
    }

    /// Looks whether it is valid and writes that down; whether it is.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn look(&self, held: &Held) -> bool {
        let until = Self::until(held);
        match held.check() {
            Ok(()) => self.put(What::Valid { until }),
            // Its guard has let go of it meanwhile, which is no loss.
            Err(lost) if lost.why == LossReason::Released => return false,
            Err(_) => {
                self.put(What::Lost);
                return false;
            }
        }
        true
    }

    /// Releases it and writes down how that went.
    ///
    /// # Errors
    /// As the release.
    ///
    /// # Panics
    /// When the history cannot be written.
    ///
    /// # Cancel safety
    /// As the release.
    pub async fn release(&self, guard: Guard) -> Result<Released, Error> {
        if self.look(&guard) {
            self.put(What::ReleaseSent);
        }
        let answer = guard.release().await;
        match answer {
            Ok(Released::Released) => self.put(What::Released),
            Ok(Released::WasLost) => self.put(What::Lost),
            Err(_) => {}
        }
        answer
    }
}

impl Recorder {
    /// Starts a history file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let process = std::process::id().to_string();
        let file = Arc::new(Mutex::new(File::create(path)?));
        Ok(Self { file, process, count: 0, last: None })
    }

    fn note(&self, who: String, lock: &str) -> Note {
        Note { file: self.file.clone(), who, lock: lock.to_owned() }
    }

    /// A new request for a lock of this name: writes down when it is asked for, which is now, and
    /// when it stands in line. The lock that is returned is to be awaited.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn ask(&mut self, lock: Lock, name: &str) -> (Lock, Note) {
        self.count += 1;
        let note = self.note(format!("{}-{}", self.process, self.count), name);
        let (waits, seen) = (note.clone(), Mutex::new(false));
        let lock = lock.on_wait(move |status| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if status.ahead.is_some() && !std::mem::replace(&mut *seen, true) {
                waits.put(What::Enqueued);
            }
        });
        note.put(What::Asked);
        (lock, note)
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
        let (asking, note) = self.ask(lock, name);
        let answer = asking.await;
        match &answer {
            Ok(guard) => note.granted(guard),
            Err(_) => note.put(What::GaveUp),
        }
        self.last = Some(note);
        answer
    }

    /// Releases a lock of the last [`Recorder::acquire`] and records how that went.
    ///
    /// # Errors
    /// As the release.
    ///
    /// # Panics
    /// When the history cannot be written, or nothing was acquired.
    ///
    /// # Cancel safety
    /// As the release.
    pub async fn release(&mut self, guard: Guard) -> Result<Released, Error> {
        self.last.as_ref().expect("an acquire before its release").release(guard).await
    }

    /// Writes down that another process is about to be killed.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn kills(&mut self, pid: u32) {
        self.note(format!("{pid}-"), "").put(What::Killed);
    }

    /// Ends the history in order.
    ///
    /// # Errors
    /// When the file cannot be written out.
    ///
    /// # Panics
    /// When the history cannot be written.
    pub fn end(&mut self) -> io::Result<()> {
        self.note(format!("{}-", self.process), "").put(What::End);
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
