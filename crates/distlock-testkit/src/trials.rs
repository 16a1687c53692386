//! The tests of a store's own, in one program that can be started again as a second process.

use libtest_mimic::{Arguments, Conclusion, Trial};

/// A test with its name.
pub type Named = (&'static str, fn());

/// Runs the tests that the command line asks for, so many at once: one a core unless said
/// otherwise. Tests mostly wait, so more are fine, but servers that start are work.
pub fn trials(at_once: Option<usize>, parts: &[&'static [Named]]) -> Conclusion {
    let mut args = Arguments::from_args();
    args.test_threads = args.test_threads.or(at_once);
    let trial = |(name, test): &Named| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    let all = parts.iter().copied().flatten().map(trial).collect();
    libtest_mimic::run(&args, all)
}
