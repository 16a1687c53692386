//! The benchmark, built for speed.

use std::path::PathBuf;
use std::process::Stdio;

use crate::part::{cargo, follow, root};

/// What is measured.
pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) quick: bool,
    pub(crate) growth: bool,
    pub(crate) peers: bool,
}

pub(crate) fn run(store: Option<&str>, options: &Options) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "distlock-bench", "--"]);
    command.args(store);
    command.args(options.json.then_some("--json"));
    command.args(options.quick.then_some("--quick"));
    if options.growth {
        command.arg("--growth").arg("--docs").arg(root().join("docs"));
    }
    if options.peers {
        command.args(["--peers", "--repository"]).arg(root());
        command.arg("--command").arg(command_for_speed()?);
    }
    follow(command, "the benchmark")
}

/// Builds the command `distlock` for speed; answers where it is.
fn command_for_speed() -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--release", "--package", "distlock-cli"]);
    build.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let found = String::from_utf8_lossy(&output.stdout).lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "distlock";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    found.ok_or_else(|| "the build gave no command distlock".to_owned())
}
