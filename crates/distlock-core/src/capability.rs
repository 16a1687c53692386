//! What a store promises, in code: docs and command print it from here, the laws test it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::{Clock, ClockReading, Error, Kind, Lease, Mode, Ttl};

/// How far a store's tokens can be trusted to rise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// No ordered token: a resource cannot refuse an older holder.
    Unordered,
    /// Rising while the store keeps its data; after a loss of data, as long as its clock is right.
    Clocked,
    /// Rising always: kept on stable storage before the grant is told.
    Durable,
}

impl Fence {
    /// The word used in URLs (`?require=durable`) and tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Fence::Unordered => "unordered",
            Fence::Clocked => "clocked",
            Fence::Durable => "durable",
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for Fence {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        let all = [Fence::Unordered, Fence::Clocked, Fence::Durable];
        all.into_iter().find(|f| f.word() == s).ok_or_else(|| {
            Error::new(Kind::Usage, format!("{s:?} is not a strength of fence"))
                .with_hint("one of: unordered, clocked, durable")
        })
    }
}

/// Which driver runs the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Atomic moves on a leased record.
    Lease,
    /// An ordered queue of entries.
    Queue,
    /// A lock tied to a connection or descriptor.
    Session,
    /// A majority of independent nodes.
    Quorum,
}

/// What ends a silent holder's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expiry {
    /// Its TTL passes.
    Ttl,
    /// Its process or connection ends; a stopped process keeps it.
    WithProcess,
}

/// Whether locks live through an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Survives {
    /// Held locks stay held, free ones stay free.
    Yes,
    /// They end; nobody holds one twice.
    Ends,
    /// Two holders are possible for up to a TTL; only the fence keeps the resource safe.
    TwoHolders,
    /// The event cannot happen to this store.
    NotApplicable,
}

/// In which order waiters are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// First come, first served.
    Fifo,
    /// Nobody is passed more than a bounded number of times.
    Bounded,
    /// None: any request that arrives while the lock is free gets it.
    None,
}

/// How far re-entry by the same owner reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reentry {
    /// Any process that was given the owner.
    Anywhere,
    /// The client that holds the lock.
    Client,
    /// Not at all.
    None,
}

/// How a waiter learns that it is its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeUp {
    /// It is told.
    Push,
    /// It asks again.
    Poll,
}

/// What a store promises. Every line is a claim that the conformance laws check.
#[derive(Clone, Debug, Serialize)]
pub struct Capability {
    /// The store and algorithm, as the table calls it: `sqlite`, `redis (plain)`.
    pub store: &'static str,
    /// The form of its URL.
    pub url: &'static str,
    /// Who excludes whom: `threads of one process`, `processes of one host`.
    pub scope: &'static str,
    /// Which driver runs it.
    pub family: Family,
    /// How far its tokens can be trusted.
    pub fence: Fence,
    /// What ends a silent holder's lock.
    pub expiry: Expiry,
    /// The shortest TTL it serves.
    pub ttl_min: Duration,
    /// The longest TTL it serves.
    pub ttl_max: Duration,
    /// TTLs are rounded up to a multiple of this.
    pub ttl_step: Duration,
    /// Locks and a restart of the store (of the machine, for a store that is files).
    pub restart: Survives,
    /// Locks and a failover.
    pub failover: Survives,
    /// Locks and a network cut.
    pub partition: Survives,
    /// In which order waiters are served.
    pub order: Order,
    /// How far re-entry reaches.
    pub reentry: Reentry,
    /// Whether shared holds are served.
    pub shared: bool,
    /// Whether permits are served.
    pub permits: bool,
    /// Whether a hold can be detached and taken up by another process.
    pub detach: bool,
    /// Whether an operator can take a lock away.
    pub force: bool,
    /// Whether a lock-delay after an expiry is kept.
    pub lock_delay: bool,
    /// Whether tasks of one client hand a lock on among themselves: then it is first come, first
    /// served within a process, and between processes at most 64 hand-overs or 20 ms pass somebody
    /// by. Not with strict order.
    pub handover: bool,
    /// Whether a lease can stay with its client after the last release there: where holders are told
    /// when somebody begins to wait, so that it is given back then.
    pub linger: bool,
    /// How a waiter learns of its turn.
    pub wake: WakeUp,
    /// How much of a TTL, in percent, a guard gives up for clocks that run at different rates.
    pub drift_percent: u8,
    /// What a guard gives up besides, for the coarseness of the store's clock.
    pub drift_floor: Duration,
    /// Whether a guard also ends when the wall clock says that its lease has passed: for stores on
    /// other hosts, whose time runs on while this machine is paused.
    pub wall_witness: bool,
    /// What else one must know, a sentence each.
    pub notes: &'static [&'static str],
}

