//! An application may use SQLite through another crate, and only one copy of a native library fits
//! into a program: cargo must find a `libsqlite3-sys` that suits both.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Resolves an application that has these dependencies beside distlock with its default features;
/// answers with the packages in its lock file.
fn resolve(app: &str, dependencies: &str) -> Vec<(String, String)> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(app);
    // Begun anew: a lock file of another run would be taken over.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("src")).expect("a folder for the application");
    std::fs::write(dir.join("src/lib.rs"), "").expect("its library");
    let here = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\ndistlock = {{ path = {here:?}, features = [\"fence-sqlite\"] }}\n\
         {dependencies}\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).expect("its manifest");
    let cargo = Command::new(env!("CARGO")).arg("generate-lockfile").current_dir(&dir).output();
    let cargo = cargo.expect("cargo runs");
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    packages(&dir.join("Cargo.lock"))
}

fn packages(lock: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(lock).expect("its lock file");
    let field = |package: &str, key: &str| {
        let line = package.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(" = "));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let packages = text.split("[[package]]").skip(1);
    packages.map(|p| (field(p, "name"), field(p, "version"))).collect()
}

fn versions(found: &[(String, String)], name: &str) -> Vec<String> {
    found.iter().filter(|(n, _)| n == name).map(|(_, version)| version.clone()).collect()
}

#[test]
fn resolves_beside_sqlx_and_rusqlite() {
    for (app, dependencies, other) in [
        ("sqlx-0-8", "sqlx = { version = \"0.8\", features = [\"sqlite\"] }", "sqlx-sqlite"),
        ("sqlx-0-9", "sqlx = { version = \"0.9\", features = [\"sqlite\"] }", "sqlx-sqlite"),
        ("rusqlite-0-37", "rusqlite = \"0.37\"", "rusqlite"),
    ] {
        let found = resolve(app, dependencies);
        assert_eq!(versions(&found, "libsqlite3-sys").len(), 1, "{app}: {found:?}");
        assert_eq!(versions(&found, "rusqlite").len(), 1, "{app}: {found:?}");
        assert_eq!(versions(&found, other).len(), 1, "{app}: {found:?}");
    }
}
