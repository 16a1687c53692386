//! The random rounds, counted store by store, and the few that get a picture.

use std::collections::BTreeMap;

use super::escape::{html as text, thousands};
use super::outline::{Outline, ROUNDS};
use super::rows;
use crate::record::{Expect, Kind, Run, Verdict};

/// How many kinds of fault a line names.
const KINDS: usize = 9;

pub(super) fn html(outline: &Outline<'_>) -> String {
    let stores: Vec<_> = outline
        .stores
        .iter()
        .map(|store| (*store, outline.rounds(store)))
        .filter(|(_, rounds)| !rounds.is_empty())
        .collect();
    if stores.is_empty() {
        return "<p class=\"soft\">No random rounds were run.</p>".to_owned();
    }
    let mut table = String::from(
        "<table class=\"facts\"><thead><tr><th scope=\"col\">Store</th>\
         <th scope=\"col\" class=\"num\">Rounds</th><th scope=\"col\" class=\"num\">Grants</th>\
         <th scope=\"col\">Faults</th><th scope=\"col\" class=\"num\">Clean</th>\
         <th scope=\"col\" class=\"num\">Went wrong, as expected</th>\
         <th scope=\"col\" class=\"num\">Unexpected</th></tr></thead><tbody>",
    );
    for (store, rounds) in &stores {
        table.push_str(&line(store, rounds));
    }
    table.push_str("</tbody></table>");
    format!("{table}{}", pictured(outline))
}

fn line(store: &str, rounds: &[(usize, &Run)]) -> String {
    let grants: usize = rounds.iter().map(|(_, run)| run.grants as usize).sum();
    let ended = |verdict, expect| {
        rounds.iter().filter(|(_, r)| r.verdict == verdict && expect == r.expect).count()
    };
    let clean = ended(Verdict::AsExpected, Expect::Clean);
    let wrong = ended(Verdict::AsExpected, Expect::Violates);
    let unexpected = rounds.len() - clean - wrong;
    let class = if unexpected == 0 { "" } else { " bad" };
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"num\" data-label=\"Rounds\">{}</td>\
         <td class=\"num\" data-label=\"Grants\">{}</td><td data-label=\"Faults\">{}</td>\
         <td class=\"num\" data-label=\"Clean\">{}</td>\
         <td class=\"num\" data-label=\"Went wrong, as expected\">{}</td>\
         <td class=\"num{class}\" data-label=\"Unexpected\">{}</td></tr>",
        text(store),
        thousands(rounds.len()),
        thousands(grants),
        faults(rounds),
        thousands(clean),
        thousands(wrong),
        thousands(unexpected)
    )
}

/// `kill ×12, pause ×9`, the most frequent first.
fn faults(rounds: &[(usize, &Run)]) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in rounds.iter().flat_map(|(_, run)| &run.faults) {
        *kinds.entry(&fault.what).or_default() += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    let rest: usize = kinds.iter().skip(KINDS).map(|(_, times)| times).sum();
    let mut named: Vec<String> = kinds
        .iter()
        .take(KINDS)
        .map(|(what, times)| format!("{}&nbsp;×{}", text(what), thousands(*times)))
        .collect();
    if rest > 0 {
        named.push(format!("others&nbsp;×{}", thousands(rest)));
    }
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

fn pictured(outline: &Outline<'_>) -> String {
    let mut listed = outline.listed();
    listed.retain(|(_, run)| run.kind == Kind::Random);
    let all = outline.record.runs.iter().filter(|run| run.kind == Kind::Random).count();
    let note = match all == listed.len() {
        true => String::new(),
        false => format!(
            "<p class=\"soft\">Pictures of {} of the {} rounds: the first {ROUNDS} of each store and \
             those that ended unexpectedly. The JSON record has them all.</p>",
            thousands(listed.len()),
            thousands(all)
        ),
    };
    let mut stores = String::new();
    for store in &outline.stores {
        let rows: String = listed
            .iter()
            .filter(|(_, run)| run.store == *store)
            .map(|(place, run)| rows::html(*place, run, false))
            .collect();
        stores.push_str(&rows);
    }
    format!("{note}<div class=\"runs\">{stores}</div>")
}
