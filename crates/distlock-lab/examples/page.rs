//! `cargo run --package distlock-lab --example page -- lab-1.json lab-2.json > lab.html`: one page of
//! several runs of the lab, the earliest first.

use std::process::ExitCode;

use distlock_lab::record::Record;
use distlock_lab::report;

fn main() -> ExitCode {
    let mut all = Record::default();
    for file in std::env::args().skip(1) {
        let read = std::fs::read_to_string(&file).map_err(|e| e.to_string());
        let record = read.and_then(|json| serde_json::from_str(&json).map_err(|e| e.to_string()));
        match record {
            Ok(record) => all = report::merge(all, record),
            Err(e) => {
                eprintln!("cannot read the record {file}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{}", report::page(&all));
    ExitCode::SUCCESS
}
