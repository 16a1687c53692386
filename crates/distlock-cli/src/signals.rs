//! Signals that reach this process, as a stream.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::{Failure, Status};

/// What a signal means here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// TERM, INT, HUP or QUIT: somebody wants this to end.
    End(Signal),
    /// A child changed.
    Child,
    /// We were continued: perhaps the terminal is ours now.
    Continued,
    /// Somebody wants this to stand still.
    Suspend,
}

/// The signals this process listens to.
pub(crate) struct Signals {
    end: [(Signal, Option<unix::Signal>); 4],
    child: unix::Signal,
    cont: unix::Signal,
    stop: unix::Signal,
}

impl Signals {
    /// Listens from now on. A signal that was ignored from the start, as under nohup(1), stays so,
    /// for the command too.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::open()
            .map_err(|e| Failure::new(Status::SYSTEM, format!("cannot listen to signals: {e}")))
    }

    fn open() -> io::Result<Self> {
        let ignored = ignored();
        let open = |s: Signal| -> io::Result<(Signal, Option<unix::Signal>)> {
            let kind = SignalKind::from_raw(s.as_raw());
            let heard = ignored & (1 << (s.as_raw() - 1)) == 0;
            Ok((s, heard.then(|| unix::signal(kind)).transpose()?))
        };
        let end =
            [open(Signal::TERM)?, open(Signal::INT)?, open(Signal::HUP)?, open(Signal::QUIT)?];
        let cont = unix::signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let stop = unix::signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        Ok(Self { end, child: unix::signal(SignalKind::child())?, cont, stop })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Dropping it loses no signal.
    pub(crate) async fn next(&mut self) -> Event {
        let [term, int, hup, quit] = &mut self.end;
        tokio::select! {
            biased;
            s = receive(term) => Event::End(s),
            s = receive(int) => Event::End(s),
            s = receive(hup) => Event::End(s),
            s = receive(quit) => Event::End(s),
            _ = self.child.recv() => Event::Child,
            _ = self.cont.recv() => Event::Continued,
            _ = self.stop.recv() => Event::Suspend,
        }
    }

    /// The next signal that wants this to end. `suspend` is called when one wants it to stand still.
    ///
    /// # Cancel safety
    /// Dropping it loses no signal.
    pub(crate) async fn end(&mut self, suspend: impl Fn()) -> Signal {
        loop {
            match self.next().await {
                Event::End(signal) => return signal,
                Event::Suspend => suspend(),
                Event::Child | Event::Continued => {}
            }
        }
    }
}

async fn receive((signal, stream): &mut (Signal, Option<unix::Signal>)) -> Signal {
    if let Some(stream) = stream
        && stream.recv().await.is_some()
    {
        return *signal;
    }
    std::future::pending().await
}

/// The mask of ignored signals. The kernel tells it in `/proc`; asking it by system call is not
/// possible without unsafe code.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0)
}
