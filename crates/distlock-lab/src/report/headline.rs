//! The verdict in words.

use super::escape::{count, html as text};
use super::outline::Outline;
use super::rows;
use super::shown::{Mark, Shown};
use crate::record::{Expect, Verdict};

pub(super) fn html(outline: &Outline<'_>) -> String {
    let runs = &outline.record.runs;
    if runs.is_empty() {
        return "<p class=\"verdict none\">This record holds no run.</p>".to_owned();
    }
    let unexpected: Vec<_> =
        runs.iter().enumerate().filter(|(_, run)| run.verdict == Verdict::Unexpected).collect();
    let stores = count(outline.stores.len(), "store", "stores");
    let escaped = outline.record.teeth.iter().filter(|tooth| tooth.caught_by.is_none()).count();
    let good = unexpected.is_empty() && escaped == 0;
    let mut said = match unexpected.len() {
        0 => format!(
            "<strong>{} on {stores} ended as expected.</strong>",
            match runs.len() {
                1 => "The one run".to_owned(),
                n => format!("All {}", count(n, "run", "runs")),
            }
        ),
        n => format!(
            "<strong>{} of {} on {stores} did not end as expected.</strong>",
            count(n, "run", "runs"),
            super::escape::thousands(runs.len()),
        ),
    };
    said.push(' ');
    said.push_str(&clean_and_not(outline));
    said.push(' ');
    said.push_str(&fence(outline));
    said.push_str(&bugs(outline, escaped));
    let listed: String = unexpected
        .iter()
        .take(10)
        .map(|(place, run)| {
            let (store, title) = (text(&run.store), text(outline.title(&run.story)));
            let said = text(&rows::sentence(&shortened(&run.said)));
            format!("<li><a href=\"#run-{place}\">{store}: {title}</a>. {said}</li>")
        })
        .collect();
    let more = match unexpected.len().saturating_sub(10) {
        0 => String::new(),
        n => format!("<li>and {n} more, marked ✗ below</li>"),
    };
    let list = match listed.is_empty() {
        true => String::new(),
        false => format!("<ul>{listed}{more}</ul>"),
    };
    let (class, glyph) = if good { ("good", Mark::Clean) } else { ("bad", Mark::Unexpected) };
    format!(
        "<div class=\"verdict {class}\"><span class=\"seal\" aria-hidden=\"true\">{}</span>\
         <div><p>{said}</p>{list}</div></div>",
        glyph.glyph()
    )
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

fn bugs(outline: &Outline<'_>, escaped: usize) -> String {
    match (outline.record.teeth.len(), escaped) {
        (0, _) => String::new(),
        (all, 0) => format!(" All {all} bugs put in on purpose were caught."),
        (all, n) => {
            format!(" <strong>{n} of {all} bugs put in on purpose were not caught.</strong>")
        }
    }
}
