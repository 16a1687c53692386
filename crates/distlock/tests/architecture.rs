//! The way of one acquire in ARCHITECTURE.md is the way the code goes: by search in the sources, so
//! that a file or function that moves is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `core/lock.rs` as the page says it, from the root.
fn file(shown: &str) -> PathBuf {
    let (part, rest) = shown.split_once('/').expect("a file in a crate");
    let source = match part {
        "core" | "sql" => format!("crates/distlock-{part}/src"),
        store => format!("backends/{store}/src"),
    };
    root().join(source).join(rest)
}

/// The source without comments and without its tests.
fn source(shown: &str) -> String {
    let path = file(shown);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Whether what stands before a name and after it fits, wherever the name is.
fn has(text: &str, name: &str, fits: impl Fn(&str, &str) -> bool) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(word) && !after.starts_with(word) && fits(before, after)
    })
}

fn is_definition(before: &str) -> bool {
    before.ends_with("fn ") || before.ends_with("macro_rules! ")
}

/// `Hold::new` is defined as `new`; a macro will do.
fn defines(text: &str, function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or(function);
    has(text, name, |before, _| is_definition(before))
}

fn calls(text: &str, function: &str) -> bool {
    has(text, function, |before, after| {
        !is_definition(before) && (after.starts_with('(') || after.starts_with("!("))
    })
}

#[test]
fn the_way_of_an_acquire_is_as_listed() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, rest) = page.split_once("<!-- way -->\n```text\n").expect("the list");
    let (list, _) = rest.split_once("```").expect("the list's end");
    let mut sections: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for section in list.split("\n\n") {
        let mut lines = section.lines();
        let head = lines.next().expect("a heading");
        let (what, count) = head.split_once(": ").expect("a number of files");
        let (name, base) = what.split_once(", after ").unwrap_or((what, ""));
        let mut files = sections.get(base).cloned().unwrap_or_default();
        // The files of the lines above, each with its indentation.
        let mut above: Vec<(usize, &str)> = Vec::new();
        for line in lines {
            let depth = line.len() - line.trim_start().len();
            let mut words = line.split_whitespace();
            let (Some(shown), Some(function)) = (words.next(), words.next()) else {
                panic!("{line:?} names no file and function");
            };
            above.retain(|(d, _)| *d < depth);
            if !defines(&source(shown), function) {
                wrong.push(format!("{name}: {shown} does not define {function}"));
            }
            match above.last() {
                Some((_, caller)) if !calls(&source(caller), function) => {
                    wrong.push(format!("{name}: {caller} does not call {function}"));
                }
                None if !base.is_empty() && !files.contains(shown) => {
                    wrong.push(format!("{name}: {shown} is not in {base:?}"));
                }
                _ => {}
            }
            above.push((depth, shown));
            files.insert(shown);
        }
        if count != format!("{} files", files.len()) {
            wrong.push(format!("{name}: {} files, not {count}", files.len()));
        }
        sections.insert(name, files);
    }
    for store in ["memory", "redis", "postgres", "etcd"] {
        assert!(sections.contains_key(store), "no way for {store}");
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md, the way of one acquire: {wrong:#?}");
}
