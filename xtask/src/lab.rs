//! The fault lab.

use crate::part::{cargo, follow};

/// Builds the lab with the seeded bugs in it, each asleep until it is chosen, and runs it.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--package", "distlock-lab"]);
    command.args(["--features", "teeth", "--"]).args(args);
    follow(command, "the lab")
}
