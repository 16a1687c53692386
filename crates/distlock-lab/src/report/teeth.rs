//! The seeded bugs: would the lab notice?

use super::checkers::named;
use super::escape::{html as text, thousands};
use crate::record::Tooth;

pub(super) fn html(teeth: &[Tooth]) -> String {
    if teeth.is_empty() {
        return "<p class=\"soft\">Not tried this time; <code>cargo xtask lab --teeth</code> does.</p>"
            .to_owned();
    }
    let mut table = String::from(
        "<table class=\"facts\"><thead><tr><th scope=\"col\">Bug</th>\
         <th scope=\"col\">What it does wrong</th><th scope=\"col\">Caught by</th>\
         <th scope=\"col\" class=\"num\">Rounds</th><th scope=\"col\" class=\"num\">Seconds</th>\
         </tr></thead><tbody>",
    );
    for tooth in teeth {
        let caught = match &tooth.caught_by {
            Some(checker) => format!("<b class=\"clean\">✓</b> {}", text(&named(checker))),
            None => "<b class=\"bad\">✗ not caught</b>".to_owned(),
        };
        table.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td data-label=\"What it does wrong\">{}</td>\
             <td data-label=\"Caught by\">{caught}</td>\
             <td class=\"num\" data-label=\"Rounds\">{}</td>\
             <td class=\"num\" data-label=\"Seconds\">{:.1}</td></tr>",
            text(&tooth.bug),
            text(&tooth.says),
            thousands(tooth.rounds as usize),
            tooth.seconds
        ));
    }
    table.push_str("</tbody></table>");
    table
}
