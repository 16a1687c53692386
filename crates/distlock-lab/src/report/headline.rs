//! The verdict in words.

use super::escape::{count, html as text, thousands};
use super::outline::Outline;
use super::rows;
use super::shown::{Mark, Shown};
use crate::record::{Expect, Verdict};

/// How many unexpected runs the verdict names.
const LISTED: usize = 10;

pub(super) fn html(outline: &Outline<'_>) -> String {
    let unexpected = outline.record.runs.iter().any(|run| run.verdict == Verdict::Unexpected);
    let (class, mark) = if unexpected { ("bad", Mark::Unexpected) } else { ("good", Mark::Clean) };
    let said = match outline.record.runs.is_empty() {
        true => "This record holds no run of a story or of random faults.".to_owned(),
        false => format!("{} {} {}", ended(outline), clean_and_not(outline), fence(outline)),
    };
    format!(
        "<div class=\"verdict {class}\"><span class=\"seal\" aria-hidden=\"true\">{}</span>\
         <div><p>{said}</p>{}</div></div>",
        mark.glyph(),
        unexpected_ones(outline)
    )
}

fn ended(outline: &Outline<'_>) -> String {
    let runs = &outline.record.runs;
    let stores = count(outline.stores.len(), "store", "stores");
    let all = count(runs.len(), "run", "runs");
    match runs.iter().filter(|run| run.verdict == Verdict::Unexpected).count() {
        0 if runs.len() == 1 => "<strong>The one run ended as expected.</strong>".to_owned(),
        0 => format!("<strong>All {all} on {stores} ended as expected.</strong>"),
        n => format!("<strong>{n} of {all} on {stores} did not end as expected.</strong>"),
    }
}

/// A list of what went wrong, each leading to its picture.
fn unexpected_ones(outline: &Outline<'_>) -> String {
    let runs = outline.record.runs.iter().enumerate();
    let unexpected: Vec<_> = runs.filter(|(_, run)| run.verdict == Verdict::Unexpected).collect();
    if unexpected.is_empty() {
        return String::new();
    }
    let listed: String = unexpected
        .iter()
        .take(LISTED)
        .map(|(place, run)| {
            let (store, title) = (text(&run.store), text(outline.title(&run.story)));
            let said = text(&rows::sentence(&shortened(&run.said)));
            format!("<li><a href=\"#run-{place}\">{store}: {title}</a>. {said}</li>")
        })
        .collect();
    let more = match unexpected.len().saturating_sub(LISTED) {
        0 => String::new(),
        n => format!("<li>and {} more, marked ✗ below</li>", thousands(n)),
    };
    format!("<ul>{listed}{more}</ul>")
}

/// The beginning of what may be a long tale.
fn shortened(said: &str) -> String {
    match said.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &said[..end]),
        None => said.to_owned(),
    }
}

fn clean_and_not(outline: &Outline<'_>) -> String {
    let as_expected = || outline.record.runs.iter().filter(|r| r.verdict == Verdict::AsExpected);
    let clean = as_expected().filter(|run| run.expect == Expect::Clean).count();
    let violating = as_expected().count() - clean;
    let clean = format!("{} kept every promise", count(clean, "run", "runs"));
    match violating {
        0 => format!("{clean}."),
        n => format!(
            "{clean}; {}, set up so that things had to go wrong, did go wrong in the way we said.",
            count(n, "run", "runs")
        ),
    }
}

fn fence(outline: &Outline<'_>) -> String {
    let mut refused = 0;
    let mut fenced = 0;
    let (mut expected, mut unexpected) = (0, 0);
    for run in &outline.record.runs {
        let shown = Shown::by(run);
        refused += shown.refused;
        fenced += shown.fenced;
        if shown.went_back > 0 {
            *(if run.verdict == Verdict::AsExpected { &mut expected } else { &mut unexpected }) +=
                1;
        }
    }
    let writes = count(fenced, "write", "writes");
    let late = count(refused, "late one", "late ones");
    match (fenced, expected, unexpected) {
        (0, ..) => "No run had a resource that checks tokens.".to_owned(),
        (_, 0, 0) => format!(
            "Of {writes} to resources that check fencing tokens, {late} were refused and \
             <strong>none got in out of order</strong>."
        )
        .replace("1 late one were", "1 late one was"),
        (_, n, 0) => format!(
            "Of {writes} to resources that check fencing tokens, {refused} were refused; some got in \
             out of order in {}, where that was expected.",
            count(n, "run", "runs")
        ),
        (_, _, n) => format!(
            "<strong>In {} a late write got past the fence, and must not have.</strong>",
            count(n, "run", "runs")
        ),
    }
}
