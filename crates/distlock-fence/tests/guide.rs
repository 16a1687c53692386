//! The guide's table is the data that `distlock advise` prints.
#![allow(clippy::unwrap_used)] // tests

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use distlock_fence::advice::{ADVICE, Advice, Effect};

fn places(row: &Advice) -> String {
    let all: Vec<&str> = row.resources.iter().map(|r| r.means()).collect();
    all.join(", ").replace("anything that cannot compare: mail, payments, devices", "the rest")
}

fn sections() -> String {
    let mut text =
        String::from("| what is to happen | where | lock? | do this |\n|---|---|---|---|\n");
    for row in ADVICE {
        let (effect, need) = (row.effect.means(), row.need.word());
        writeln!(text, "| {effect} | {} | {need} | {} |", places(row), row.answer).unwrap();
    }
    for effect in Effect::ALL {
        let means = effect.means();
        let title = means[..1].to_uppercase() + &means[1..];
        writeln!(text, "\n## {title}").unwrap();
        for row in ADVICE.iter().filter(|row| row.effect == *effect) {
            let Advice { answer, why, language, code, need, .. } = row;
            writeln!(text, "\n**{}: {answer}.** {why} Lock: {need}.", places(row)).unwrap();
            // Pieces of programs: the pages about each call have them whole, and compiled.
            let language = if *language == "rust" { "rust,ignore" } else { language };
            writeln!(text, "\n```{language}\n{code}\n```").unwrap();
        }
    }
    text + "\n"
}

#[test]
fn the_guides_table_is_the_advice() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/do-you-need-a-lock.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- advice:").expect("a marker before the table");
    let (marker, rest) = rest.split_once("-->\n").expect("the marker's end");
    let (inside, after) = rest.split_once("<!-- /advice -->").expect("a marker after the table");
    let sections = sections();
    if std::env::var_os("DISTLOCK_BLESS").is_some() {
        let new = format!("{before}<!-- advice:{marker}-->\n{sections}<!-- /advice -->{after}");
        fs::write(&path, new).unwrap();
    } else {
        assert_eq!(inside, sections, "run with DISTLOCK_BLESS=1 to write it anew");
    }
}
