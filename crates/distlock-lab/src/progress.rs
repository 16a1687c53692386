//! What people see while the lab runs: one line on a terminal, a line a run elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A view of what goes on in all stores; clones of one store share a line.
#[derive(Clone)]
pub(crate) struct Progress {
    all: Arc<All>,
    mine: Arc<Mutex<Mine>>,
}

struct All {
    terminal: bool,
    done: AtomicU32,
    total: AtomicU32,
    grants: AtomicU32,
}

#[derive(Default)]
struct Mine {
    store: String,
    round: String,
}

impl Progress {
    /// Of a whole call of the lab.
    pub(crate) fn new(total: u32) -> Self {
        let all = All {
            terminal: std::io::stderr().is_terminal(),
            done: AtomicU32::new(0),
            total: AtomicU32::new(total),
            grants: AtomicU32::new(0),
        };
        Self { all: Arc::new(all), mine: Arc::default() }
    }

    /// The same for one store.
    pub(crate) fn of(&self, store: &str) -> Self {
        let mine = Mine { store: store.to_owned(), round: String::new() };
        Self { all: self.all.clone(), mine: Arc::new(Mutex::new(mine)) }
    }

    /// A run begins.
    pub(crate) fn begins(&self, round: &str) {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner).round = round.to_owned();
        self.show("…");
    }

    /// A fault is injected.
    pub(crate) fn fault(&self, what: &str) {
        self.show(what);
    }

    /// A lock was granted.
    pub(crate) fn grant(&self) {
        self.grants(1);
    }

    /// So many were.
    pub(crate) fn grants(&self, n: u32) {
        self.all.grants.fetch_add(n, Ordering::Relaxed);
    }

    fn show(&self, fault: &str) {
        if !self.all.terminal {
            return;
        }
        let mine = self.mine.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, total) =
            (self.all.done.load(Ordering::Relaxed), self.all.total.load(Ordering::Relaxed));
        let grants = self.all.grants.load(Ordering::Relaxed);
        let line = format!(
            "{} {done}/{total} {} {} · {fault} · {grants} grants so far",
            bar(done, total),
            mine.store,
            mine.round
        );
        let _ = write!(std::io::stderr(), "\r\x1b[K{line:.100}");
    }

    /// A run has ended: says so.
    pub(crate) fn ends(&self, line: &str) {
        let done = self.all.done.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.all.total.load(Ordering::Relaxed);
        let clear = if self.all.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{clear}[{done}/{total}] {line}");
    }
}

/// How much is done, drawn.
fn bar(done: u32, total: u32) -> String {
    const WIDTH: usize = 16;
    let full = done as usize * WIDTH / (total as usize).max(1);
    format!("{}{}", "█".repeat(full.min(WIDTH)), "░".repeat(WIDTH.saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_the_left() {
        assert_eq!(bar(0, 8), "░".repeat(16));
        assert_eq!(bar(2, 8), format!("{}{}", "█".repeat(4), "░".repeat(12)));
        assert_eq!(bar(8, 8), "█".repeat(16));
        assert_eq!(bar(0, 0), "░".repeat(16));
    }
}
