//! `distlock advise`: answers without a store.

use distlock::fence::advice::ADVICE;
use serde_json::Value;

use crate::scene::Scene;

#[test]
fn the_whole_table_and_one_question_of_it() {
    let scene = Scene::memory();
    let all = scene.run(&["advise"]);
    assert_eq!(all.code, 0);
    assert!(all.out.starts_with("EFFECT"), "{}", all.out);
    let (table, code) = all.out.split_once("\n\n").unwrap();
    assert_eq!(table.lines().count(), 1 + ADVICE.len());
    for row in ADVICE {
        assert!(table.contains(row.answer), "{}", row.answer);
        let last = row.code.lines().last().unwrap();
        assert!(code.contains(&format!("    {last}\n")), "{last}");
    }
    let one = scene.run(&["advise", "--effect", "once", "--resource", "mysql"]);
    assert_eq!(one.code, 0);
    assert!(one.out.contains("    match mysql::once(&mut tx"), "{}", one.out);
    assert!(!one.out.contains("SKIP LOCKED"), "{}", one.out);
}

#[test]
fn machines_get_a_document_a_line() {
    let scene = Scene::memory();
    let found = scene.run(&["advise", "--effect", "work-queue", "--json"]);
    let rows: Vec<Value> =
        found.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 3, "{rows:?}");
    assert!(rows.iter().all(|row| row["effect"] == "work-queue" && row["code"].is_string()));
    assert_eq!(rows[0]["lock"], "no");
    assert_eq!(rows[0]["resources"][1], "postgres");
}

#[test]
fn a_word_it_does_not_know_is_wrong_usage_that_lists_the_known_ones() {
    let scene = Scene::memory();
    let odd = scene.run(&["advise", "--effect", "fly"]);
    assert_eq!(odd.code, 64);
    assert!(odd.err.contains("work-queue") && odd.err.contains("one-row"), "{}", odd.err);
}
