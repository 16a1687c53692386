//! The benchmark, built for speed.

use crate::part::{cargo, follow};

pub(crate) fn run(store: Option<&str>, json: bool, quick: bool) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "distlock-bench", "--"]);
    command.args(store);
    command.args(json.then_some("--json"));
    command.args(quick.then_some("--quick"));
    follow(command, "the benchmark")
}
