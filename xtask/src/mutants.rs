//! Applies each mutation to a copy of the workspace and expects its test to fail.
//!
//! The copy has a target folder of its own, kept between mutations, so that each costs the rebuild
//! of one crate.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mutations::{LAB, MUTATIONS, Mutation};
use crate::part::{cargo, root, scratch};

pub(crate) fn run(filter: Option<&str>) -> Result<(), String> {
    let copy = scratch().map_err(|e| e.to_string())?.join("mutants");
    let wanted = |m: &&Mutation| filter.is_none_or(|f| m.name.contains(f));
    let mut survived = Vec::new();
    let mut caught = 0;
    refresh(&copy)?;
    // First as it is: a test that is red anyway catches nothing.
    for mutation in MUTATIONS.iter().filter(wanted) {
        if !passes(&copy, mutation, false)? {
            return Err(format!("{} fails without any mutation", mutation.test));
        }
    }
    for mutation in MUTATIONS.iter().filter(wanted) {
        refresh(&copy)?;
        mutate(&copy, mutation)?;
        let red = !passes(&copy, mutation, true)?;
        println!(
            "{} {:<48} {}{}",
            if red { "caught  " } else { "SURVIVED" },
            mutation.name,
            mutation.test,
            if red && mutation.package == "distlock-sim" { seed(&copy) } else { String::new() }
        );
        if red {
            caught += 1;
        } else {
            survived.push(mutation.name);
        }
    }
    println!("{caught} mutations caught, {} survived", survived.len());
    match (survived.is_empty(), caught) {
        (true, 1..) => Ok(()),
        (true, _) => Err("no mutation of that name".to_owned()),
        _ => Err(format!("not caught: {}", survived.join(", "))),
    }
}

/// The seed at which the simulation found it, if it was the simulation.
fn seed(copy: &Path) -> String {
    let log = fs::read_to_string(copy.join("mutant.log")).unwrap_or_default();
    let found = log.lines().find_map(|line| line.split_once(", seed "));
    found.map_or_else(String::new, |(_, rest)| format!(", seed {rest}"))
}

/// Copies what git tracks, so that the copy is the workspace as it would be cloned, with the
/// uncommitted changes in it.
fn refresh(copy: &Path) -> Result<(), String> {
    fs::create_dir_all(copy).map_err(|e| e.to_string())?;
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    for file in String::from_utf8_lossy(&list.stdout).split('\0').filter(|f| !f.is_empty()) {
        let (from, to) = (root().join(file), copy.join(file));
        let Ok(new) = fs::read(&from) else { continue };
        // Untouched files keep their time, so that cargo does not build them again.
        if fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        let parent = to.parent().unwrap_or(copy);
        fs::create_dir_all(parent).and_then(|()| fs::write(&to, new)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn mutate(copy: &Path, mutation: &Mutation) -> Result<(), String> {
    let path = copy.join(mutation.file);
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", mutation.file))?;
    match text.matches(mutation.old).count() {
        1 => fs::write(&path, text.replacen(mutation.old, mutation.new, 1))
            .map_err(|e| e.to_string()),
        n => Err(format!(
            "{}: the text of mutation {:?} stands there {n} times; correct xtask/src/mutations.rs",
            mutation.file, mutation.name
        )),
    }
}

/// How often the lab tells a story to a bug that hides.
const TELLINGS: u32 = 6;

fn passes(copy: &Path, mutation: &Mutation, broken: bool) -> Result<bool, String> {
    if mutation.target == LAB {
        let tellings = if broken { TELLINGS } else { 1 };
        for seed in 1..=tellings {
            if !tell(copy, mutation, seed)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut test = cargo(&["test", "--quiet", "--package", mutation.package]);
    test.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
    match mutation.target {
        "--lib" => test.arg("--lib"),
        name => test.args(["--test", name]),
    };
    test.args(["--", mutation.test]);
    let log = fs::File::create(copy.join("mutant.log")).map_err(|e| e.to_string())?;
    let err = log.try_clone().map_err(|e| e.to_string())?;
    let status = test.stdin(Stdio::null()).stdout(log).stderr(err).status();
    let status = status.map_err(|e| format!("cannot run cargo: {e}"))?;
    let text = fs::read(copy.join("mutant.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.contains("could not compile") {
        return Err(format!("mutation {:?} does not compile", mutation.name));
    }
    if !text.contains(" passed; ") || (status.success() && text.contains(" 0 passed; 0 failed")) {
        return Err(format!("no test is called {:?} in {}", mutation.test, mutation.package));
    }
    Ok(status.success())
}

/// Tells a story of the lab once; whether it ended as expected.
fn tell(copy: &Path, mutation: &Mutation, seed: u32) -> Result<bool, String> {
    let (story, store) = mutation.test.split_once(" at ").ok_or("a story is `STORY at STORE`")?;
    let mut lab = cargo(&["run", "--quiet", "--package", mutation.package, "--"]);
    lab.args(["--story", story, "--store", store, "--seed", &seed.to_string()]);
    lab.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
    let said = lab.stdin(Stdio::null()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let errors = String::from_utf8_lossy(&said.stderr);
    if errors.contains("could not compile") {
        return Err(format!("mutation {:?} does not compile", mutation.name));
    }
    if !String::from_utf8_lossy(&said.stdout).contains("lab: ") {
        return Err(format!("no verdict on {:?}: {errors}", mutation.test));
    }
    Ok(said.status.success())
}