impl Capability {
    /// The least that a store can promise; a store names what it does better:
    ///
    /// ```
    /// use distlock_core::capability::{Capability, Family, Fence, Order};
    ///
    /// static PROMISES: Capability = Capability {
    ///     fence: Fence::Durable,
    ///     order: Order::Fifo,
    ///     ..Capability::new(Family::Lease, "mine", "mine://HOST", "hosts that reach the server")
    /// };
    /// # assert_eq!(PROMISES.store, "mine");
    /// ```
    ///
    /// A field that is added later gets its weakest value here, so that no store promises it by
    /// accident.
    #[must_use]
    pub const fn new(
        family: Family,
        store: &'static str,
        url: &'static str,
        scope: &'static str,
    ) -> Self {
        Self {
            store,
            url,
            scope,
            family,
            fence: Fence::Unordered,
            expiry: Expiry::Ttl,
            ttl_min: Ttl::MIN.get(),
            ttl_max: Ttl::MAX.get(),
            ttl_step: Duration::from_millis(1),
            restart: Survives::TwoHolders,
            failover: Survives::TwoHolders,
            partition: Survives::TwoHolders,
            order: Order::None,
            reentry: Reentry::None,
            shared: false,
            permits: false,
            detach: false,
            force: false,
            lock_delay: false,
            handover: false,
            linger: false,
            wake: WakeUp::Poll,
            drift_percent: 10,
            drift_floor: Duration::from_millis(2),
            wall_witness: true,
            notes: &[],
        }
    }

    /// The TTL this store grants for a wish: raised to its minimum, rounded up to its step.
    ///
    /// # Errors
    /// [`Kind::Usage`] above its maximum.
    pub fn grantable(&self, wish: Ttl) -> Result<Duration, Error> {
        let step = self.ttl_step.as_nanos().max(1);
        let wish = wish.get().max(self.ttl_min).as_nanos();
        let nanos = wish.div_ceil(step) * step;
        let ttl = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        if ttl > self.ttl_max {
            let (store, most) = (self.store, self.ttl_max);
            let hint =
                format!("its longest is {most:?}; a redis store serves longer ones with ?max_ttl=");
            return Err(Error::new(Kind::Usage, format!("{store} serves no TTL of {ttl:?}"))
                .with_hint(hint));
        }
        Ok(ttl)
    }

    /// What a guard gives up of a lease of this length, so that it ends before the store's does.
    #[must_use]
    pub fn margin(&self, ttl: Duration) -> Duration {
        ttl / 100 * u32::from(self.drift_percent) + self.drift_floor
    }

    /// The lease of a hold of which the answer to a question says that so much is left.
    #[must_use]
    pub fn lease(&self, sent: ClockReading, left: Duration) -> Lease {
        Lease { sent, ttl: left, margin: self.margin(left) }
    }

    /// Now, on the clocks that deadlines of this store count on.
    #[must_use]
    pub fn reading(&self, clock: &Clock) -> ClockReading {
        if self.wall_witness { clock.reading() } else { clock.now().into() }
    }

    /// Refuses a mode this store does not serve.
    ///
    /// # Errors
    /// [`Kind::Unsupported`].
    pub fn allows(&self, mode: Mode) -> Result<(), Error> {
        let served = match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared,
            Mode::Permit(_) => self.permits,
        };
        if served {
            return Ok(());
        }
        Err(Error::new(Kind::Unsupported, format!("{} does not serve {mode} locks", self.store))
            .with_hint("`distlock check` lists what this store serves"))
    }
}
