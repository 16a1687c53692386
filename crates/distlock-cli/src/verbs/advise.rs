//! `distlock advise`: whether a lock is needed, and what to do instead.

use distlock::fence::advice::{Advice, Resource, advice};
use serde_json::{Value, json};

use crate::{Done, Printer, args::Advise, view::columns};

/// The verb. Nobody is asked and nothing is connected to.
pub(crate) fn advise(args: &Advise, printer: Printer) -> Done {
    let rows: Vec<&Advice> = advice(args.effect, args.resource).collect();
    if printer.json {
        for row in rows {
            printer.line(&document(row).to_string())?;
        }
        return Ok(());
    }
    printer.line(&table(&rows))?;
    rows.into_iter().try_for_each(|row| printer.line(&section(row)))
}

fn places(row: &Advice) -> String {
    row.resources.iter().map(|r| r.word()).collect::<Vec<_>>().join(", ")
}

fn document(row: &Advice) -> Value {
    json!({
        "effect": row.effect.word(),
        "resources": row.resources.iter().map(|r: &Resource| r.word()).collect::<Vec<_>>(),
        "lock": row.need.word(),
        "answer": row.answer,
        "why": row.why,
        "language": row.language,
        "code": row.code,
    })
}

fn table(rows: &[&Advice]) -> String {
    let mut lines = vec![["EFFECT", "RESOURCE", "LOCK", "DO THIS"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        let words = [row.effect.word(), &places(row), row.need.word(), row.answer];
        words.map(str::to_owned)
    }));
    columns(&lines)
}

fn section(row: &Advice) -> String {
    let code: Vec<String> = row.code.lines().map(|line| format!("    {line}")).collect();
    format!(
        "\n{} ({}; {})\n  {}\n  {}\n\n{}",
        row.answer,
        row.effect.means(),
        places(row),
        row.need.means(),
        row.why,
        code.join("\n")
    )
}
