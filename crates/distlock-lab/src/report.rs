//! The lab's report: one HTML page that needs nothing but itself.
//!
//! The page answers, in this order: did everything end as expected; what may one believe of each
//! store; which story ran where; what happened in each run. All tables are made here, so that they
//! can be read without JavaScript; the pictures are drawn by the page's own script from the
//! data it carries, when somebody looks at them.

mod checkers;
mod data;
mod escape;
mod headline;
mod matrix;
mod merge;
mod outline;
mod random;
mod rows;
mod shown;
mod stores;
mod stories;

use crate::record::Record;
pub use merge::merge;
use outline::Outline;

const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const TIMELINE: &str = include_str!("report/timeline.js");
const SCRIPT: &str = include_str!("report/page.js");

/// The page about a record.
///
/// It makes no request to anywhere, works from a file, and stays at a few megabytes however long
/// the lab ran: of the random rounds it draws the first few of each store and those that ended
/// unexpectedly, and says so.
pub fn page(record: &Record) -> String {
    let outline = Outline::of(record);
    let text = escape::html;
    escape::fill(
        PAGE,
        &[
            ("style", STYLE),
            ("seed", &record.seed.to_string()),
            ("started", &text(&record.started)),
            ("when", &text(&record.started.replacen('T', " ", 1))),
            ("version", &text(&record.version)),
            ("headline", &headline::html(&outline)),
            ("stores", &stores::html(&outline)),
            ("matrix", &matrix::html(&outline)),
            ("stories", &stories::html(&outline)),
            ("random", &random::html(&outline)),
            ("data", &escape::script(&data::json(&outline))),
            ("timeline", TIMELINE),
            ("script", SCRIPT),
        ],
    )
}
