//! Bugs that the simulation has found and that are not mended yet. Each has a name here, and what it
//! is called by is left out of the programs or the laws until then. Empty is what this file should be.

/// Line and quorum: a second `abandon` of a request that shares a hold ends the hold for the others.
pub(crate) const ABANDONED_TWICE: bool = false;

/// Session: an application task that stalls while it enters its owner's hold again keeps the
/// connection's lock, and the hold is not renewed meanwhile.
pub(crate) const STALLED_REENTRY: bool = false;

/// Quorum: a re-entry that finds its owner's hold lost gives it back, and does not tell the guard.
pub(crate) const UNTOLD_LOSS: bool = false;
