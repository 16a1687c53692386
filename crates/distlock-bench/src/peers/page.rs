//! The generated parts of the page.

use std::fmt::Write;

use super::contender::{Contender, OURS, RAW, contenders};
use super::record::{Record, Row};
use super::scene::Scene;

fn begin(part: &str) -> String {
    format!("<!-- made from the record: {part} -->\n")
}

const END: &str = "<!-- end -->";

/// The text between a part's marks.
#[cfg(test)]
pub(super) fn part<'a>(page: &'a str, part: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&begin(part))?;
    Some(rest.split_once(END)?.0)
}

/// The page with another text between a part's marks.
pub(super) fn replaced(page: &str, part: &str, text: &str) -> Option<String> {
    let begin = begin(part);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}{text}{END}{after}"))
}

/// As the page calls a contender. Rows of ours are told apart once there are several.
pub(super) fn title(record: &Record, contender: &Contender) -> String {
    let rows = |hand_over| record.rows.iter().any(|row| row.hand_over == Some(hand_over));
    let several = rows(true) && rows(false);
    match (contender.peer, contender.hand_over) {
        (OURS, Some(true)) if several => format!("**{OURS}**, hand-over on"),
        (OURS, Some(false)) if several => format!("**{OURS}**, hand-over off"),
        (OURS, _) => format!("**{OURS}**"),
        (peer, _) => peer.to_owned(),
    }
}

/// Who has a row, in the order of the list.
pub(super) fn present(record: &Record) -> Vec<Contender> {
    let here = |contender: &Contender| record.rows.iter().any(|row| row.is(contender));
    contenders(&record.store).into_iter().filter(here).collect()
}

/// Everything about a store: how it was measured, two tables and who is missing.
pub(super) fn section(record: &Record) -> String {
    let (lengths, machine) = (record.lengths, &record.machine);
    let mut text = String::new();
    #[allow(clippy::cast_precision_loss)]
    let seconds = lengths.run_ms as f64 / 1e3;
    let _ = writeln!(
        text,
        "{} on {} cores ({}), {} GiB, Linux {}; short runs: {} × {seconds} s for each cell.\n",
        record.server,
        machine.cores,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        lengths.turns,
    );
    let _ = writeln!(
        text,
        "![Cycles a second on {}, logarithmic](bench/peers/{}.svg)\n",
        record.store, record.store
    );
    throughput(&mut text, record);
    details(&mut text, record);
    for absence in &record.absent {
        let scene = absence.scene.map_or("", Scene::title);
        let gap = if scene.is_empty() { "" } else { " in " };
        let _ = writeln!(text, "\nNo figures for {}{gap}{scene}: {}.", absence.peer, absence.why);
    }
    text
}

fn throughput(text: &mut String, record: &Record) {
    text.push_str("| cycles a second | language, version |");
    for scene in Scene::ALL {
        let _ = write!(text, " {} |", scene.title());
    }
    text.push_str("\n|---|---|--:|--:|--:|--:|--:|\n");
    for contender in present(record) {
        let version = record.versions.iter().find(|(peer, _)| peer == contender.peer);
        let version = match version {
            Some((_, version)) if contender.peer != RAW => format!(", {version}"),
            _ => String::new(),
        };
        let (title, language) = (title(record, &contender), contender.language.title());
        let _ = write!(text, "| {title} | {language}{version} |");
        for scene in Scene::ALL {
            cell(text, record.row(scene, &contender).map(|row| thousands(row.rate())));
        }
        text.push('\n');
    }
    text.push('\n');
}

