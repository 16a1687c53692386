//! Bugs that the simulation has found and that are not mended yet. Each has a name here, and what shows
//! it is left out of the programs or the laws until then. Empty is what this file should be.

/// Quorum: an owner shares its hold with whoever has the ticket of a detached one, in whatever process;
/// a release there ends the hold for the guards here.
pub(crate) const DETACHED_AND_SHARED: bool = true;
