//! The store itself, and the future of a lock call.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;
use std::time::Duration;

use distlock_core::backend::{Ask, Released, Watcher};
use distlock_core::capability::Fence as Strength;
use distlock_core::host::{Boot, LocalFs};
use distlock_core::info::Query;
use distlock_core::lease::EventSink;
use distlock_core::session::{Alive, Locked, SessionStore};
use distlock_core::{
    Capability, Clock, Error, Force, Forced, FullName, Human, Kind, LockInfo, Patience, ReqId,
    Token, engine,
};
use tokio::sync::oneshot;

use crate::capability::CAPABILITY;
use crate::errors::{closed, trouble};
use crate::file_name::Stem;
use crate::inspect::Looker;
use crate::layout;
use crate::live_processes::any_alive;
use crate::pending::{Answer, Chair, Heard, seat};
use crate::tokens::Fence;
use crate::worker::{Cmd, Worker};

/// How a [`FileStore`] is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The clock `min_hold`, lock-delay and patience are counted on.
    pub clock: Clock,
    /// Lock files that were free for this long are removed; an hour unless said otherwise.
    pub retention: Duration,
    /// Whether this client only looks: it makes no directory.
    pub look_only: bool,
    /// Whether to use a directory although other users can write in it or above it. Links are not
    /// followed even then.
    pub trust_all: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        let retention = Duration::from_secs(3600);
        Self { clock: Clock::system(), retention, look_only: false, trust_all: false }
    }
}

/// Locks kept by the kernel on the files of one directory.
///
/// Dropping it frees every lock held through it, as [`close`](SessionStore::close) does, soon
/// after and without waiting.
pub struct FileStore {
    site: String,
    promise: Capability,
    tx: Sender<Cmd>,
    looker: Looker,
}

impl FileStore {
    /// Whether there is a store in a directory; a client that only looks needs one.
    #[must_use]
    pub fn exists(dir: impl AsRef<Path>) -> bool {
        layout::exists(dir.as_ref())
    }

    /// Opens a directory, and makes it when it is not there, unless the client only looks. Blocks for
    /// a few file operations.
    ///
    /// # Errors
    /// [`Kind::Refused`] when it is not on a local file system or other users can write in it,
    /// [`Kind::Layout`] when a newer
    /// version made it, [`Kind::Credentials`] when this user may not write there,
    /// [`Kind::Unreachable`] when there is none and the client only looks, and [`Kind::Store`] for
    /// any other trouble with it.
    pub fn open(dir: impl AsRef<Path>, options: FileOptions) -> Result<Self, Error> {
        let FileOptions { clock, retention, look_only, trust_all } = options;
        let dir = dir.as_ref();
        let dir = std::path::absolute(dir).map_err(|e| trouble("find", dir, e))?;
        LocalFs::of(&dir)?;
        if look_only && !layout::exists(&dir) {
            return Err(Error::new(
                Kind::Unreachable,
                format!("there are no locks in {}", dir.display()),
            )
            .with_hint("the first lock taken there makes the directory"));
        }
        let alone = layout::open(&dir, trust_all)?;
        let mut promise = CAPABILITY.clone();
        // Once more: what was made may be a mount point or a link.
        if LocalFs::of(&dir)?.volatile {
            promise.fence = Strength::Clocked;
        }
        let dir = dir.canonicalize().map_err(|e| trouble("find", &dir, e))?;
        let machine = Boot::here()?;
        let fence = Fence::open(&dir, &machine, || any_alive(&dir.join("sessions")))?;
        drop(alone);

        let (tx, commands) = channel();
        let looker = Looker { dir: dir.clone(), boot: machine.id.clone(), clock: clock.clone() };
        let worker = Worker::new(dir.clone(), machine.id, clock, fence, retention, tx.clone());
        engine::thread("distlock-file", move || worker.run(commands))
            .map_err(|e| trouble("start a thread for", &dir, e).transient())?;
        Ok(Self { site: format!("file:{}", dir.display()), promise, tx, looker })
    }

    /// What a file store promises on a disk, without opening one.
    #[must_use]
    pub fn promises() -> &'static Capability {
        &CAPABILITY
    }

    /// Looks at up to `at_most` lock files and removes those that were free for longer than the
    /// retention; answers how many. It happens by itself, in small steps, as new locks are made.
    ///
    /// # Errors
    /// [`Kind::Store`] when the directory cannot be read or written; [`Kind::Closed`] after close.
    ///
    /// # Cancel safety
    /// Dropping it does not stop what was begun, and nothing is left half done.
    pub async fn sweep(&self, at_most: usize) -> Result<usize, Error> {
        self.ask(|reply| Cmd::Sweep { at_most, reply }).await?
    }

    async fn ask<T>(&self, cmd: impl FnOnce(oneshot::Sender<T>) -> Cmd) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.tx.send(cmd(reply)).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())
    }

    /// Patience is over: leaves the line, unless the lock was granted in the very last moment.
    async fn give_up(&self, undo: &Undo<'_>, chair: &Chair) -> Box<Answer> {
        let (stem, req) = (undo.stem.clone(), undo.req);
        if let Ok(status) = self.ask(|reply| Cmd::GiveUp { stem, req, reply }).await {
            return Box::new(Ok(Locked::Busy(status)));
        }
        // Granted: the answer is there.
        loop {
            if let Heard::Answer(answer) = poll_fn(|cx| chair.poll(cx)).await {
                return answer;
            }
        }
    }

    /// Looking reads many files and needs nothing of the worker: a short-lived thread does it.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Looker) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (tx, rx) = oneshot::channel();
        let looker = self.looker.clone();
        let started = engine::thread("distlock-look", move || {
            let _ = tx.send(work(&looker));
        });
        started.map_err(|e| trouble("start a thread for", &self.looker.dir, e).transient())?;
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Store, "the look ended early")))
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        let _ = self.tx.send(Cmd::Close { reply: None });
    }
}

