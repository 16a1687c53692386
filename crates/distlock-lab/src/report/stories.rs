//! Each story: what it teaches, one picture to look at, and every run of it.

use super::escape::html as text;
use super::outline::Outline;
use super::rows;
use super::shown::Mark;
use crate::record::{Kind, Run};

pub(super) fn html(outline: &Outline<'_>) -> String {
    let mut sections = String::new();
    for (place, chapter) in outline.chapters.iter().enumerate() {
        let told = outline.told(chapter.id);
        let example = example(&told);
        let rows: String =
            told.iter().map(|(at, run)| rows::html(*at, run, Some(*at) == example)).collect();
        let rows = match rows.is_empty() {
            true => "<p class=\"soft\">Not run this time.</p>".to_owned(),
            false => rows,
        };
        sections.push_str(&format!(
            "<section class=\"story\" id=\"story-{place}\"><h3>{}</h3>\
             <p class=\"teaches\">{}</p>{rows}</section>",
            text(chapter.title),
            text(chapter.teaches)
        ));
    }
    sections
}

/// The run whose picture says most: the one that went wrong unexpectedly, or else the control with
/// two holders, or else a run in which a late write was refused.
fn example(told: &[(usize, &Run)]) -> Option<usize> {
    let telling = |run: &Run| {
        let refused = run.writes.iter().any(|write| !write.accepted);
        (Mark::of(run), run.kind == Kind::Control, refused)
    };
    // Of equals the first: `max_by_key` would take the last.
    told.iter().rev().max_by_key(|(_, run)| telling(run)).map(|(place, _)| *place)
}
