//! The short answer: what one may believe of each store.

use super::escape::{count, html as text, thousands};
use super::outline::Outline;
use super::shown::Shown;
use crate::record::{Kind, Run, Verdict};

pub(super) fn html(outline: &Outline<'_>) -> String {
    if outline.stores.is_empty() {
        return "<p class=\"soft\">No store was run this time.</p>".to_owned();
    }
    let mut table = String::from(
        "<table class=\"facts\"><thead><tr><th scope=\"col\">Store</th>\
         <th scope=\"col\">Did two clients ever hold it at once?</th>\
         <th scope=\"col\">Did a late write get past the fence?</th>\
         <th scope=\"col\" class=\"num\">Runs</th><th scope=\"col\" class=\"num\">Grants</th>\
         </tr></thead><tbody>",
    );
    for store in &outline.stores {
        let runs: Vec<&Run> = outline.record.runs.iter().filter(|r| r.store == *store).collect();
        let grants: usize = runs.iter().map(|run| run.grants as usize).sum();
        table.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td data-label=\"Two holders at once?\">{}</td>\
             <td data-label=\"Late write past the fence?\">{}</td>\
             <td class=\"num\" data-label=\"Runs\">{}</td>\
             <td class=\"num\" data-label=\"Grants\">{}</td></tr>",
            text(store),
            holders(outline, &runs),
            fence(&runs),
            thousands(runs.len()),
            thousands(grants)
        ));
    }
    table.push_str("</tbody></table>");
    if !outline.idle.is_empty() {
        let idle = text(&outline.idle.join(", "));
        table.push_str(&format!("<p class=\"soft\">Not run this time: {idle}.</p>"));
    }
    table
}

/// Whether an outcome is one that was foretold.
fn foretold(run: &Run) -> bool {
    run.verdict == Verdict::AsExpected
}

fn holders(outline: &Outline<'_>, runs: &[&Run]) -> String {
    let two: Vec<&&Run> = runs.iter().filter(|run| !run.overlaps.is_empty()).collect();
    if two.is_empty() {
        let runs = match runs.len() {
            1 => "in one run".to_owned(),
            n => format!("in none of {} runs", thousands(n)),
        };
        return format!("<b class=\"clean\">No</b>, {runs}.");
    }
    let mut titles: Vec<&str> = Vec::new();
    for run in &two {
        let title = match run.kind {
            Kind::Random => "random faults",
            _ => outline.title(&run.story),
        };
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    let rest = titles.len().saturating_sub(3);
    let mut where_: Vec<String> = titles.iter().take(3).map(|t| format!("“{}”", text(t))).collect();
    if rest > 0 {
        where_.push(count(rest, "other", "others"));
    }
    let where_ = where_.join(", ");
    let unexpected = two.iter().filter(|run| !foretold(run)).count();
    let controls = two.iter().filter(|run| run.kind == Kind::Control).count();
    let runs = count(two.len(), "run", "runs");
    match (unexpected, two.len() - controls) {
        (0, 0) => {
            format!("<b class=\"two\">Only in controls</b>, set up to fail, in {runs}: {where_}.")
        }
        (0, _) => format!("<b class=\"two\">Yes, where expected</b>, in {runs}: {where_}."),
        (n, _) => format!(
            "<b class=\"bad\">Yes, and it must not</b>: unexpectedly in {n} of {runs}: {where_}."
        ),
    }
}

fn fence(runs: &[&Run]) -> String {
    let shown: Vec<(bool, Shown)> =
        runs.iter().map(|run| (foretold(run), Shown::by(run))).collect();
    let refused: usize = shown.iter().map(|(_, s)| s.refused).sum();
    let fenced: usize = shown.iter().map(|(_, s)| s.fenced).sum();
    let back = |as_foretold: bool| {
        shown.iter().filter(|(f, s)| *f == as_foretold && s.went_back > 0).count()
    };
    match (fenced, back(true), back(false)) {
        (0, ..) => "<span class=\"soft\">no fenced write in these runs</span>".to_owned(),
        (_, 0, 0) if refused == 0 => "<b class=\"clean\">No</b>; none tried.".to_owned(),
        (_, 0, 0) => format!("<b class=\"clean\">No</b>; {} refused.", thousands(refused)),
        (_, n, 0) => format!(
            "<b class=\"two\">Yes, where expected</b>, in {}; {} refused.",
            count(n, "run", "runs"),
            thousands(refused)
        ),
        (_, _, n) => {
            format!("<b class=\"bad\">Yes, and it must not</b>: in {}.", count(n, "run", "runs"))
        }
    }
}
