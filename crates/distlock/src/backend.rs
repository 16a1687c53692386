//! For authors of stores: the traits to implement, their drivers, and what both are made of.
//!
//! A store implements the trait of its family, and the family's driver does the rest: waiting,
//! renewal, re-entry, undoing what was cancelled. [`Locks::from_store`](crate::Locks::from_store)
//! and [`Options::open`](crate::Options::open) take the result.
//!
//! | family | trait | driver | stores |
//! |---|---|---|---|
//! | lease: one atomic step on a leased record | [`LeaseStore`] | [`LeaseDriver`] | memory, sqlite, redis, mysql, postgres, memcached |
//! | queue: ordered entries, each tied to a session | [`QueueStore`](queue::QueueStore) | [`QueueDriver`](queue::QueueDriver) | etcd, zookeeper |
//! | session: a lock tied to a connection or descriptor | [`SessionStore`] | [`SessionDriver`] | file, advisory and row locks |
//! | quorum: a majority of independent nodes | [`QuorumNode`](quorum::QuorumNode) | [`QuorumDriver`](quorum::QuorumDriver) | redlock |
//!
//! [`state`] is the specification of the lease family: a store runs [`LockState::step`] as it is or
//! translates it. What a store promises is its [`Capability`](crate::Capability).
//!
//! Users of locks need nothing from here.
//!
//! [`LockState::step`]: state::LockState::step

// What everything above a driver sees of a store.
#[doc(inline)]
pub use distlock_core::Store;
#[doc(inline)]
pub use distlock_core::backend::{
    Ask, Attempt, Backend, Before, Due, Event, Fut, Grant, Kept, Key, Lease, StoreInfo, Told,
    Watcher, deadline,
};
#[doc(inline)]
pub use distlock_core::info::Query;

// The lease family.
#[doc(inline)]
pub use distlock_core::lease::{Class, EventSink, LeaseStore, Move, Replies, Run, Wake, only};
#[doc(inline)]
pub use distlock_core::lease_driver::LeaseDriver;

// The session family.
#[doc(inline)]
pub use distlock_core::session::{Alive, Locked, SessionStore};
#[doc(inline)]
pub use distlock_core::session_driver::SessionDriver;

// Time, tokens and helpers.
#[doc(inline)]
pub use distlock_core::contention::ContentionHint;
#[doc(inline)]
pub use distlock_core::single_flight::SingleFlight;
#[doc(inline)]
pub use distlock_core::{BootInstant, Clock, ClockReading, Patience, TokenRange};

/// The queue family: ordered entries, each tied to a session of its client.
pub mod queue {
    #[doc(inline)]
    pub use distlock_core::queue::{
        Entry, Joined, Keeping, Proven, QueueDriver, QueueStore, Snapshot, Spot, Turn, turn,
    };
}

/// The quorum family: one lock out of a majority of independent nodes.
pub mod quorum {
    #[doc(inline)]
    pub use distlock_core::quorum::{
        Ballot, Bid, Commit, Committed, Generation, Heal, NodeDue, NodeHold, NodeKept, NodeOp,
        NodePhase, NodeReply, NodeRules, NodeState, NodeStep, NodeTombstone, NodeWaiter, Position,
        QuorumDriver, QuorumNode, Round, Vote, Who,
    };
}

/// The pure specification of a lock, which every store of the lease family follows.
pub mod state {
    #[doc(inline)]
    pub use distlock_core::state::{
        Claim, Effects, End, Hold, Left, LockState, Micros, Now, Op, Phase, Pulse, Queue, Refusal,
        Reply, Rules, Step, Tombstone, Waiter,
    };
}

/// The specification as a store in this process: the smallest example of the lease family.
pub mod memory {
    #[doc(inline)]
    pub use distlock_core::memory::{Memory, capability};
}

/// The URL of a store, parsed.
pub mod url {
    #[doc(inline)]
    pub use distlock_core::url::{Host, Secret, StoreUrl};
}

/// Durations as people write them in URLs and options: `90s`, `5m`.
pub mod duration {
    #[doc(inline)]
    pub use distlock_core::duration::parse;
}

/// The library's own thread, where renewals and everything in the background run.
pub mod engine {
    #[doc(inline)]
    pub use distlock_core::engine::{block_on, on_library_thread, spawn, thread, unblock};
}

/// The machine this process runs on: its boot id, its file systems, which users a directory can be
/// trusted to.
pub mod host {
    #[doc(inline)]
    pub use distlock_core::host::{Boot, LocalFs, link, own_entry, private_dir, trusted_path};
}
