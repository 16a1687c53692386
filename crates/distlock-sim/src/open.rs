//! Bugs that the simulation has found and that are not mended yet. Each has a name here, and what shows
//! it is left out of the programs or the laws until then. Empty is what this file should be.

/// Line: a re-entry into a hold that is not renewed gets what is left of its lease, however little: it
/// may be over before the first renewal is answered. Nothing is asked of the store first, as the session
/// and quorum drivers do.
pub(crate) const SHORT_REENTRY: bool = true;
