//! The model checkers alone.

use crate::part::{cargo, follow};

/// Runs the models of every test run; with `full` those too that take minutes and gigabytes.
pub(crate) fn run(full: bool) -> Result<(), String> {
    let mut command =
        cargo(&["test", "--package", "distlock-core", "--test", "state", "--", "model_"]);
    command.args(["--nocapture", "--test-threads", "2"]);
    if full {
        command.arg("--include-ignored");
    }
    follow(command, "the models")
}
