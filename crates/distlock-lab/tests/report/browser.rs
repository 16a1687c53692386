//! The page in a real browser: Debian's Chromium, without a window.

use std::fs;
use std::path::Path;
use std::process::Command;

use distlock_lab::record::{Kind, Run};
use distlock_lab::report::page;

use crate::sample;

/// What the browser made of a page: its document after the scripts ran, and what it complained of.
struct Seen {
    dom: String,
    complaints: Vec<String>,
}

/// Opens a file with a browser that keeps all it writes in `dir`, and waits until it has settled.
fn open(dir: &Path, address: &str, flags: &[&str]) -> Seen {
    // The browser ends by itself; the limit is for a machine on which it hangs.
    let output = Command::new("timeout")
        .args(["--kill-after=10", "300", "chromium", "--headless", "--no-sandbox"])
        .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update"])
        .args(["--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(flags)
        .arg(format!("file://{}/{address}", dir.display()))
        .env("HOME", dir)
        .output()
        .expect("timeout(1) is part of every Debian");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "chromium ended with {}; `cargo xtask setup` installs it\n{log}",
        output.status
    );
    let complaints = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
    Seen {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        complaints: complaints.collect(),
    }
}

/// The page about the sample, in a directory of its own; and a copy to look at.
fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let page = page(&sample::record());
    fs::write(dir.path().join("page.html"), &page).expect("a page");
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html"), page).expect("a copy");
    dir
}

/// The part of the document that is about one run.
fn about(dom: &str, place: usize) -> &str {
    let (_, rest) = dom.split_once(&format!("id=\"run-{place}\"")).expect("the run has a row");
    rest.split_once("</details>").expect("a row ends").0
}

fn bars(part: &str) -> usize {
    part.matches("class=\"hold").count()
}

/// Whether a run has a row: all but the later random rounds.
fn listed(run: &Run) -> bool {
    run.kind != Kind::Random || run.round < 3
}

#[test]
fn every_story_is_there_and_every_run_is_drawn() {
    let dir = written();
    let Seen { dom, complaints } = open(dir.path(), "page.html#all", &[]);
    assert_eq!(complaints, [""; 0]);
    assert!(dom.contains("<p id=\"errors\" hidden=\"\"></p>"), "the page's script stumbled");
    let record = sample::record();
    for (place, story) in record.stories.iter().enumerate() {
        let (_, section) = dom.split_once(&format!("id=\"story-{place}\"")).unwrap();
        let title = section.split_once("<h3>").unwrap().1.split_once("</h3>").unwrap().0;
        let title = title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        assert_eq!(title, story.title);
    }
    for (place, run) in record.runs.iter().enumerate().filter(|(_, run)| listed(run)) {
        let part = about(&dom, place);
        let (what, drawn) = (format!("{} {}", run.store, run.story), bars(part));
        assert_eq!(drawn, run.holds.len().min(1000), "bars of {what}");
        assert_eq!(part.matches("class=\"overlap\"").count(), run.overlaps.len(), "{what}");
        assert_eq!(part.matches("fault-mark fault").count(), run.faults.len(), "{what}");
        let refused = run.writes.iter().filter(|write| !write.accepted).count();
        assert_eq!(part.matches("class=\"refused\"").count(), refused, "{what}");
        let late = part.matches("class=\"went-back\"").count();
        assert_eq!(late, usize::from(run.kind == Kind::Control && run.story == "pause"), "{what}");
        let accepted = (run.writes.len() - refused).min(1000);
        assert_eq!(part.matches("class=\"write ").count(), accepted, "{what}");
    }
    assert!(!dom.contains("NaN") && !dom.contains("undefined"), "a picture has a hole");
}

#[test]
fn a_mark_leads_to_its_picture_and_a_narrow_window_is_enough() {
    let dir = written();
    // The page in a frame as wide as a telephone; a script around it does what a reader would.
    let reader = "<!doctype html><iframe width=400 height=800 src=page.html></iframe><pre></pre>
        <script>
        const frame = document.querySelector('iframe');
        frame.onload = () => {
            const page = frame.contentDocument;
            const mark = [...page.querySelectorAll('.matrix a.mark')]
                .find(mark => !page.querySelector(mark.getAttribute('href')).open);
            mark.click();
            setTimeout(() => {
                const run = page.querySelector(mark.getAttribute('href'));
                const bars = run.querySelectorAll('.hold').length;
                for (let i = 0; i < 4; i++) run.querySelector('button[title=closer]').click();
                const closer = run.querySelectorAll('.hold').length;
                run.querySelector('button.whole').click();
                const whole = run.querySelectorAll('.hold').length;
                const wide = page.documentElement.scrollWidth;
                document.querySelector('pre').textContent =
                    JSON.stringify({ open: run.open, bars, closer, whole, wide });
            }, 500);
        };
        </script>";
    fs::write(dir.path().join("reader.html"), reader).unwrap();
    let seen = open(dir.path(), "reader.html", &["--allow-file-access-from-files"]);
    assert_eq!(seen.complaints, [""; 0]);
    let told = seen.dom.split_once("<pre>").unwrap().1.split_once("</pre>").unwrap().0;
    let told: serde_json::Value = serde_json::from_str(told).expect(&seen.dom);
    assert_eq!(told["open"], true);
    assert_eq!(told["bars"], 3, "{told}");
    assert!(told["closer"].as_u64() < told["bars"].as_u64(), "looking closer hides some: {told}");
    assert_eq!(told["whole"], told["bars"]);
    assert!(told["wide"].as_u64().unwrap() <= 400, "the page is wider than its window: {told}");
}

#[test]
fn the_tables_need_no_script() {
    let dir = written();
    // A frame that may not run scripts, and a script around it that reads what is in it.
    let reader =
        "<!doctype html><iframe sandbox=allow-same-origin src=page.html></iframe><main></main>
        <script>
        const frame = document.querySelector('iframe');
        frame.onload = () => {
            document.querySelector('main').innerHTML = frame.contentDocument.body.innerHTML;
        };
        </script>";
    fs::write(dir.path().join("reader.html"), reader).expect("a page");
    let Seen { dom, .. } = open(dir.path(), "reader.html", &["--allow-file-access-from-files"]);
    let (_, rest) = dom.split_once("<table class=\"matrix\"").expect("the matrix is there");
    let (matrix, _) = rest.split_once("</table>").expect("it ends");
    assert_eq!(matrix.matches("<th scope=\"row\"").count(), sample::record().stories.len());
    assert!(matrix.contains("two holders, as expected; fence held"));
    assert!(dom.contains("ended as expected"));
    assert_eq!(bars(&dom), 0, "scripts were on: this test says nothing");
}
