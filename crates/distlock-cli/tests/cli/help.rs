//! Help teaches; help, man page and completions come from one definition.

use crate::scene::Scene;

const VERBS: [&str; 13] = [
    "run",
    "acquire",
    "renew",
    "release",
    "ls",
    "show",
    "watch",
    "break",
    "check",
    "advise",
    "schema",
    "completions",
    "man",
];

#[test]
fn the_help_of_every_verb_has_an_example() {
    let scene = Scene::memory();
    let all = scene.run(&["--help"]);
    assert_eq!(all.code, 0);
    for word in ["DISTLOCK_URL_FILE", "75", "124", "age_seconds"] {
        assert!(all.out.contains(word), "{word}");
    }
    for store in distlock::stores() {
        let scheme = store.url.split(':').next().unwrap();
        // One that lives in the process is of no use to a command.
        assert!(scheme == "memory" || all.out.contains(&format!("{scheme}:")), "{scheme}");
    }
    for verb in VERBS {
        assert!(all.out.contains(&format!("  {verb} ")), "{verb}");
        let help = scene.run(&[verb, "--help"]);
        assert_eq!(help.code, 0);
        let (_, examples) = help.out.split_once("Example").unwrap_or_else(|| panic!("{help:?}"));
        assert!(examples.contains(&format!("distlock {verb} ")), "{help:?}");
    }
    assert_eq!(scene.run(&["--version"]).code, 0);
}

#[test]
fn completions_and_manual_pages_are_made() {
    let scene = Scene::memory();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = scene.run(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.out.contains("max-hold") && done.out.contains("acquire"), "{shell}");
    }
    assert_eq!(scene.run(&["completions", "tcsh"]).code, 64);
    let page = scene.run(&["man"]).out;
    assert!(page.contains(".TH distlock 1") && page.contains("DISTLOCK_URL_FILE"), "{page}");
    for verb in VERBS {
        let page = scene.run(&["man", verb]);
        assert_eq!(page.code, 0);
        assert!(page.out.contains("Example") && page.out.contains("\\-\\-url"), "{page:?}");
    }
    assert_eq!(scene.run(&["man", "fly"]).code, 64);
}

#[test]
fn the_completions_of_bash_are_a_script_that_bash_reads() {
    let scene = Scene::memory();
    let line = "distlock completions bash > c && bash -n c";
    assert_eq!(scene.shell(line).status().unwrap().code(), Some(0));
}
