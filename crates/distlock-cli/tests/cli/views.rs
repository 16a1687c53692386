//! ls, show, watch, break, check; and where the store's URL comes from.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::scene::{Done, Running, Scene};

#[test]
fn ls_and_show_name_holders_and_the_line() {
    let scene = Scene::sqlite();
    assert_eq!(scene.run(&["ls"]).out, "");
    let _holder = scene.hold(&["--label", "the holder"], "exec sleep 1000");
    let _first = scene.start("first.log", &["run", "--label", "first", "lock", "--", "true"]);
    scene.waiting("lock", 1);
    let _second = scene.start("second.log", &["run", "--label", "second", "lock", "--", "true"]);
    scene.waiting("lock", 2);
    scene.says("second.log", "1 ahead in line");
    let table = scene.run(&["ls"]).out;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("NAME") && lines[1].starts_with("lock"), "{table}");
    assert!(lines[1].contains("the holder") && !table.contains('\x1b'), "{table}");
    assert_eq!(scene.run(&["ls", "other"]).out, "");
    let doc: serde_json::Value =
        serde_json::from_str(scene.run(&["ls", "lo", "--json"]).out.trim()).unwrap();
    assert_eq!(doc["name"], "lock");
    assert!(doc["holders"][0]["token"].is_string() && doc["holders"][0]["age_seconds"].is_f64());
    let text = scene.run(&["show", "lock"]).out;
    let (first, second) = (text.find("first").unwrap(), text.find("second").unwrap());
    assert!(text.contains("the holder") && first < second, "{text}");
    assert_eq!(scene.run(&["show", "free"]).out, "free is free\n");
}

#[test]
fn looking_creates_nothing() {
    for (scheme, path) in [("sqlite", "typo/x.db"), ("file", "typo/locks")] {
        let scene = Scene::memory();
        let url = format!("{scheme}:{}", scene.path(path).display());
        for verb in [&["ls"][..], &["ls", "--json"], &["show", "lock"], &["break", "lock"]] {
            let mut args = vec!["--url", &url];
            args.extend(verb);
            let done = scene.run(&args);
            assert_eq!((done.code, done.out.as_str()), (69, ""), "{args:?} {done:?}");
            assert!(done.err.contains(path) && done.err.contains("hint: "), "{done:?}");
        }
        let args = ["--url", &url, "watch", "--interval", "10ms"];
        let _watch = scene.start("watch.log", &args);
        scene.says("watch.log", "not there yet");
        assert!(!scene.path("typo").exists(), "{url}");
        // The first lock creates it, and then there is something to look at.
        assert_eq!(scene.run(&["--url", &url, "run", "lock", "--", "true"]).code, 0);
        let done = scene.run(&["--url", &url, "ls"]);
        assert!(done.code == 0 && done.err.contains("nothing is held"), "{done:?}");
    }
}

#[test]
fn looking_at_a_database_makes_no_sockets_and_no_tables() {
    let scene = Scene::sqlite();
    assert_eq!(scene.run(&["run", "lock", "--", "true"]).code, 0);
    let sockets = scene.path("locks.db.distlock");
    std::fs::remove_dir_all(&sockets).unwrap();
    assert_eq!(scene.run(&["ls"]).code, 0);
    assert!(!sockets.exists());
    let url = format!("sqlite:{}", scene.path("empty.db").display());
    std::fs::write(scene.path("empty.db"), "").unwrap();
    assert_eq!(scene.run(&["--url", &url, "ls"]).code, 69);
    assert_eq!(scene.read("empty.db"), "");
}

#[test]
fn a_default_store_that_was_never_used_is_empty_and_stays_away() {
    let scene = Scene::memory();
    let look = |args: &[&str]| -> Done {
        scene.distlock(args).env_remove("DISTLOCK_URL").output().unwrap().into()
    };
    for verb in [&["ls"][..], &["show", "lock"], &["break", "lock"]] {
        let done = look(verb);
        assert!(done.code == 0 && done.err.contains("not there yet"), "{done:?}");
    }
    assert!(look(&["show", "lock"]).out.contains("lock is free"));
    assert!(!scene.path("state").exists());
}

#[test]
fn namespaces_keep_apart() {
    let scene = Scene::sqlite();
    let _holder = scene.hold(&["--namespace", "shop"], "exec sleep 1000");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
    let mut same = scene.distlock(&["run", "-n", "lock", "--", "true"]);
    assert_eq!(same.env("DISTLOCK_NAMESPACE", "shop").status().unwrap().code(), Some(75));
    assert_eq!(scene.run(&["--namespace", "a/b", "ls"]).code, 64);
}

