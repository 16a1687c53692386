//! An entry of this client.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use distlock_core::{Ask, BootInstant, Label, Lease, Mode, Mutex, Owner, Token};
use tokio::sync::watch;

use crate::{read_queue::Seen, session::Session};

/// An entry of this client's own.
#[derive(Clone)]
pub struct OwnEntry(pub(crate) Arc<Own>);

pub(crate) struct Own {
    pub(crate) session: Arc<Session>,
    /// Its whole path, and where in it the name begins.
    pub(crate) path: String,
    name: usize,
    pub(crate) token: Token,
    pub(crate) owner: Owner,
    pub(crate) label: Label,
    pub(crate) mode: Mode,
    pub(crate) tokens: NonZeroU32,
    /// When it was asked for.
    pub(crate) made: BootInstant,
    state: AtomicU8,
    /// All entries ahead, or that were ahead, are of this session.
    clear: AtomicBool,
    leaving: AtomicBool,
    /// Until when its client was told to believe in it.
    until: AtomicU64,
    seen: Mutex<Option<Box<Seen>>>,
    /// Of a call to this entry, made together with the leave of the entry ahead: true once proven.
    call: Mutex<Option<watch::Receiver<bool>>>,
}

/// Calls the next entry while the one ahead leaves. Dropped before it is [`done`](Caller::done), the
/// call was none: the next entry looks for itself.
pub(crate) struct Caller(watch::Sender<bool>);

impl Caller {
    /// The called entry was there when the one ahead left.
    pub(crate) fn done(self) {
        self.0.send_replace(true);
    }
}

/// The states of an entry.
const WAITS: u8 = 0;
const HOLDS: u8 = 1;
const WATCHED: u8 = 2;

impl OwnEntry {
    pub(crate) fn new(
        session: &Arc<Session>,
        parent: &str,
        name: &str,
        token: Token,
        ask: &Ask,
        made: BootInstant,
    ) -> Self {
        Self(Arc::new(Own {
            session: session.clone(),
            path: format!("{parent}/{name}"),
            name: parent.len() + 1,
            token,
            owner: ask.owner.clone(),
            label: ask.label.clone(),
            mode: ask.mode,
            tokens: ask.block,
            made,
            state: AtomicU8::new(WAITS),
            clear: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            until: AtomicU64::new(0),
            seen: Mutex::default(),
            call: Mutex::default(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        self.0.path.get(self.0.name..).unwrap_or_default()
    }

    pub(crate) fn parent(&self) -> &str {
        self.0.path.get(..self.0.name - 1).unwrap_or_default()
    }

    /// All entries ahead are of its session. That stays so: new entries are behind.
    pub(crate) fn clear(&self) {
        self.0.clear.store(true, Ordering::Release);
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.0.clear.load(Ordering::Acquire)
    }

    pub(crate) fn waits(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == WAITS
    }

    /// The entry ahead leaves, and proves this one with that.
    pub(crate) fn call(&self) -> Caller {
        let (tx, rx) = watch::channel(false);
        *self.0.call.lock() = Some(rx);
        Caller(tx)
    }

    /// Whether it was called to its turn, once that is known.
    pub(crate) async fn is_called(&self) -> bool {
        let call = self.0.call.lock().clone();
        let Some(mut call) = call else { return false };
        call.wait_for(|proven| *proven).await.is_ok()
    }

    /// It holds the lock, for as long as this lease.
    pub(crate) fn hold(&self, lease: &Lease) {
        self.believe(lease);
        let _ = self.swap(WAITS, HOLDS);
    }

    /// Its client is told of this lease.
    pub(crate) fn believe(&self, lease: &Lease) {
        self.0.until.store(lease.until().boot.as_nanos(), Ordering::Release);
    }

    /// Whether its client cannot believe in it any more: a hold that ended stays ended, though its
    /// session goes on.
    pub(crate) fn has_ended(&self, now: BootInstant) -> bool {
        self.0.until.load(Ordering::Acquire) <= now.as_nanos()
    }

    /// Whether it is to be watched: true once.
    pub(crate) fn to_watch(&self) -> bool {
        self.swap(HOLDS, WATCHED)
    }

    pub(crate) fn watch_again(&self) {
        let _ = self.swap(WATCHED, HOLDS);
    }

    fn swap(&self, from: u8, to: u8) -> bool {
        self.0.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn seen(&self) -> Option<Seen> {
        self.0.seen.lock().as_deref().cloned()
    }

    pub(crate) fn saw(&self, line: Seen) {
        *self.0.seen.lock() = Some(Box::new(line));
    }

    /// It is about to leave; true when it was before.
    pub(crate) fn leaving(&self) -> bool {
        self.0.leaving.swap(true, Ordering::AcqRel)
    }
}
