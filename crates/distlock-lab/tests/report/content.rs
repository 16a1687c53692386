//! What is in the page, read as text, and how records become one.

use distlock_lab::record::{Expect, Kind, Overlap, Record, Verdict, Violation};
use distlock_lab::report::{merge, page};

use crate::sample::{self, HOSTILE};

/// The data the page's script draws from, parsed as the browser will.
fn data(page: &str) -> serde_json::Map<String, serde_json::Value> {
    let (_, rest) = page.split_once("id=\"runs\">").expect("the page carries data");
    let (json, _) = rest.split_once("</script>").expect("the data ends");
    serde_json::from_str(json).expect("the data is JSON")
}

#[test]
fn the_record_keeps_its_shape() {
    let json = serde_json::to_value(sample::record()).unwrap();
    let run = &json["runs"][0];
    assert_eq!((&run["kind"], &run["expect"]), (&"story".into(), &"clean".into()));
    assert_eq!(run["verdict"], "as-expected");
    assert_eq!(run["holds"][0]["end"], "expired");
    assert_eq!(json["runs"][1]["violations"][0]["checker"], "C3");
    assert_eq!(serde_json::from_value::<Record>(json).unwrap(), sample::record());
}

#[test]
fn strange_names_stay_text() {
    let record = sample::record();
    let page = page(&record);
    assert!(!page.contains("<b onload"), "a name became a tag");
    assert_eq!(page.matches("</script>").count(), 2, "a name ended a script");
    assert!(page.contains("&lt;b onload=&#39;x&#39;&gt;&amp;{{data}}"));
    let drawn = data(&page);
    let random = record.runs.iter().position(|run| run.kind == Kind::Random).unwrap();
    assert_eq!(drawn[&random.to_string()]["locks"][2], HOSTILE);
}

