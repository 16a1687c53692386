//! Stories against stores, one cell for what came out.

use super::escape::html as text;
use super::outline::Outline;
use super::shown::{Mark, words};
use crate::record::{Kind, Run};

pub(super) fn html(outline: &Outline<'_>) -> String {
    if outline.stores.is_empty() {
        return "<p class=\"soft\">No store was run this time.</p>".to_owned();
    }
    let mut table = String::from("<table class=\"matrix\"><thead><tr><th scope=\"col\">Story</th>");
    for store in &outline.stores {
        table.push_str(&format!("<th scope=\"col\"><span>{}</span></th>", text(store)));
    }
    table.push_str("</tr></thead><tbody>");
    for (row, chapter) in outline.chapters.iter().enumerate() {
        let title = text(chapter.title);
        table.push_str(&format!("<tr><th scope=\"row\"><a href=\"#story-{row}\">{title}</a></th>"));
        let told = outline.told(chapter.id);
        for store in &outline.stores {
            let here: Vec<_> = told.iter().filter(|(_, run)| run.store == *store).collect();
            table.push_str(&cell(&here, store));
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table>");
    table
}

/// The story's mark and, after it, its control's; each leads to the run that earned it.
fn cell(runs: &[&(usize, &Run)], store: &str) -> String {
    let marks: String = [Kind::Story, Kind::Control]
        .into_iter()
        .filter_map(|kind| {
            let of_kind = || runs.iter().filter(|(_, run)| run.kind == kind);
            // The worst is what counts, and the first of the worst is where to look.
            let worst = of_kind().map(|(_, run)| Mark::of(run)).max()?;
            let (place, run) = of_kind().find(|(_, run)| Mark::of(run) == worst)?;
            let (class, glyph) = (worst.class(), worst.glyph());
            let times = match of_kind().count() {
                1 => String::new(),
                n => format!(" (the worst of {n} runs)"),
            };
            let control = if kind == Kind::Control { "control, " } else { "" };
            let says = text(&format!("{store}: {control}{}{times}", words(run)));
            Some(format!(
                "<a class=\"mark {class}\" href=\"#run-{place}\" title=\"{says}\" \
                 aria-label=\"{says}\">{glyph}</a>"
            ))
        })
        .collect();
    match marks.is_empty() {
        true => "<td class=\"none\"><span title=\"not run here\">·</span></td>".to_owned(),
        false => format!("<td>{marks}</td>"),
    }
}