/// Latency, fairness and cost.
fn details(text: &mut String, record: &Record) {
    text.push_str(
        "| | solo cycle µs p50 / p99 | 16 tasks: wait ms p50 / p99 | fewest–most | \
         8 processes: wait ms p50 / p99 | fewest–most | 2 × 8: smaller share | \
         server µs a cycle, solo / 16 tasks | client µs | client MiB |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let millis =
        |row: &Row| format!("{} / {}", short(row.wait_p50 / 1e3), short(row.wait_p99 / 1e3));
    let fairness = |row: &Row| format!("{}–{}", row.least, row.most);
    for contender in present(record) {
        let row = |scene| record.row(scene, &contender);
        let both = |figure: fn(&Row) -> f64| {
            let of = |scene| row(scene).map_or("–".to_owned(), |row| short(figure(row)));
            Some(format!("{} / {}", of(Scene::Solo), of(Scene::Tasks)))
        };
        let _ = write!(text, "| {} |", title(record, &contender));
        let solo = |row: &Row| format!("{} / {}", short(row.cycle_p50), short(row.cycle_p99));
        cell(text, row(Scene::Solo).map(solo));
        for scene in [Scene::Tasks, Scene::Processes] {
            cell(text, row(scene).map(millis));
            cell(text, row(scene).map(fairness));
        }
        cell(text, row(Scene::Two).map(|row| format!("{:.0} %", row.smallest_share * 100.0)));
        cell(text, both(|row| row.server_cpu));
        cell(text, both(|row| row.client_cpu));
        cell(text, both(|row| row.memory));
        text.push('\n');
    }
}

fn cell(text: &mut String, value: Option<String>) {
    let _ = write!(text, " {} |", value.unwrap_or_else(|| "–".to_owned()));
}

/// Three digits that count.
pub(super) fn short(n: f64) -> String {
    match n {
        100.0.. => format!("{n:.0}"),
        10.0.. => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

pub(super) fn thousands(n: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let digits = (n.round() as u64).to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::contender::Language;
    use crate::peers::record::{Absence, Lengths, Machine, Tally};

    fn record() -> Record {
        let tally =
            Tally { grants: vec![vec![600, 900]], seconds: 1.0, memory: 12.0, ..Tally::default() };
        let contenders = contenders("etcd");
        let some = contenders.iter().filter(|who| who.hand_over != Some(true)).take(3);
        let rows = some.map(|who| tally.row(Scene::Tasks, who)).collect();
        Record {
            store: "etcd".to_owned(),
            server: "etcd 3".to_owned(),
            machine: Machine::here(),
            lengths: Lengths { turns: 1, warm_ms: 1, run_ms: 1500 },
            versions: vec![(OURS.to_owned(), "distlock 0".to_owned())],
            absent: vec![Absence {
                peer: "concurrency.Mutex".to_owned(),
                scene: None,
                why: "there is no go".to_owned(),
            }],
            rows,
        }
    }

    #[test]
    fn a_section_has_a_row_for_everybody_present_and_a_sentence_for_who_is_not() {
        let text = section(&record());
        assert!(text.contains("| **distlock** | Rust, distlock 0 | – | – | 1,500 | – | – |"));
        assert!(text.contains("| lock service | Rust |"));
        assert!(text.contains("600–900"));
        assert!(!text.contains("| concurrency.Mutex"));
        assert!(text.contains("No figures for concurrency.Mutex: there is no go."));
    }

    #[test]
    fn hand_over_on_and_off_are_told_apart_once_both_are_there() {
        let mut record = record();
        let ours = Contender { peer: OURS, language: Language::Rust, hand_over: Some(false) };
        assert_eq!(title(&record, &ours), "**distlock**");
        let on = Row { hand_over: Some(true), ..record.rows[1].clone() };
        record.rows.push(on);
        assert_eq!(title(&record, &ours), "**distlock**, hand-over off");
    }

    #[test]
    fn a_part_of_the_page_is_replaced_and_nothing_else() {
        let page = "a\n<!-- made from the record: x -->\nold\n<!-- end -->\nb\n";
        assert_eq!(part(page, "x"), Some("old\n"));
        let new = replaced(page, "x", "new\n").unwrap();
        assert_eq!(new, "a\n<!-- made from the record: x -->\nnew\n<!-- end -->\nb\n");
        assert_eq!(replaced(page, "y", "new\n"), None);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(12.0), "12");
        assert_eq!([short(0.123), short(12.34), short(1234.5)], ["0.12", "12.3", "1234"]);
    }
}
