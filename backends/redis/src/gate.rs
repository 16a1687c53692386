//! The look at the quarantine that counts: at the very connection that carries a request.
//!
//! A request may wait between an earlier look and its departure, and the server may be another one
//! by then, or have been started anew.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::Clock;

use crate::call::Call;
use crate::link::Link;

/// One request on its way to wherever it is led.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Option<(Duration, String)>>);

impl Gate {
    /// What to send over this connection: what may grant, or a look, which grants nothing.
    pub(crate) fn pick(
        &self,
        link: &Link,
        clock: &Clock,
        may_grant: impl FnOnce() -> Call,
        look: impl FnOnce() -> Call,
    ) -> Call {
        let quarantine = link.quarantined(clock);
        let call = if quarantine.is_none() { may_grant() } else { look() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = quarantine;
        call
    }

    /// Whether only a look was sent: how long nothing is granted yet, and why.
    pub(crate) fn closed(self) -> Option<(Duration, String)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
