//! What a translation of the specification must offer to be compared with it.

use std::future::Future;
use std::time::Duration;

use distlock_core::backend::{Ask, Due, Force, Key};
use distlock_core::state::{LockState, Reply, Rules};
use distlock_core::{FullName, Token};

/// One call of a translation.
#[derive(Clone, Debug)]
pub enum Play {
    /// An acquire by a client that is reachable through `via`.
    Acquire {
        /// What is asked for.
        ask: Ask,
        /// How long it may be silent in line.
        wait: Option<Duration>,
        /// Where it can be told of its turn.
        via: &'static str,
    },
    /// Heartbeats of a client.
    Heartbeat {
        /// Which waiters, and how long each may be silent.
        due: Vec<(Key, Duration)>,
        /// Where they can be told of their turn.
        via: &'static str,
    },
    /// Renewals.
    Renew {
        /// Which holds.
        due: Vec<Due>,
    },
    /// A release.
    Release {
        /// Which hold.
        key: Key,
    },
    /// A cancel.
    Cancel {
        /// Which request.
        key: Key,
    },
    /// A lock is taken away.
    Force {
        /// Which lock.
        lock: FullName,
        /// One of the holder's tokens.
        token: Option<Token>,
        /// At once, or with the end of the lease.
        how: Force,
    },
}

/// Whether a translation knows, within a call, who listens, and takes back a promotion that nobody
/// hears before it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knows {
    /// Always.
    Always,
    /// On some servers: it is run both ways.
    Sometimes,
    /// It finds out after the call, and takes the promotion back by a call of its own.
    Afterwards,
}

/// A translation of [`LockState::step`] on a real server, in held time.
pub trait Subject {
    /// Where clients can be told of their turn: two where somebody listens, one where nobody does,
    /// and the empty one of a client that cannot be told.
    const VIAS: [&'static str; 4];
    /// Whether it knows, within a call, who listens.
    const KNOWS: Knows;
    /// Whether its states show which requests are spent; otherwise those are only seen by what they
    /// forbid.
    const SHOWS_SPENT: bool;

    /// Its rules.
    fn rules() -> Rules;

    /// Forgets everything, and says what time to begin with, in microseconds since 1970.
    fn clear(&mut self) -> impl Future<Output = u64>;

    /// Makes one move at one moment, then looks at the locks. The answer is a reply for each part
    /// of the move, and each lock's state, without its memories of spent requests unless it shows
    /// them. Unless `trusted`, it does not count on knowing who listens.
    fn play(
        &mut self,
        now: u64,
        trusted: bool,
        play: &Play,
        locks: &[FullName],
    ) -> impl Future<Output = (Vec<Reply>, Vec<LockState>)>;

    /// What those who listen were told since the last time, in no order, but for what the answer of
    /// their own call told them: `t` it is a request's turn, `c` a hold is waited for, `x` a hold was taken away.
    fn heard(&mut self) -> impl Future<Output = Vec<(u8, Key)>>;
}
