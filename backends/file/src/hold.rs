//! Grant and release: what happens while the kernel's lock is ours.

use distlock_core::{Error, Kind, Locked, Token, TokenRange};
use tokio::sync::oneshot;

use crate::errors::trouble;
use crate::lockfile::{Content, LockFile};
use crate::queue::{self, Ticket};
use crate::record::{HoldRecord, Phase, Record, micros};
use crate::store::FileConn;
use crate::tokens::Bounds;
use crate::worker::{Spot, Waiter, Worker};

/// More tokens than this are never given at once: tokens must not run ahead of the clock.
const BLOCK: u32 = 1 << 20;

/// A lock that is held through a [`FileConn`].
pub(crate) struct Held {
    pub(crate) file: LockFile,
    pub(crate) record: Record,
    pub(crate) serial: u64,
}

/// A lock that is ours and may be granted now.
pub(crate) struct Ready {
    file: LockFile,
    record: Record,
}

impl Worker {
    /// Reads what the last holder left. `None` when nobody may have the lock yet: then it stays
    /// ours, and the worker comes back to it in time.
    pub(crate) fn consider(
        &mut self,
        spot: &mut Spot,
        file: LockFile,
    ) -> Result<Option<Ready>, Error> {
        let content = file.read().map_err(|e| trouble("read", &spot.path, e))?;
        let mut record = match content {
            Content::Known(record) => record,
            Content::New => {
                Record::new(spot.lock.clone(), self.tokens.refresh()?.floor, &self.boot)
            }
            Content::Torn => {
                let Bounds { floor, ceiling } = self.tokens.refresh()?;
                Record::new(spot.lock.clone(), floor.max(ceiling), &self.boot)
            }
        };
        if record.lock != spot.lock {
            return Err(Error::new(
                Kind::Layout,
                format!("{} belongs to the lock {:?}", spot.path.display(), record.lock.name),
            )
            .with_hint("two long names met in one hash: rename one of them"));
        }
        let now = self.now();
        let floor = if record.boot == self.boot { 0 } else { self.tokens.refresh()?.floor };
        if let Some(dead) = record.take_over(now, &self.boot, floor) {
            tracing::warn!(lock = %spot.lock, pid = dead.pid, token = %dead.token,
                "its holder ended without giving the lock back");
            if record.not_before > now {
                file.write(&record).map_err(|e| trouble("write", &spot.path, e))?;
            }
        }
        if record.not_before > now {
            self.come_back(spot, record.not_before);
            spot.ours = Some(file);
            return Ok(None);
        }
        Ok(Some(Ready { file, record }))
    }

    /// Grants to one waiter: the token is written, and the fence knows of it, before it is told.
    pub(crate) fn grant(
        &mut self,
        spot: &mut Spot,
        ready: Ready,
        ticket: Option<&Ticket>,
        waiter: Waiter,
        behind: usize,
    ) {
        let Waiter { ask, sender } = waiter;
        let granted = self.write_grant(spot, ready, &ask);
        // Only now: while the grant is not written, the ticket keeps others from barging in.
        if let Some(ticket) = ticket {
            queue::leave(&spot.line, ticket);
        }
        let answer = granted.map(|(held, tokens)| {
            let conn = FileConn::new(spot.stem.clone(), held.serial, self.tx.clone());
            spot.held = Some(held);
            let waiters = u32::try_from(behind).unwrap_or(u32::MAX);
            Locked::Held { conn, sent: None, tokens, waiters }
        });
        if let Err(Ok(Locked::Held { conn, .. })) = sender.answer(answer) {
            // The caller has gone. It never held the lock, so no min_hold applies.
            conn.forget();
            if let Some(held) = spot.held.take() {
                spot.ours = self.let_go(held, false).ok();
            }
        }
    }

    fn write_grant(
        &mut self,
        spot: &Spot,
        ready: Ready,
        ask: &distlock_core::backend::Ask,
    ) -> Result<(Held, TokenRange), Error> {
        let Ready { file, mut record } = ready;
        let first = Token::new(self.clock.wall_micros().max(record.hi.saturating_add(1)).max(1))?;
        let len = ask.block.min(std::num::NonZeroU32::new(BLOCK).unwrap_or(ask.block));
        let tokens = TokenRange::new(first, len)?;
        record.hi = first.get() + u64::from(len.get()) - 1;
        self.tokens.allow(record.hi)?;
        let now = self.now();
        record.touched = now;
        record.not_before = 0;
        record.hold = Some(HoldRecord {
            req: ask.req,
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            token: first,
            pid: std::process::id(),
            session: self.session()?.id.clone(),
            granted: now,
            min_hold: micros(ask.min_hold),
            lock_delay: micros(ask.lock_delay),
            phase: Phase::Held,
        });
        file.write(&record).map_err(|e| trouble("write", &spot.path, e))?;
        self.serial += 1;
        Ok((Held { file, record, serial: self.serial }, tokens))
    }

    /// Writes that a hold has ended. The kernel's lock is still ours afterwards.
    pub(crate) fn let_go(&mut self, held: Held, linger: bool) -> Result<LockFile, Error> {
        let Held { file, mut record, .. } = held;
        record.release(self.now(), linger);
        match file.write(&record) {
            Ok(()) => Ok(file),
            // Freed all the same, by the drop of the file; the next takes it for a crash.
            Err(e) => Err(Error::new(Kind::Store, "the lock is free, but not marked as released")
                .applied()
                .because(e)),
        }
    }

    pub(crate) fn unlock(
        &mut self,
        spot: &mut Spot,
        serial: u64,
        linger: bool,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let mut outcome = Ok(());
        if let Some(held) = spot.held.take_if(|h| h.serial == serial) {
            match self.let_go(held, linger) {
                // One of ours may be next: then the lock passes without leaving this process.
                Ok(file) if !spot.waiters.is_empty() => spot.ours = Some(file),
                Ok(file) => drop(file),
                Err(e) => outcome = Err(e),
            }
        }
        if let Some(reply) = reply {
            let _ = reply.send(outcome);
        }
        self.settle(spot);
    }
}
