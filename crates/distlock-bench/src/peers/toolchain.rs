//! Builds the peers' programs with their own languages' package managers, in a private folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::contender::Language;

/// How a peer's program is started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<OsString>,
}

/// Builds the program of a language; otherwise a sentence that says why there is none.
///
/// `sources` is `bench/peers`, and nothing is written there; `into` is the private folder.
pub(crate) fn build(language: Language, sources: &Path, into: &Path) -> Result<Program, String> {
    let (folder, tool) = match language {
        Language::Rust => {
            let me =
                std::env::current_exe().map_err(|e| format!("no path to this program: {e}"))?;
            return Ok(Program { command: me, args: vec!["--contender".into()] });
        }
        Language::RustApart => ("rust", "cargo"),
        Language::Go => ("go", "go"),
        Language::Java => ("java", "mvn"),
        Language::Python => ("python", "python3"),
        Language::Node => ("node", "npm"),
    };
    if !on_path(tool) {
        return Err(format!("there is no {tool} on the PATH, so {} is left out", language.title()));
    }
    let (from, to) = (sources.join(folder), into.join(folder));
    fs::create_dir_all(&to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
    match language {
        Language::Rust | Language::RustApart => rust(&from, &to),
        Language::Go => go(&from, &to),
        Language::Java => java(&from, &to),
        Language::Python => python(&from, &to),
        Language::Node => node(&from, &to),
    }
}

fn rust(from: &Path, to: &Path) -> Result<Program, String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--release", "--locked"]).current_dir(from);
    run(build.env("CARGO_TARGET_DIR", to), "cargo build")?;
    Ok(Program { command: to.join("release").join("peer"), args: vec![] })
}

fn go(from: &Path, to: &Path) -> Result<Program, String> {
    let program = to.join("peer");
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-modcacherw", "-o"]).arg(&program).arg(".");
    build.env("GOMODCACHE", to.join("mod")).env("GOCACHE", to.join("cache"));
    run(build.current_dir(from), "go build")?;
    Ok(Program { command: program, args: vec![] })
}

fn java(from: &Path, to: &Path) -> Result<Program, String> {
    let path = |key: &str, name: &str| {
        let mut option = OsString::from(format!("-D{key}="));
        option.push(to.join(name));
        option
    };
    let mut build = Command::new("mvn");
    build.args(["-q", "-B", "compile", "dependency:copy-dependencies"]);
    build.args([path("maven.repo.local", "repository"), path("peers.out", "out")]);
    run(build.arg(path("outputDirectory", "jars")).current_dir(from), "mvn")?;
    let mut classes = to.join("out").join("classes").into_os_string();
    classes.push(":");
    classes.push(to.join("jars").join("*"));
    Ok(Program { command: "java".into(), args: vec!["-cp".into(), classes, "Peer".into()] })
}

fn python(from: &Path, to: &Path) -> Result<Program, String> {
    let python = to.join("bin").join("python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(to), "python3 -m venv")?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-cache-dir"]);
    install.args(["--disable-pip-version-check", "--requirement"]);
    run(install.arg(from.join("requirements.txt")), "pip install")?;
    Ok(Program { command: python, args: vec![from.join("peer.py").into()] })
}

fn node(from: &Path, to: &Path) -> Result<Program, String> {
    for file in ["package.json", "package-lock.json", "peer.mjs"] {
        fs::copy(from.join(file), to.join(file)).map_err(|e| format!("cannot copy {file}: {e}"))?;
    }
    let mut install = Command::new("npm");
    install.args(["ci", "--silent", "--no-audit", "--no-fund", "--cache"]).arg(to.join("cache"));
    run(install.current_dir(to), "npm ci")?;
    Ok(Program { command: "node".into(), args: vec![to.join("peer.mjs").into()] })
}

/// Runs a build to its end; its output is shown when it fails.
fn run(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("cannot run {what}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    for text in [output.stdout, output.stderr] {
        eprint!("{}", String::from_utf8_lossy(&text));
    }
    Err(format!("{what} ended with {}", output.status))
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}
