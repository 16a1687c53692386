//! Runs the programs of many seeds and counts what they break, instead of stopping at the first.
//!
//! `survey FAMILY FIRST COUNT` counts; `survey FAMILY SEED` shrinks one and prints its trace.

use std::collections::BTreeMap;

use distlock_sim::{Family, Program, check, shrink};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|n| n.parse::<u64>().ok());
    let family = match args.first().map(String::as_str) {
        Some("lease") => Family::Lease,
        Some("line") => Family::Queue,
        Some("session") => Family::Session,
        Some("quorum") => Family::Quorum,
        _ => panic!("survey lease|line|session|quorum SEED [COUNT]"),
    };
    let first = number(1).unwrap_or(0);
    let Some(count) = number(2) else {
        match check(&Program::new(family, first), true) {
            Ok(polls) => println!("nothing is broken; {polls} polls"),
            Err(failure) if args.get(2).is_some() => println!("{failure}"),
            Err(failure) => println!("{}", shrink(&failure)),
        }
        return;
    };
    let (mut laws, mut polls) = (BTreeMap::<&str, Vec<(u64, usize)>>::new(), 0);
    for seed in first..first + count {
        match check(&Program::new(family, seed), false) {
            Ok(n) => polls += n,
            Err(f) => laws.entry(f.broken.law).or_default().push((seed, f.program.size())),
        }
    }
    println!("{family:?}: seeds {first} to {}, {} polls a program", first + count, polls / count);
    for (law, mut seeds) in laws {
        seeds.sort_by_key(|(_, size)| *size);
        let some: Vec<String> = seeds.iter().take(12).map(|(s, _)| s.to_string()).collect();
        println!("  {:>7} × {law}: {}", seeds.len(), some.join(" "));
    }
}
