//! `distlock check`: a real lock on the real store, and what the store promises.

use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Owner, Released};
use serde_json::{Map, Value, json};

use crate::{Done, Everywhere, Failure, Printer, Status, store, view::seconds, wait};

/// The verb.
pub(crate) async fn check(all: &Everywhere, printer: Printer) -> Done {
    store::note_default(all, printer);
    // A quorum works while a minority of its nodes refuses us; a check should tell.
    printer.warnings();
    let clock = Clock::system();
    let began = clock.now();
    let locks = store::connect(all).await?;
    let connected = clock.now();
    // A name that nobody else can mean.
    let name = format!("distlock-check/{}", Owner::new());
    // As long as the store grants, and not silently when it grants nothing yet.
    let ttl = Duration::from_secs(10).min(locks.capability().ttl_max);
    let lock = locks.lock(&name).ttl(ttl);
    let lock = lock.on_wait(move |status| printer.note(format!("waiting: {status}")));
    let guard = lock.acquire().await?;
    let token = guard.token();
    let acquired = clock.now();
    let released = guard.release().await?;
    let done = clock.now();
    let site = locks.site().to_owned();
    let promises = promises(&serde_json::to_value(locks.capability()).unwrap_or_default());
    wait::close(&locks).await;
    if released == Released::WasLost {
        return Err(Failure::new(Status::LOST, "the lock was lost within its first moments")
            .hint("the store gives up locks early: look at its clock and its configuration"));
    }
    let times = [
        ("connect", connected.since(began)),
        ("acquire", acquired.since(connected)),
        ("release", done.since(acquired)),
    ];
    printer.data(
        || {
            let default_store = store::is_default(all);
            let mut document = json!({
                "store": site, "default_store": default_store, "token": token, "capability": promises,
            });
            for (what, d) in times {
                document[format!("{what}_seconds")] = json!(seconds(d));
            }
            document
        },
        || {
            let [connect, acquire, release] = times.map(|(_, d)| d.as_secs_f64() * 1e3);
            let mut lines = vec![
                format!("{site} works (token {token})"),
                format!(
                    "connect {connect:.2} ms, acquire {acquire:.2} ms, release {release:.2} ms"
                ),
            ];
            lines.extend(promises.iter().flat_map(|(key, value)| line(key, value)));
            lines.join("\n")
        },
    )
}

/// The capability with durations as seconds and the unit in their names.
fn promises(capability: &Value) -> Map<String, Value> {
    let Value::Object(fields) = capability else { return Map::new() };
    let field = |(key, value): (&String, &Value)| match (&value["secs"], &value["nanos"]) {
        (Value::Number(s), Value::Number(n)) => {
            let d = Duration::new(s.as_u64().unwrap_or(0), n.as_u64().unwrap_or(0) as u32);
            (format!("{key}_seconds"), json!(seconds(d)))
        }
        _ => (key.clone(), value.clone()),
    };
    fields.iter().map(field).collect()
}

fn line(key: &str, value: &Value) -> Vec<String> {
    let key = key.replace('_', " ");
    let row = |text: &str| format!("  {key:20} {text}");
    match value {
        Value::String(text) => vec![row(text)],
        Value::Bool(b) => vec![row(if *b { "yes" } else { "no" })],
        Value::Array(all) => all.iter().filter_map(Value::as_str).map(row).collect(),
        other => vec![row(&other.to_string())],
    }
}
