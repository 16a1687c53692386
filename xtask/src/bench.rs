//! The benchmark, built for speed.

use crate::part::cargo;

pub(crate) fn run(store: Option<&str>, json: bool, quick: bool) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "distlock-bench", "--"]);
    command.args(store);
    command.args(json.then_some("--json"));
    command.args(quick.then_some("--quick"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the benchmark ended with {status}")),
        Err(e) => Err(format!("cannot run cargo: {e}")),
    }
}
