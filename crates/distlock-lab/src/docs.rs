//! The tables of docs/lab.md, made from the code.

use std::fmt::Write;

use crate::stories::{ALL, Expected};
use crate::{checkers, stores};

/// The stories: what each teaches, where it is told, and what is expected.
pub(crate) fn stories() -> String {
    let mut table =
        "| story | what it teaches | told on | expected |\n|---|---|---|---|\n".to_owned();
    for story in ALL {
        for act in story.acts {
            let fits = stores::ALL.iter().filter_map(|s| Some((s.name, (act.expect)(*s)?)));
            let fits: Vec<_> = fits.collect();
            let on = match fits.len() {
                n if n == stores::ALL.len() => "every store".to_owned(),
                _ => fits.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            };
            let expected = match fits.first() {
                Some((_, Expected::Violates(checkers))) => {
                    format!("**violates** {}", checkers.join(" or "))
                }
                _ => "clean".to_owned(),
            };
            let teaches = if act.name.is_empty() { story.teaches } else { "" };
            let teaches = teaches.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(table, "| `{}` | {teaches} | {on} | {expected} |", act.id(story));
        }
    }
    table
}

/// The checkers and what they mean.
pub(crate) fn checkers() -> String {
    let mut table = "| checker | finds |\n|---|---|\n".to_owned();
    for (number, name, means) in checkers::ALL {
        let _ = writeln!(table, "| {number} {name} | {means} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask lab --list` prints them to be put there.
    #[test]
    fn the_page_has_the_tables_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.md");
        let page = std::fs::read_to_string(path).unwrap();
        for table in [stories(), checkers()] {
            assert!(page.contains(&table), "docs/lab.md lacks this table:\n{table}");
        }
    }
}
