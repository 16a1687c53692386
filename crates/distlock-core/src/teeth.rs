//! Seeded bugs, for the fault lab to find: a lab that never saw a bug may be blind.
//!
//! Each is asleep until a program chooses it with `choose`, which exists only with the feature
//! `teeth`; without it [`bites`] is a constant, and nothing of this is in the build.

/// A bug that was made on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Bug {
    /// A release ends whatever hold there is.
    ReleaseWithoutOwner,
    /// A renewal of a hold that is gone is answered with yes.
    RenewSaysYes,
    /// The same owner gets another token when it enters again.
    TokenRisesOnReentry,
    /// Tokens start from the beginning whenever a lock is free.
    TokenStartsAgain,
    /// Whoever came last is served first.
    LastComeFirstServed,
    /// Anybody is let in as if it were the owner.
    AnybodyReenters,
    /// A waiter that fell silent stays in line, and gets every turn.
    DeadWaiterKeepsTurn,
    /// A cancelled request is forgotten, and what arrives of it later is granted.
    NoTombstone,
    /// A dropped acquire is not undone.
    UndoMissing,
    /// A dropped guard gives nothing back.
    DropReleasesNothing,
    /// What was dropped is given back by one try, whatever comes of it.
    ReaperTriesOnce,
    /// A deadline counts from the answer.
    DeadlineFromReply,
    /// A grant that is told again counts as a whole lease.
    ReplayHasFullTtl,
    /// Whether a lock is valid is a matter of having been told, not of clocks.
    CheckTrustsTimer,
    /// Nothing is renewed.
    NoWatchdog,
    /// A renewal that was answered with lost counts as done.
    LostTakenForKept,
    /// Waiters are not kept alive in line.
    NoHeartbeat,
    /// What was asked without an answer is asked again as another request.
    RetryIsNew,
    /// Breaking a lock frees it while its holder may believe in it.
    RevokeFreesAtOnce,
    /// Leases end earlier in the store than their holders were told.
    StoreEndsEarly,
    /// A lock has no end until it is renewed for the first time.
    NoExpiry,
    /// Half of the nodes, rounded down, are a majority.
    HalfIsMajority,
    /// A lock whose session ended is believed in.
    SessionLossUnnoticed,
    /// A compare-and-set that failed counts as done.
    LostRaceBelieved,
}

impl Bug {
    /// All of them: what each is called, and what it breaks.
    pub const ALL: &[(Bug, &'static str, &'static str)] = &[
        (
            Bug::ReleaseWithoutOwner,
            "release-without-owner",
            "a release ends whatever hold there is",
        ),
        (
            Bug::RenewSaysYes,
            "renew-says-yes",
            "a renewal of a hold that is gone is answered with yes",
        ),
        (
            Bug::TokenRisesOnReentry,
            "token-rises-on-reentry",
            "the same owner gets another token when it enters again",
        ),
        (
            Bug::TokenStartsAgain,
            "token-starts-again",
            "tokens start from the beginning whenever a lock is free",
        ),
        (Bug::LastComeFirstServed, "last-come-first-served", "whoever came last is served first"),
        (Bug::AnybodyReenters, "anybody-reenters", "anybody is let in as if it were the owner"),
        (
            Bug::DeadWaiterKeepsTurn,
            "dead-waiter-keeps-turn",
            "a waiter that fell silent stays in line and gets every turn",
        ),
        (
            Bug::NoTombstone,
            "no-tombstone",
            "a cancelled request is forgotten, and what arrives of it later is granted",
        ),
        (Bug::UndoMissing, "undo-missing", "a dropped acquire is not undone"),
        (Bug::DropReleasesNothing, "drop-releases-nothing", "a dropped guard gives nothing back"),
        (
            Bug::ReaperTriesOnce,
            "reaper-tries-once",
            "what was dropped is given back by one try, whatever comes of it",
        ),
        (Bug::DeadlineFromReply, "deadline-from-reply", "a deadline counts from the answer"),
        (
            Bug::ReplayHasFullTtl,
            "replay-has-full-ttl",
            "a grant that is told again counts as a whole lease",
        ),
        (
            Bug::CheckTrustsTimer,
            "check-trusts-timer",
            "a lock is valid until its holder is told otherwise, whatever the clock says",
        ),
        (Bug::NoWatchdog, "no-watchdog", "nothing is renewed"),
        (
            Bug::LostTakenForKept,
            "lost-taken-for-kept",
            "a renewal that was answered with lost counts as done",
        ),
        (Bug::NoHeartbeat, "no-heartbeat", "waiters are not kept alive in line"),
        (
            Bug::RetryIsNew,
            "retry-is-new",
            "what was asked without an answer is asked again as another request",
        ),
        (
            Bug::RevokeFreesAtOnce,
            "revoke-frees-at-once",
            "breaking a lock frees it while its holder may believe in it",
        ),
        (
            Bug::StoreEndsEarly,
            "store-ends-early",
            "leases end earlier in the store than their holders were told",
        ),
        (Bug::NoExpiry, "no-expiry", "a lock has no end until it is renewed for the first time"),
        (
            Bug::HalfIsMajority,
            "half-is-majority",
            "half of the nodes, rounded down, are a majority",
        ),
        (
            Bug::SessionLossUnnoticed,
            "session-loss-unnoticed",
            "a lock whose session ended is believed in",
        ),
        (
            Bug::LostRaceBelieved,
            "lost-race-believed",
            "a compare-and-set that failed counts as done",
        ),
    ];

    /// The bug of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Bug> {
        Self::ALL.iter().find(|(_, n, _)| *n == name).map(|(bug, ..)| *bug)
    }
}

#[cfg(feature = "teeth")]
static CHOSEN: std::sync::OnceLock<Bug> = std::sync::OnceLock::new();

/// Lets a bug loose in this process, for as long as it lives. The first one counts.
#[cfg(feature = "teeth")]
pub fn choose(bug: Bug) {
    let _ = CHOSEN.set(bug);
}

/// Whether this bug is loose.
#[cfg(feature = "teeth")]
#[must_use]
pub fn bites(bug: Bug) -> bool {
    CHOSEN.get() == Some(&bug)
}

/// Whether this bug is loose: never, in this build.
#[cfg(not(feature = "teeth"))]
#[must_use]
pub const fn bites(_: Bug) -> bool {
    false
}
