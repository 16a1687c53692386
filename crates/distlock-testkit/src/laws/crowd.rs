//! What many cost.

use std::time::Duration;

use distlock_core::capability::Family;

use crate::StoreUnderTest;
use crate::child::Child;
use crate::wait::AGES;

const WAITERS: usize = 1000;
/// Twice the shared heartbeat of waiters and a little: what is quiet must be so over both.
const QUIET: Duration = Duration::from_millis(7500);
const NAMES: usize = 10_000;
/// What a name may cost until its tombstone is forgotten.
const BYTES_A_NAME: u64 = 2048;

/// Tells glibc's allocator to give back what is not in use, in one arena: what a process then has
/// resident is what its waiters use, not what an allocator keeps for later.
const GIVES_BACK: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "32768"),
    ("MALLOC_TRIM_THRESHOLD_", "32768"),
    ("MALLOC_TOP_PAD_", "0"),
];

fn place<'a>(site: &'a StoreUnderTest, args: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut args = args.to_vec();
    if site.suite().by_url.is_some() {
        args.push(("url", site.url()));
    }
    args
}

/// A thousand tasks that wait for one name cost under 4 KiB each (8 where each has a watch of its
/// own at a server) and under a hundredth of a core while nothing happens, and are then served in
/// order. Measured in a process of its own.
pub async fn a_thousand_waiters_cost_little(site: &StoreUnderTest) {
    let (name, n, quiet) = (site.name(), WAITERS.to_string(), QUIET.as_millis().to_string());
    let args = [("name", name.as_str()), ("waiters", &n), ("quiet", &quiet)];
    let mut child = Child::start_with("crowd", &place(site, &args), &GIVES_BACK);
    let cost = child.hear_for(AGES, "cost").await;
    let (bytes, share) = cost.split_once(' ').expect("two numbers");
    let (bytes, share): (u64, u64) =
        (bytes.parse().expect("a number"), share.parse().expect("a number"));
    eprintln!("{n} waiters: {bytes} bytes each, {share} millionths of a core while quiet");
    let watched = site.capability().family == Family::Queue && site.suite().by_url.is_some();
    assert!(bytes < if watched { 8192 } else { 4096 }, "{bytes} bytes a waiter");
    assert!(share < 10_000, "{share} millionths of a core while nothing happens");
    assert_eq!(child.hear_for(AGES, "order").await, "ok");
    child.ended_well().await;
}

/// Ten thousand names, used once each, leave no descriptors and threads behind, and no memory
/// beyond what is remembered of each for a minute.
pub async fn s42_ten_thousand_names_leave_nothing(site: &StoreUnderTest) {
    let n = NAMES.to_string();
    let mut child = Child::start("one-shot", &place(site, &[("names", &n)]));
    let grown = child.hear_for(AGES, "grown").await;
    let grown: Vec<u64> = grown.split(' ').map(|n| n.parse().expect("a number")).collect();
    eprintln!("{n} names: grown by {grown:?} (descriptors, threads, bytes, still listed)");
    assert!(grown[0] <= 4, "{} descriptors stayed", grown[0]);
    assert!(grown[1] <= 2, "{} threads stayed", grown[1]);
    assert!(grown[2] < NAMES as u64 * BYTES_A_NAME, "{} bytes stayed", grown[2]);
    assert_eq!(grown[3], 0, "names are still listed");
    child.ended_well().await;
}
