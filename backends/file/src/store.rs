//! The store itself, and the future of a lock call.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Poll;

use distlock_core::{
    Alive, Ask, Backend, Capability, Error, EventSink, Force, Forced, FullName, Human, Kind,
    LockInfo, Locked, LossReason, Patience, Query, Released, ReqId, SessionDriver, SessionStore,
    Store, StoreInfo, Token, Watcher, engine,
};
use tokio::sync::oneshot;

use crate::errors::closed;
use crate::file_name::Stem;
use crate::inspect::Looker;
use crate::pending::{Answer, AnswerReceiver, Heard, sender};
use crate::worker::{Cmd, LockCmd};

/// Locks kept by the kernel on the files of one directory.
///
/// Dropping it frees every lock held through it, as [`close`](SessionStore::close) does, soon
/// after and without waiting.
pub struct FileStore {
    pub(crate) site: String,
    pub(crate) capability: Capability,
    pub(crate) tx: Sender<Cmd>,
    pub(crate) looker: Looker,
}

impl FileStore {
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

    /// Patience is over: leaves the queue, unless the lock was granted at the last moment.
    async fn give_up(&self, undo: &Undo<'_>, receiver: &AnswerReceiver) -> Box<Answer> {
        let (stem, req) = (undo.stem.clone(), undo.req);
        if let Ok(status) = self.ask(|reply| Cmd::At(stem, LockCmd::GiveUp(req, reply))).await {
            return Box::new(Ok(Locked::Busy(status)));
        }
        // Granted: the answer is there.
        loop {
            if let Heard::Answer(answer) = poll_fn(|cx| receiver.poll(cx)).await {
                return answer;
            }
        }
    }

    /// Looking reads many files and needs nothing of the worker: a short-lived thread does it.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Looker) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let looker = self.looker.clone();
        engine::unblock(move || work(&looker)).await.map_err(|e| e.store(&self.site))
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
    /// The caller knows of it. Before that a drop is a cancel, and no `min_hold` applies.
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
            let _ = self.tx.send(Cmd::At(stem, LockCmd::Unlock { serial, linger, reply: None }));
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
            let _ = self.tx.send(Cmd::At(self.stem.clone(), LockCmd::Cancel(self.req)));
        }
    }
}

impl Store for FileStore {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(SessionDriver::new(self))
    }
}

impl SessionStore for FileStore {
    type Conn = FileConn;

    fn info(&self) -> StoreInfo<'_> {
        StoreInfo { capability: &self.capability, site: &self.site, clock: &self.looker.clock }
    }

    async fn lock(&self, ask: &Ask, seen: Watcher<'_>) -> Result<Locked<FileConn>, Error> {
        self.capability.allows(ask.mode)?;
        let until = match ask.patience {
            Patience::For(d) => Some(self.looker.clock.now().plus(d)),
            Patience::Never | Patience::Forever => None,
        };
        let mut undo = Undo { stem: Stem::of(&ask.lock), req: ask.req, tx: &self.tx, armed: true };
        let (sender, receiver) = sender();
        self.tx.send(Cmd::Lock { ask: ask.clone(), sender }).map_err(|_| closed())?;

        // In a box, and only where there is an end: most wait without, and a thousand may wait.
        let mut over = until.map(|at| Box::pin(self.looker.clock.sleep_until(at)));
        let mut hear = async || {
            poll_fn(|cx| match receiver.poll(cx) {
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
                None => break Box::pin(self.give_up(&undo, &receiver)).await,
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
        let alive = self.ask(|reply| Cmd::At(stem, LockCmd::Alive(serial, reply))).await;
        alive.unwrap_or(Alive::No(LossReason::Gone))
    }

    async fn unlock(&self, mut conn: FileConn) -> Result<Released, Error> {
        if let Alive::No(_) = self.alive(&mut conn).await {
            return Ok(Released::WasLost);
        }
        let (stem, serial) = (conn.stem.clone(), conn.serial);
        let cmd = |reply| LockCmd::Unlock { serial, linger: true, reply: Some(reply) };
        let answer = self.ask(|reply| Cmd::At(stem, cmd(reply)));
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
