//! What a run of the fault lab leaves behind, for whoever reads it.

pub mod record;
pub mod report;
