//! The benchmark, built for speed.

use crate::part::{cargo, follow, root};

pub(crate) fn run(
    store: Option<&str>,
    json: bool,
    quick: bool,
    growth: bool,
) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "distlock-bench", "--"]);
    command.args(store);
    command.args(json.then_some("--json"));
    command.args(quick.then_some("--quick"));
    if growth {
        command.arg("--growth").arg("--docs").arg(root().join("docs"));
    }
    follow(command, "the benchmark")
}
