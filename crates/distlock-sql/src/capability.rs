//! What SQL stores promise alike.

use distlock_core::{Capability, Family, Fence, Order, Reentry, Survives, WakeUp};

/// A store at one SQL server: its locks are leases in rows (`lease`), or sessions of the server;
/// `durable` when the server puts every commit on disk before it answers.
#[must_use]
pub const fn capability(
    (store, url, scope): (&'static str, &'static str, &'static str),
    lease: bool,
    durable: bool,
) -> Capability {
    Capability {
        fence: if durable { Fence::Durable } else { Fence::Clocked },
        restart: match (lease, durable) {
            (false, _) => Survives::Ends,
            (true, true) => Survives::Yes,
            (true, false) => Survives::TwoHolders,
        },
        partition: Survives::Ends,
        order: Order::Fifo,
        reentry: if lease { Reentry::Anywhere } else { Reentry::Client },
        shared: lease,
        permits: lease,
        detach: lease,
        force: lease,
        lock_delay: lease,
        wake: WakeUp::Push,
        ..Capability::new(if lease { Family::Lease } else { Family::Session }, store, url, scope)
    }
}
