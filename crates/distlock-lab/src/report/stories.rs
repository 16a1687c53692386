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
        let examples = examples(&told);
        let rows: String =
            told.iter().map(|(at, run)| rows::html(*at, run, examples.contains(at))).collect();
        let rows = match rows.is_empty() {
            true => "<p class=\"soft\">Not run this time.</p>".to_owned(),
            false => format!("<div class=\"runs\">{rows}</div>"),
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
/// two holders, or else a run in which a late write was refused. A control is shown beside the story
/// it is the control of.
fn examples(told: &[(usize, &Run)]) -> Vec<usize> {
    let telling = |run: &Run| {
        let refused = run.writes.iter().any(|write| !write.accepted);
        (Mark::of(run), run.kind == Kind::Control, refused)
    };
    // Of equals the first: `max_by_key` would take the last.
    let Some((place, most)) = told.iter().rev().max_by_key(|(_, run)| telling(run)) else {
        return Vec::new();
    };
    let sibling = told.iter().find(|(_, run)| run.store == most.store && run.kind != most.kind);
    [*place].into_iter().chain(sibling.map(|(place, _)| *place)).collect()
}
