//! The mutations: each breaks one law, and the test named beside it must go red.

/// One deliberate bug.
pub(crate) struct Mutation {
    /// What it breaks.
    pub(crate) name: &'static str,
    /// The file, from the workspace's root.
    pub(crate) file: &'static str,
    /// The text that is replaced; it must stand there exactly once.
    pub(crate) old: &'static str,
    /// What replaces it.
    pub(crate) new: &'static str,
    /// The package whose tests are run.
    pub(crate) package: &'static str,
    /// The test target: `--lib`, or the name of an integration test.
    pub(crate) target: &'static str,
    /// The test that must go red.
    pub(crate) test: &'static str,
}

pub(crate) const MUTATIONS: &[Mutation] = &[];
