//! The fault lab.
//!
//! | where | what |
//! |---|---|
//! | [`record`] | what a run of the lab leaves behind, as JSON |
//! | [`report`] | the page made of it |

pub mod record;
pub mod report;
