//! Take here, release there.

use crate::scene::{Done, Scene};

fn ticket(scene: &Scene, args: &[&str]) -> String {
    let done = scene.run(args);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.out.lines().count(), 1);
    done.out.trim().to_owned()
}

fn with_stdin(scene: &Scene, args: &[&str], text: &str) -> Done {
    use std::io::Write;
    use std::process::Stdio;
    let mut command = scene.distlock(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_ticket_renews_and_releases_in_other_processes() {
    let scene = Scene::sqlite();
    let first = ticket(&scene, &["acquire", "lock", "--label", "stage one"]);
    assert!(first.starts_with("dl1:"), "{first}");
    let held = scene.show("lock");
    assert_eq!(held["holders"][0]["label"], "stage one");
    assert!(held["holders"][0]["left_seconds"].as_f64().unwrap() > 590.0);
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 75);
    let renewed = ticket(&scene, &["renew", &first, "--ttl", "1h"]);
    assert!(scene.show("lock")["holders"][0]["left_seconds"].as_f64().unwrap() > 3590.0);
    let released = with_stdin(&scene, &["release", "-"], &format!("{renewed}\n"));
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
    // It is over, with the old ticket and with the new one.
    for ticket in [&first, &renewed] {
        for verb in ["release", "renew"] {
            let again = scene.run(&[verb, ticket]);
            assert_eq!(again.code, 76, "{again:?}");
            assert!(again.err.contains("lost"), "{again:?}");
        }
    }
}

#[test]
fn a_ticket_is_of_its_store_alone() {
    let (scene, other) = (Scene::sqlite(), Scene::sqlite());
    let ticket = ticket(&scene, &["acquire", "lock"]);
    let done = scene.run(&["release", &ticket, "--url", other.url()]);
    assert_eq!(done.code, 76, "{done:?}");
    assert!(done.err.contains("of another store"), "{done:?}");
    assert_eq!(scene.run(&["release", &ticket]).code, 0);
}

#[test]
fn acquire_waits_or_does_not_and_prints_json() {
    let scene = Scene::sqlite();
    let done = scene.run(&["--json", "acquire", "a b"]);
    let doc: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&doc["name"], &doc["ttl_seconds"]), (&"a b".into(), &600.0.into()));
    assert!(doc["token"].is_string());
    let busy = scene.run(&["acquire", "-n", "a b"]);
    assert_eq!((busy.code, busy.out.as_str()), (75, ""));
    let mut waiter = scene.start("waiter.log", &["acquire", "a b", "--ttl", "1m"]);
    scene.says("waiter.log", "held by");
    assert_eq!(scene.run(&["release", doc["ticket"].as_str().unwrap()]).code, 0);
    assert_eq!(waiter.code(), 0);
    assert_eq!(scene.run(&["acquire", "-n", "a b"]).code, 75);
}

#[test]
fn a_ticket_that_nobody_could_read_leaves_no_lock() {
    let scene = Scene::sqlite();
    let mut command = scene.distlock(&["acquire", "lock"]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let done: Done = command.output().unwrap().into();
    assert_eq!(done.code, 74, "{done:?}");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
}
