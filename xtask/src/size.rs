//! Lines of product code per crate: without comments, blank lines and tests.

use std::collections::{BTreeMap, HashSet};
use std::process::Command;

use crate::part::root;

/// Crates that test or measure the product.
const NOT_PRODUCT: [&str; 4] = [
    "crates/distlock-testkit",
    "crates/distlock-lab",
    "crates/distlock-bench",
    "crates/distlock-sim",
];

/// Prints lines, files, median and longest file of each crate, in the working tree or at a commit.
pub(crate) fn run(revision: Option<&str>) -> Result<(), String> {
    let mut crates: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    let sources = sources(revision)?;
    let tests: HashSet<String> =
        sources.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    for (path, text) in &sources {
        let under_test = tests.iter().any(|module| {
            path.strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
        let Some(name) = crate_of(path).filter(|_| !under_test) else { continue };
        crates.entry(name.to_owned()).or_default().push((code_lines(path, text), path.clone()));
    }
    println!("| crate | lines | files | median | longest |\n|---|--:|--:|--:|---|");
    let mut all = Vec::new();
    for (name, mut files) in crates {
        files.sort();
        println!("| {name} {}", row(&files));
        all.extend(files);
    }
    all.sort();
    println!("| **all** {}", row(&all));
    Ok(())
}

fn row(files: &[(usize, String)]) -> String {
    let lines: usize = files.iter().map(|(n, _)| n).sum();
    let median = files.get(files.len() / 2).map_or(0, |(n, _)| *n);
    let (most, longest) = files.last().map_or((0, ""), |(n, path)| (*n, path));
    format!("| {lines} | {} | {median} | {most} {longest} |", files.len())
}

/// The folder of the crate whose source a file is: `src` and `sql` stand right in it, so that
/// `tests/sql` is no source.
fn crate_of(path: &str) -> Option<&str> {
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    let name = &path[..slashes.nth(1)?];
    let below = &path[name.len() + 1..];
    ["src/", "sql/"].iter().any(|dir| below.starts_with(dir)).then_some(name)
}

/// The product's source files with their text.
fn sources(revision: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let list = match revision {
        Some(revision) => git(&["ls-tree", "-r", "--name-only", revision])?,
        None => git(&["ls-files", "--cached", "--others", "--exclude-standard"])?,
    };
    let product = |path: &&str| {
        ["crates/", "backends/"].iter().any(|dir| path.starts_with(dir))
            && crate_of(path).is_some()
            && [".rs", ".lua", ".sql"].iter().any(|end| path.ends_with(end))
            && !NOT_PRODUCT.iter().any(|dir| path.starts_with(&format!("{dir}/")))
    };
    let read = |path: &str| {
        let text = match revision {
            Some(revision) => git(&["show", &format!("{revision}:{path}")])?,
            None => {
                std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))?
            }
        };
        Ok((path.to_owned(), text))
    };
    list.lines().filter(product).map(read).collect()
}

fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|e| format!("cannot run git: {e}"))?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(|e| e.to_string()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Where the modules of a file are that are compiled for tests only, without their ending.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let parent = stem.rsplit_once('/').map_or("", |(parent, _)| parent);
    let dir = match stem.rsplit('/').next() {
        Some("lib" | "main" | "mod") => parent,
        _ => stem,
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let module = |pair: &[&str]| {
        let declared = pair[1].trim_start_matches("pub(crate) ").strip_prefix("mod ")?;
        let name = declared.strip_suffix(';').filter(|_| pair[0].starts_with("#[cfg(test)]"))?;
        Some(format!("{dir}/{name}"))
    };
    lines.windows(2).filter_map(module).collect()
}

/// Lines that are neither blank nor comments, up to the tests at the end of the file.
fn code_lines(path: &str, text: &str) -> usize {
    let comment = if path.ends_with(".rs") { "//" } else { "--" };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // Other attributes may stand between `#[cfg(test)]` and the module.
    let is_module = |line: &str| line.starts_with("mod ") && line.ends_with('{');
    let tests = lines.iter().enumerate().position(|(n, line)| {
        let item = lines[n..].iter().find(|line| !line.starts_with("#["));
        *line == "#[cfg(test)]" && item.is_some_and(|item| is_module(item))
    });
    let code = &lines[..tests.unwrap_or(lines.len())];
    code.iter().filter(|line| !line.is_empty() && !line.starts_with(comment)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let text = "//! Doc.\n\nfn a() {} // kept\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        assert_eq!(code_lines("a.rs", text), 1);
        assert_eq!(code_lines("a.lua", "-- why\nreturn 1\n"), 1);
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests {\n    fn b() {}\n}\n";
        assert_eq!(code_lines("a.rs", text), 1);
        let text = "#[cfg(test)]\nfn only_for_tests() {}\nmod a {\n}\n";
        assert_eq!(code_lines("a.rs", text), 4);
    }

    #[test]
    fn a_folder_of_tests_is_no_source() {
        assert_eq!(crate_of("crates/x/src/a/b.rs"), Some("crates/x"));
        assert_eq!(crate_of("backends/x/sql/moves.sql"), Some("backends/x"));
        assert_eq!(crate_of("crates/x/tests/sql/main.rs"), None);
        assert_eq!(crate_of("crates/x/build.rs"), None);
    }

    #[test]
    fn modules_for_tests_are_found_beside_the_file_that_declares_them() {
        let text = "mod a;\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(test_modules("crates/x/src/lib.rs", text), ["crates/x/src/tests"]);
        assert_eq!(test_modules("crates/x/src/lane.rs", text), ["crates/x/src/lane/tests"]);
    }
}
