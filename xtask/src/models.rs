//! The model checkers alone.

use crate::part::cargo;

pub(crate) fn run() -> Result<(), String> {
    let mut command =
        cargo(&["test", "--package", "distlock-core", "--test", "state", "--", "model_"]);
    command.args(["--nocapture", "--test-threads", "2"]);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("a model failed ({status})")),
        Err(e) => Err(format!("cannot run cargo: {e}")),
    }
}