/// A held lock. Dropping it frees the lock, soon after and without waiting.
pub struct FileConn {
    stem: Stem,
    serial: u64,
    tx: Sender<Cmd>,
    /// Known to whoever asked. Before that a drop is a cancel, and no `min_hold` applies.
    told: bool,
    ended: bool,
}

impl FileConn {
    pub(crate) fn new(stem: Stem, serial: u64, tx: Sender<Cmd>) -> Self {
        Self { stem, serial, tx, told: false, ended: false }
    }

    /// Its end is seen to elsewhere.
    pub(crate) fn forget(mut self) {
        self.ended = true;
    }
}

impl Drop for FileConn {
    fn drop(&mut self) {
        if !self.ended {
            let (stem, serial, linger) = (self.stem.clone(), self.serial, self.told);
            let _ = self.tx.send(Cmd::Unlock { stem, serial, linger, reply: None });
        }
    }
}

/// Takes a request back when its future is dropped. Made before the request is sent.
struct Undo<'a> {
    stem: Stem,
    req: ReqId,
    tx: &'a Sender<Cmd>,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            let _ = self.tx.send(Cmd::Cancel { stem: self.stem.clone(), req: self.req });
        }
    }
}

impl SessionStore for FileStore {
    type Conn = FileConn;

    fn capability(&self) -> &Capability {
        &self.promise
    }

    fn site(&self) -> &str {
        &self.site
    }

    fn clock(&self) -> &Clock {
        &self.looker.clock
    }

    async fn lock(&self, ask: &Ask, seen: Watcher<'_>) -> Result<Locked<FileConn>, Error> {
        self.promise.allows(ask.mode)?;
        let until = match ask.patience {
            Patience::For(d) => Some(self.looker.clock.now().plus(d)),
            Patience::Never | Patience::Forever => None,
        };
        let mut undo = Undo { stem: Stem::of(&ask.lock), req: ask.req, tx: &self.tx, armed: true };
        let (seat, chair) = seat();
        self.tx.send(Cmd::Lock { ask: ask.clone(), seat }).map_err(|_| closed())?;

        // In a box, and only where there is an end: most wait without, and a thousand may wait.
        let mut over = until.map(|at| Box::pin(self.looker.clock.sleep_until(at)));
        let mut hear = async || {
            poll_fn(|cx| match chair.poll(cx) {
                Poll::Ready(heard) => Poll::Ready(Some(heard)),
                Poll::Pending => match &mut over {
                    Some(end) => end.as_mut().poll(cx).map(|()| None),
                    None => Poll::Pending,
                },
            })
            .await
        };
        let got = loop {
            match hear().await {
                Some(Heard::Answer(answer)) => break answer,
                Some(Heard::News(status)) => seen(&status),
                None => break Box::pin(self.give_up(&undo, &chair)).await,
            }
        };
        undo.armed = false;
        let mut locked = (*got).map_err(|e| e.lock(&ask.lock))?;
        if let Locked::Held { conn, .. } = &mut locked {
            conn.told = true;
        }
        Ok(locked)
    }

    async fn alive(&self, conn: &mut FileConn) -> Alive {
        let (stem, serial) = (conn.stem.clone(), conn.serial);
        match self.ask(|reply| Cmd::Alive { stem, serial, reply }).await {
            Ok(alive) => alive,
            Err(_) => Alive::No(distlock_core::LossReason::Gone),
        }
    }

    async fn unlock(&self, mut conn: FileConn) -> Result<Released, Error> {
        if let Alive::No(_) = self.alive(&mut conn).await {
            return Ok(Released::WasLost);
        }
        let (stem, serial, linger) = (conn.stem.clone(), conn.serial, true);
        let answer = self.ask(|reply| Cmd::Unlock { stem, serial, linger, reply: Some(reply) });
        // From the send on, which is the first thing the future does, the worker sees to it.
        conn.ended = true;
        // A store without a worker holds nothing any more.
        answer.await.unwrap_or(Ok(())).map(|()| Released::Released)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let query = query.clone();
        self.look(move |looker| looker.list(&query)).await
    }

    async fn force(&self, lock: &FullName, _: Option<Token>, _: Force) -> Result<Forced, Error> {
        let name = lock.clone();
        let holder = self.look(move |looker| Ok(looker.holder_pid(&name))).await?;
        let no = Error::new(Kind::Unsupported, "the kernel takes no lock from a living process");
        Err(match holder {
            Some((pid, age)) => no.with_hint(format!(
                "end process {pid}, which has held it for {}; that frees it at once",
                Human(age)
            )),
            None => no.with_hint("nobody holds it now"),
        }
        .lock(lock))
    }

    /// The kernel has no news: a lock of this store ends with its process, or by its file being
    /// removed, which [`alive`](SessionStore::alive) sees.
    fn listen(&self, _: EventSink) {}

    async fn close(&self) {
        let _ = self.ask(|reply| Cmd::Close { reply: Some(reply) }).await;
    }
}
