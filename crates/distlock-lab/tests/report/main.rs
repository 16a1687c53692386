//! The report: what is in the page, and what a real browser makes of it.

mod browser;
mod content;
mod sample;
