//! The recipes of docs/recipes, as they are written there.

use std::path::{Path, PathBuf};

use crate::scene::{Done, Scene, until};

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes").join(name);
    std::fs::read_to_string(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()))
}

/// The code blocks of a page in one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    page.split(&open).skip(1).map(|b| b.split("```").next().unwrap().to_owned()).collect()
}

/// Puts an executable script into the scene and gives its path.
fn script(scene: &Scene, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = scene.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Programs that a page names, replaced by one of the scene.
fn local(scene: &Scene, line: &str, program: &Path) -> String {
    let words = line.split_whitespace().map(|w| match w {
        w if w.starts_with("/usr/local/bin/") => program.display().to_string(),
        "/usr/bin/distlock" => "distlock".to_owned(),
        w if w.starts_with("%n") => "unit.service".to_owned(),
        w => w.replace("/etc/distlock.url", &scene.path("url").display().to_string()),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn shell(scene: &Scene, line: &str) -> Done {
    scene.shell(line).output().unwrap().into()
}

#[test]
fn every_cron_line_runs_its_job_once() {
    let scene = Scene::sqlite();
    std::fs::write(scene.path("url"), scene.url()).unwrap();
    let job = script(&scene, "job", "echo ran >> ran; exit 3");
    let lines: Vec<String> = blocks(&page("cron.md"), "cron")
        .iter()
        .flat_map(|b| b.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let jobs: Vec<&String> = lines.iter().filter(|l| l.contains("distlock run")).collect();
    assert_eq!(jobs.len(), 4, "{jobs:?}");
    for (i, line) in jobs.iter().enumerate() {
        // Five fields of time stand before the command.
        let command = line.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
        let done = shell(&scene, &local(&scene, &command, &job));
        assert_eq!(done.code, 3, "{line} {done:?}");
        assert_eq!(scene.read("ran").lines().count(), i + 1);
        if line.contains("--min-hold") {
            // The second host comes a moment later, and skips it without a word.
            let again = shell(&scene, &local(&scene, &command, &job));
            assert_eq!((again.code, again.err.as_str()), (0, ""));
            assert_eq!(scene.read("ran").lines().count(), i + 1);
            assert_eq!(scene.run(&["break", "report", "--now"]).code, 0);
        }
    }
}

#[test]
fn every_service_starts_its_command_and_stops_with_it() {
    let scene = Scene::sqlite();
    let job = script(&scene, "job", "echo $$ > up.new; mv up.new up; exec sleep 1000");
    let mut seen = 0;
    for block in blocks(&page("systemd.md"), "ini") {
        let line = block.lines().find_map(|l| l.strip_prefix("ExecStart=")).unwrap();
        let line = format!("exec {}", local(&scene, line, &job));
        let _ = std::fs::remove_file(scene.path("up"));
        let mut service = crate::scene::Running::from(scene.shell(&line).spawn().unwrap());
        let command = scene.pid("up");
        service.signal(rustix::process::Signal::TERM);
        assert_eq!(service.code(), 143, "{line}");
        until("the command is gone", || !crate::scene::alive(command));
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn every_pipeline_step_does_what_it_says() {
    let scene = Scene::sqlite();
    script(&scene, "deploy.sh", "echo $DISTLOCK_NAME > deployed");
    let steps = blocks(&page("ci.md"), "sh");
    let [one, take, give, renew, look] = &steps[..] else { panic!("{steps:?}") };
    let step = |text: &str| {
        let env = "CI_JOB_URL=https://ci/1 CI_PIPELINE_URL=https://ci/2 TARGET=prod";
        shell(&scene, &format!("set -e; export {env}; {text}"))
    };
    assert_eq!(step(one).code, 0);
    assert_eq!(scene.read("deployed").trim(), "deploy/prod");
    assert_eq!(step(take).code, 0);
    assert_eq!(scene.show("deploy/prod")["holders"][0]["label"], "https://ci/2");
    assert_eq!(step(renew).code, 0);
    assert_eq!(step(give).code, 0);
    assert_eq!(step(give).code, 76);
    assert_eq!(step(take).code, 0);
    let done = step(look);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains("revoked deploy/prod"), "{done:?}");
    assert_eq!(step(renew).code, 76);
}
