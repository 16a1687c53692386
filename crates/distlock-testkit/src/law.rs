//! A law: what it is called, where it applies, and how it is put to the test.

use std::future::Future;
use std::pin::Pin;

use distlock_core::capability::{Capability, Expiry, Family, Order, WakeUp};

use crate::site::StoreUnderTest;

/// What a law may ask before it is listed for a store.
pub struct Traits {
    /// What the store promises.
    pub capability: &'static Capability,
    /// Other processes can reach it.
    pub processes: bool,
    /// It is the memory store, whose clock can be held and whose calls can be made to misbehave.
    pub memory: bool,
    /// A record can be deleted behind its back.
    pub lose: bool,
    /// All its data can be lost.
    pub wipe: bool,
    /// It can be restarted.
    pub restart: bool,
    /// Its connections can be cut.
    pub cut: bool,
    /// It can be reached through proxies.
    pub road: bool,
    /// Each of its moves is a question and then a write: without answers it does nothing at all.
    pub reads_first: bool,
    /// What its locks leave can be looked at.
    pub leaves: bool,
}

impl Traits {
    /// Whether waiters stand in a line that others can see.
    #[must_use]
    pub fn line(&self) -> bool {
        self.capability.order == Order::Fifo
    }

    /// Whether waiters are called up, so that a line costs nothing while nothing happens.
    #[must_use]
    pub fn calls_up(&self) -> bool {
        self.line() && self.capability.wake == WakeUp::Push
    }

    /// Whether the store itself counts a lease. Where the lock is a connection's, asking again shows
    /// that it lives, and counts from then.
    #[must_use]
    pub fn leases(&self) -> bool {
        self.expires() && self.capability.family != Family::Session
    }

    /// Whether each request, held or waiting, is a connection of its own: a crowd is then refused,
    /// and one that goes away is noticed at once.
    #[must_use]
    pub fn connection_each(&self) -> bool {
        self.expires() && self.capability.family == Family::Session
    }

    /// Whether a silent holder's lock ends by its TTL.
    #[must_use]
    pub fn expires(&self) -> bool {
        self.capability.expiry == Expiry::Ttl
    }
}

/// One law.
#[derive(Clone, Copy)]
pub struct Law {
    /// Its name, as the trial is called.
    pub name: &'static str,
    pub(crate) when: fn(&Traits) -> bool,
    pub(crate) alone: bool,
    /// Stays on the trial's own thread, so it need not be `Send`.
    pub(crate) run: for<'a> fn(&'a StoreUnderTest) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

impl Law {
    /// Whether it applies to a store.
    #[must_use]
    pub fn applies(&self, traits: &Traits) -> bool {
        (self.when)(traits)
    }

    pub(crate) const fn when(mut self, when: fn(&Traits) -> bool) -> Self {
        self.when = when;
        self
    }

    /// Measures, or loads the machine: no other law runs beside it.
    pub(crate) const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }
}

/// A law from its function.
macro_rules! law {
    ($module:ident :: $name:ident) => {
        $crate::law::Law {
            name: stringify!($name),
            when: |_| true,
            alone: false,
            run: |site| Box::pin($module::$name(site)),
        }
    };
}
pub(crate) use law;
