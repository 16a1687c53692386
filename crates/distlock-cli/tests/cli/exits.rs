//! Every exit status.

use std::time::Duration;

use distlock::backend::Clock;

use crate::scene::{Scene, timed, usually};

#[test]
fn the_commands_own_status_is_passed_on() {
    let scene = Scene::sqlite();
    for code in [0, 1, 3, 75, 255] {
        let script = format!("exit {code}");
        let done = scene.run(&["run", "lock", "--", "sh", "-c", &script]);
        assert_eq!(done.code, code, "{done:?}");
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        let done = scene.run(&["run", "lock", "--", "sh", "-c", &script]);
        assert_eq!(done.code, code, "{done:?}");
    }
}

#[test]
fn busy_names_holder_age_token_and_place() {
    let scene = Scene::sqlite();
    let _holder = scene.hold(&["--label", "night shift"], "exec sleep 1000");
    let token = scene.show("lock")["holders"][0]["token"].as_str().unwrap().to_owned();
    for wait in [&["-n"][..], &["-w", "0"], &["--wait", "0s"], &["-w", "300ms"], &["-w", ".3"]] {
        let mut args = vec!["run"];
        args.extend(wait);
        args.extend(["lock", "--", "true"]);
        let done = scene.run(&args);
        assert_eq!(done.code, 75, "{done:?}");
        for part in ["night shift", " for ", &format!("token {token}"), "\"lock\" is busy"] {
            assert!(done.err.contains(part), "{part}: {}", done.err);
        }
        assert!(done.err.contains("next in line"), "{}", done.err);
        let waited = wait.last().is_some_and(|w| w.contains('3'));
        assert_eq!(done.err.contains("waiting for \"lock\""), waited, "{}", done.err);
    }
    let quiet = scene.run(&["run", "-n", "-q", "lock", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (75, ""));
    let skipped = scene.run(&["run", "-n", "-E", "0", "lock", "--", "true"]);
    assert_eq!((skipped.code, skipped.err.as_str()), (0, ""));
    let chosen = scene.run(&["run", "-n", "-E", "9", "lock", "--", "true"]);
    assert_eq!(chosen.code, 9);
    assert!(chosen.err.contains("night shift"));
}

#[test]
fn wrong_usage_is_64_and_says_what_is_right() {
    let scene = Scene::sqlite();
    let long = "x".repeat(256);
    let wrong: [&[&str]; 17] = [
        &["run", "-w", "-5", "lock", "--", "true"],
        &["run", "-E", "-1", "lock", "--", "true"],
        &["run", "--max-hold", "1ms", "lock", "--", "true"],
        &["run", "lock", "true"],
        &["break", ""],
        &["run", "", "--", "true"],
        &["run", &long, "--", "true"],
        &["run", "lock"],
        &["run", "-n", "-w", "1", "lock", "--", "true"],
        &["run", "-w", "soon", "lock", "--", "true"],
        &["run", "--ttl", "1ms", "lock", "--", "true"],
        &["run", "--ttl", "1s", "--kill-after", "600ms", "lock", "--", "true"],
        &["run", "--url", "nonsense", "lock", "--", "true"],
        &["--url", "gopher://x", "run", "lock", "--", "true"],
        &["ls", "--url", "memory:?colour=red"],
        &["release", "no-ticket"],
        &["fly"],
    ];
    for args in wrong {
        let done = scene.run(args);
        assert_eq!(done.code, 64, "{args:?} {done:?}");
        assert!(done.err.starts_with("distlock: "), "{done:?}");
        assert_eq!(done.out, "");
    }
    let said: [(&[&str], &str); 5] = [
        (&["ls", "--url", "memory:?colour=red"], "\nhint: known: "),
        (&["run", "-w", "-5", "lock", "--", "true"], "a duration is"),
        (&["run", "--max-hold", "1ms", "lock", "--", "true"], "max_hold"),
        (&["run", "lock", "true"], "\nhint: the command comes after --"),
        (&["break", ""], "cannot be empty"),
    ];
    for (args, part) in said {
        let done = scene.run(args);
        assert!(done.err.contains(part), "{args:?} {done:?}");
    }
}

#[test]
fn a_promise_that_cannot_be_kept_is_78() {
    let scene = Scene::memory();
    let done = scene.run(&["run", "--url", "memory:?require=durable", "lock", "--", "true"]);
    assert_eq!(done.code, 78, "{done:?}");
    // A ticket to what ends with this very process is a ticket to nothing.
    let done = scene.run(&["acquire", "lock"]);
    assert_eq!((done.code, done.out.as_str()), (78, ""), "{done:?}");
    let done = scene.run(&["run", "-q", "lock", "--", "true"]);
    assert!(done.code == 0 && done.err.contains("excludes nobody"), "{done:?}");
    let scene = Scene::file();
    let done = scene.run(&["acquire", "lock"]);
    assert_eq!(done.code, 78, "{done:?}");
    assert!(done.err.contains("hint: "), "{done:?}");
    // Refused before anything was taken.
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
}

#[test]
fn a_store_that_cannot_be_opened_is_no_success_and_says_why() {
    let scene = Scene::sqlite();
    std::fs::write(
        scene.path("text.db"),
        "this is not a database, but long enough to be read".repeat(40),
    )
    .unwrap();
    let url = format!("sqlite:{}", scene.path("text.db").display());
    let done = scene.run(&["run", "--url", &url, "lock", "--", "touch", "ran"]);
    assert!([69, 78].contains(&done.code), "{done:?}");
    assert!(done.err.starts_with("distlock: "), "{done:?}");
    assert!(!scene.path("ran").exists());
}

#[test]
fn a_command_that_cannot_start_does_not_queue() {
    let scene = Scene::sqlite();
    std::fs::write(scene.path("data"), "no program").unwrap();
    let _holder = scene.hold(&[], "exec sleep 1000");
    for (command, code) in
        [("no-such-command", 127), ("./none", 127), ("./data", 126), (".", 127), ("./", 126)]
    {
        // It would wait for ever if it stood in line first.
        let done = scene.run(&["run", "lock", "--", command]);
        assert_eq!(done.code, code, "{command} {done:?}");
    }
}

#[test]
fn max_hold_is_124_also_for_a_command_that_ignores_term() {
    let scene = Scene::sqlite();
    for script in ["sleep 1000", "trap '' TERM; while :; do sleep 0.1; done"] {
        let args = ["run", "--max-hold", "1s", "lock", "--", "sh", "-c", script];
        let clock = Clock::system();
        let took = usually(|| {
            let began = clock.now();
            let (took, done) = timed(|| scene.run(&args));
            assert_eq!(done.code, 124, "{done:?}");
            let whole = clock.now().since(began);
            assert!(whole >= Duration::from_millis(850), "{whole:?}");
            took
        });
        assert!(took < Duration::from_millis(2500), "{took:?}");
    }
}

#[test]
fn lost_is_76_or_what_was_chosen() {
    let scene = Scene::sqlite();
    for (args, code) in [(&[][..], 76), (&["--lost-code", "5"], 5)] {
        let _ = std::fs::remove_file(scene.path("pid"));
        let mut holder = scene.hold(args, "exec sleep 1000");
        assert_eq!(scene.run(&["break", "lock"]).code, 0);
        assert_eq!(holder.code(), code);
        assert!(scene.read("holder.log").contains("was lost"), "{}", scene.read("holder.log"));
    }
}