#[test]
fn watch_prints_changes_as_they_happen() {
    let scene = Scene::sqlite();
    let mut command = scene.distlock(&["watch", "lo", "--interval", "20ms"]);
    let mut watch = Running::from(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let mut holder = scene.hold(&["--label", "me"], "until [ -e go ]; do sleep 0.02; done");
    let held = next();
    assert!(held.contains(" held ") && held.ends_with(" me"), "{held}");
    let waiter = scene.start("waiter.log", &["run", "lock", "--", "true"]);
    assert!(next().contains(" waiting lock 1"));
    drop(waiter);
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(holder.code(), 0);
    loop {
        let line = next();
        if line.contains(" freed ") && line.ends_with(" me") {
            break;
        }
    }
}

#[test]
fn break_looks_first() {
    let scene = Scene::sqlite();
    assert_eq!(scene.run(&["run", "lock", "--", "true"]).code, 0);
    let nothing = scene.run(&["break", "lock"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (0, ""));
    assert!(nothing.err.contains("nothing to break"), "{nothing:?}");
    let mut holder = scene.hold(&[], "exec sleep 1000");
    let token = scene.show("lock")["holders"][0]["token"].as_str().unwrap().to_owned();
    let wrong = scene.run(&["break", "lock", "--token", "1"]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains(&token), "{wrong:?}");
    let now = scene.run(&["break", "lock", "--token", &token, "--now"]);
    assert_eq!(now.code, 0, "{now:?}");
    assert!(now.out.contains("two at once are possible"), "{now:?}");
    assert_eq!(scene.run(&["run", "-n", "lock", "--", "true"]).code, 0);
    assert_eq!(holder.code(), 76);
}

#[test]
fn check_says_that_it_creates_the_store() {
    let scene = Scene::sqlite();
    assert!(!scene.path("locks.db").exists());
    assert_eq!(scene.run(&["check"]).code, 0);
    assert!(scene.path("locks.db").exists());
    let help = scene.run(&["check", "--help"]).out;
    assert!(help.contains("is created"), "{help}");
}

#[test]
fn check_tries_the_store_and_prints_what_it_promises() {
    for scene in [Scene::sqlite(), Scene::file(), Scene::memory()] {
        let text = scene.run(&["check"]);
        assert_eq!(text.code, 0, "{text:?}");
        assert!(text.out.contains("works") && text.out.contains("fence"), "{text:?}");
        let json = scene.run(&["check", "--json"]);
        let doc: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert!(doc["acquire_seconds"].is_f64() && doc["capability"]["fence"].is_string());
        assert_eq!(doc["default_store"], false);
        // It leaves nothing behind.
        assert_eq!(scene.run(&["ls"]).out, "");
    }
}

#[test]
fn the_default_store_works_and_says_whom_it_excludes() {
    let scene = Scene::sqlite();
    for (args, said) in [
        (&["run", "lock", "--", "true"][..], true),
        (&["run", "-q", "lock", "--", "true"], false),
        (&["check"], true),
        (&["ls"], false),
    ] {
        let mut command = scene.distlock(args);
        let done: crate::scene::Done = command.env_remove("DISTLOCK_URL").output().unwrap().into();
        assert_eq!(done.code, 0, "{done:?}");
        let text = "only processes of the same user on the same host";
        assert_eq!(done.err.contains(text), said, "{args:?} {done:?}");
    }
    assert!(scene.path("state/distlock/locks.db").exists());
}

#[test]
fn the_url_may_come_from_a_file_and_passwords_are_never_printed() {
    let scene = Scene::sqlite();
    std::fs::write(scene.path("url"), format!("{}\nsecond line\n", scene.url())).unwrap();
    let mut command = scene.distlock(&["run", "lock", "--", "true"]);
    command.env_remove("DISTLOCK_URL").env("DISTLOCK_URL_FILE", scene.path("url"));
    let done: crate::scene::Done = command.output().unwrap().into();
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    assert!(scene.path("locks.db").exists());
    let mut command = scene.distlock(&["ls"]);
    command.env_remove("DISTLOCK_URL").env("DISTLOCK_URL_FILE", scene.path("none"));
    assert_eq!(command.status().unwrap().code(), Some(64));
    for url in ["nostore://me:hunter2@host/", "nostore://me:hunter2@[bad", "sqlite://me:hunter2@h"]
    {
        for args in
            [&["-vv", "ls", "--url", url][..], &["-v", "run", "--url", url, "x", "--", "true"]]
        {
            let done = scene.run(args);
            assert_ne!(done.code, 0);
            assert!(!format!("{done:?}").contains("hunter2"), "{done:?}");
        }
        for verb in ["--help", "run"] {
            let mut command = scene.distlock(&[verb]);
            let done: crate::scene::Done =
                command.env("DISTLOCK_URL", url).output().unwrap().into();
            assert!(!format!("{done:?}").contains("hunter2"), "{done:?}");
        }
    }
}

#[test]
fn options_stand_before_or_after_the_verb() {
    let scene = Scene::memory();
    let sqlite = format!("sqlite:{}", scene.path("own.db").display());
    for args in [
        ["--url", &sqlite, "run", "lock", "--", "true"],
        ["run", "--url", &sqlite, "lock", "--", "true"],
        ["run", "lock", "--url", &sqlite, "--", "true"],
    ] {
        let _ = std::fs::remove_file(scene.path("own.db"));
        assert_eq!(scene.run(&args).code, 0);
        assert!(scene.path("own.db").exists(), "{args:?}");
    }
    let loud = scene.run(&["run", "-v", "lock", "--", "true"]);
    assert!(loud.err.contains("granted") && !loud.err.contains('\x1b'), "{loud:?}");
}

#[test]
fn an_empty_label_is_the_default_one() {
    let scene = Scene::sqlite();
    assert_eq!(scene.run(&["acquire", "lock", "--label", ""]).code, 0);
    let shown = scene.show("lock");
    let label = shown["holders"][0]["label"].as_str().unwrap();
    assert!(label.contains("pid "), "{label}");
}

#[test]
fn a_url_that_cannot_be_read_is_not_taken_for_none() {
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::sqlite();
    for name in ["DISTLOCK_URL", "DISTLOCK_URL_FILE", "DISTLOCK_NAMESPACE"] {
        let mut command = scene.distlock(&["ls"]);
        if name == "DISTLOCK_URL_FILE" {
            command.env_remove("DISTLOCK_URL");
        }
        let output = command.env(name, std::ffi::OsStr::from_bytes(b"a\xff")).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{name}");
    }
}
