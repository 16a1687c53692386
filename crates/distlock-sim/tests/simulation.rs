//! Random programs over each family: see `distlock_sim`.

use distlock_sim::{Family, Program, check, shrink, sweep};

fn number(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(n) => n.parse().unwrap_or_else(|_| panic!("{name}={n}: not a number")),
        Err(_) => usual,
    }
}

fn simulate(family: Family) {
    let first = number("DISTLOCK_SIM_SEED", 0);
    let programs = number("DISTLOCK_SIM_PROGRAMS", 100_000);
    if let Err((seed, failure)) = sweep(family, first..first + programs) {
        let small = shrink(&failure);
        panic!("{family:?}, seed {seed}: {}: {}\n{small}", failure.broken.law, failure.broken.how);
    }
}

#[test]
fn lease() {
    simulate(Family::Lease);
}

#[test]
fn line() {
    simulate(Family::Queue);
}

#[test]
fn session() {
    simulate(Family::Session);
}

#[test]
fn quorum() {
    simulate(Family::Quorum);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for family in [Family::Lease, Family::Queue, Family::Session, Family::Quorum] {
        for seed in 0..200 {
            let trace = || match check(&Program::new(family, seed), true) {
                Ok(polls) => vec![polls.to_string()],
                Err(failure) => failure.trace,
            };
            assert_eq!(trace(), trace(), "{family:?}, seed {seed}");
        }
    }
}
