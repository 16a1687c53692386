//! The model checkers alone.

use crate::part::{cargo, follow};

pub(crate) fn run() -> Result<(), String> {
    let mut command =
        cargo(&["test", "--package", "distlock-core", "--test", "state", "--", "model_"]);
    command.args(["--nocapture", "--test-threads", "2"]);
    follow(command, "the models")
}
