//! The fault lab.

use crate::part::{cargo, follow, root};

/// Builds the lab and runs it.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--package", "distlock-lab", "--"]);
    command.args(args);
    // A place of its own for what nobody named a file for.
    if !args.iter().any(|arg| arg == "--out") {
        command.arg("--out").arg(root().join("target").join("lab"));
    }
    follow(command, "the lab")
}