#[test]
fn nothing_is_fetched_from_elsewhere() {
    let page = page(&sample::record());
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "<link", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn tokens_beyond_the_numbers_of_javascript_are_text() {
    let mut record = sample::record();
    record.runs.truncate(1);
    record.runs[0].holds[2].token = (1 << 62) + 1;
    let tokens = data(&page(&record))["0"]["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap().last().unwrap(), &((1_u64 << 62) + 1).to_string());
}

#[test]
fn the_page_says_how_it_ended() {
    let mut record = sample::record();
    let good = page(&record);
    let all = format!("All {} runs on 12 stores ended as expected.", record.runs.len());
    assert!(good.contains(&all), "the good news is missing");
    assert!(good.contains("none got in out of order"));
    assert!(good.contains("two holders, as expected; fence held (1 late write refused)"));
    assert!(!good.contains("class=\"mark bad\" href"));

    // A fenced write that goes back, in a run that had to be clean.
    let late = record.runs[0].writes.iter_mut().find(|write| !write.accepted).unwrap();
    late.accepted = true;
    let at = Some(late.at);
    record.runs[0].verdict = Verdict::Unexpected;
    // The tokens alone are no proof: the write may have gone to another resource of the same lock.
    assert!(page(&record).contains("none got in out of order"));
    let (checker, what) = ("C3".to_owned(), "an older holder's write was taken".to_owned());
    record.runs[0].violations = vec![Violation { checker, what, at }];
    let bad = page(&record);
    assert!(bad.contains(&format!("<strong>1 of {} runs on 12 stores did not", record.runs.len())));
    assert!(bad.contains("In 1 run a late write got past the fence, and must not have."));
    assert!(bad.contains("class=\"mark bad\" href=\"#run-0\""));
}

#[test]
fn a_control_that_finds_nothing_is_shown_as_such() {
    let mut run = sample::empty("redis", "pause", Kind::Control);
    (run.expect, run.verdict) = (Expect::Violates, Verdict::Unexpected);
    let page = page(&Record { runs: vec![run], ..Record::default() });
    assert!(page.contains("unexpected: nothing went wrong, and it had to"));
}

#[test]
fn the_short_answer_tells_controls_from_the_store_itself() {
    let answer = |kind, expect, verdict| {
        let mut run = sample::empty("redlock", "jump", kind);
        (run.expect, run.verdict) = (expect, verdict);
        run.overlaps = vec![Overlap { lock: 0, from: 1, until: 2 }];
        page(&Record { runs: vec![run], ..Record::default() })
    };
    let (clean, violates) = (Expect::Clean, Expect::Violates);
    let (expected, unexpected) = (Verdict::AsExpected, Verdict::Unexpected);
    assert!(answer(Kind::Control, violates, expected).contains(">Only in controls<"));
    assert!(answer(Kind::Story, violates, expected).contains(">Yes, where expected<"));
    assert!(answer(Kind::Story, clean, expected).contains(">Yes, where expected<"));
    assert!(answer(Kind::Story, clean, unexpected).contains(">Yes, and it must not<"));
}

#[test]
fn the_page_stays_small_however_long_the_lab_ran() {
    let mut record = sample::record();
    let random: Vec<_> = record.runs.iter().filter(|r| r.kind == Kind::Random).cloned().collect();
    for round in 6..400 {
        for run in random.iter().filter(|run| run.round == 0) {
            let mut run = run.clone();
            run.round = round;
            // One store always fails: it must not push the others out of the page.
            if run.store == "memcached" {
                run.verdict = Verdict::Unexpected;
            }
            record.runs.push(run);
        }
    }
    let page = page(&record);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let drawn = data(&page);
    for (place, run) in record.runs.iter().enumerate() {
        if run.kind != Kind::Random {
            assert!(drawn.contains_key(&place.to_string()), "{} {}", run.store, run.story);
        }
        if let Some(run) = drawn.get(&place.to_string()) {
            assert!(run["holds"].as_array().unwrap().len() <= 1000);
        }
    }
    let rounds =
        drawn.keys().filter(|k| record.runs[k.parse::<usize>().unwrap()].kind == Kind::Random);
    assert_eq!(rounds.count(), 12 * 3 + 50);
}

#[test]
fn one_page_of_several_runs_of_the_lab() {
    let earlier = sample::record();
    let mut later = sample::record();
    (later.version, later.seed) = ("0.2.0".to_owned(), 7);
    later.started = "2026-11-16T08:00:00Z".to_owned();
    later.runs[0].said = "better now".to_owned();
    let mut fresh = sample::empty("consul", "pause", Kind::Story);
    fresh.seed = 1;
    later.runs.push(fresh);
    later.stores.push("consul".to_owned());

    let merged = merge(earlier.clone(), later.clone());
    assert_eq!(merged.runs.len(), earlier.runs.len() + 1, "the same run counts once");
    assert_eq!(merged.runs[0].said, "better now", "the later wins");
    assert_eq!(merged.runs.last().unwrap().store, "consul");
    assert_eq!((merged.seed, merged.started.as_str()), (7, "2026-11-16T08:00:00Z"));
    assert_eq!(merged.version, "0.1.0, 0.2.0");
    assert_eq!(merged.stores.len(), 13);
    assert_eq!(merged.stories, earlier.stories);
    assert_eq!(merge(merged.clone(), later), merged, "merging again changes nothing");
    // Another round, or another seed, is another run.
    let mut other = earlier.clone();
    other.runs.truncate(2);
    (other.runs[0].round, other.runs[1].seed) = (5, 5);
    assert_eq!(merge(earlier.clone(), other).runs.len(), earlier.runs.len() + 2);
    assert_eq!(merge(Record::default(), earlier.clone()), earlier);
    // Two acts of one story, alike but for what came of them.
    let mut acts = earlier.clone();
    acts.runs.truncate(1);
    acts.runs.push(acts.runs[0].clone());
    acts.runs[1].said = "the second act".to_owned();
    assert_eq!(merge(acts.clone(), acts.clone()), acts);
}
