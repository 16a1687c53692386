//! A run's row: its outcome in a line, and behind it the picture.

use super::checkers::named;
use super::escape::{count, html as text, thousands};
use super::shown::{Mark, seconds, words};
use crate::record::{Kind, Run};

/// How many findings a row spells out.
const FINDINGS: usize = 8;

/// The row of the run at `place` in the record, open or closed.
pub(super) fn html(place: usize, run: &Run, open: bool) -> String {
    let mark = Mark::of(run);
    let open = if open { " open" } else { "" };
    let kind = match run.kind {
        Kind::Story => String::new(),
        Kind::Control => "<span class=\"tag\">control</span>".to_owned(),
        Kind::Random if run.story == "random" => {
            format!("<span class=\"tag\">round {}</span>", run.round)
        }
        Kind::Random => {
            format!("<span class=\"tag\">round {} · {}</span>", run.round, text(&run.story))
        }
    };
    format!(
        "<details class=\"run\" id=\"run-{place}\"{open}><summary>\
         <span class=\"mark {}\" aria-hidden=\"true\">{}</span><b>{}</b>{kind}\
         <span class=\"words\">{}</span><span class=\"meta\">{} · {}</span></summary>\
         <p class=\"said\"><b>{}</b> {}</p>{}<div class=\"picture\" data-run=\"{place}\"></div>\
         <p class=\"meta\">seed {} · round {}</p></details>",
        mark.class(),
        mark.glyph(),
        text(&run.store),
        text(&sentence(&run.said)),
        seconds(run.nanos),
        count(run.grants as usize, "grant", "grants"),
        text(&sentence(&words(run))),
        text(&sentence(&run.said)),
        findings(run),
        run.seed,
        run.round,
    )
}

fn findings(run: &Run) -> String {
    if run.violations.is_empty() {
        return String::new();
    }
    let items: String = run
        .violations
        .iter()
        .take(FINDINGS)
        .map(|found| {
            let at = found.at.map(|at| format!(" <i>at {}</i>", seconds(at))).unwrap_or_default();
            format!("<li><b>{}</b>: {}{at}</li>", text(&named(&found.checker)), text(&found.what))
        })
        .collect();
    let more = match run.violations.len().saturating_sub(FINDINGS) {
        0 => String::new(),
        n => format!("<li>and {} more</li>", thousands(n)),
    };
    format!("<ul class=\"findings\">{items}{more}</ul>")
}

/// What was said, with a capital and a full stop.
pub(super) fn sentence(said: &str) -> String {
    let mut rest = said.chars();
    let first = rest.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let end = if said.is_empty() || said.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{first}{}{end}", rest.as_str())
}
