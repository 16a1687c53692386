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

pub(crate) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "deadline from the reply",
        file: "crates/distlock-core/src/leased.rs",
        old: "                tokens,\n                sent,\n                ttl: left,",
        new: "                tokens,\n                sent: { let _ = sent; self.clock().now() },\n                ttl: left,",
        package: "distlock-core",
        target: "--lib",
        test: "a_deadline_counts_from_before_the_question_not_from_the_answer",
    },
    Mutation {
        name: "deadline of a replay from its own TTL",
        file: "crates/distlock-core/src/state/step.rs",
        old: "            remaining: hold.expires.since(now),\n            waiters: self.waiters(),",
        new: "            remaining: hold.claim.ttl,\n            waiters: self.waiters(),",
        package: "distlock-core",
        target: "--lib",
        test: "a_replayed_grant_is_good_only_for_what_is_left",
    },
    Mutation {
        name: "a renewal after the deadline brings the guard back",
        file: "crates/distlock-core/src/hold.rs",
        old: "        if self.check(Duration::ZERO).is_ok() {\n            self.deadline",
        new: "        if true {\n            self.deadline",
        package: "distlock-core",
        target: "--lib",
        test: "a_renewal_acknowledged_after_the_deadline_does_not_bring_a_hold_back",
    },
    Mutation {
        name: "lost that does not latch",
        file: "crates/distlock-core/src/hold.rs",
        old: "        if let Some(why) = self.lost.get() {\n            return fail(*why);\n        }",
        new: "",
        package: "distlock-core",
        target: "--lib",
        test: "a_stolen_lock_is_lost_at_the_next_renewal_and_stays_lost",
    },
    Mutation {
        name: "a renewal call for each hold",
        file: "crates/distlock-core/src/keeper.rs",
        old: "                due.push(entry.hold.clone());",
        new: "                if due.is_empty() {\n                    due.push(entry.hold.clone());\n                }",
        package: "distlock-core",
        target: "--lib",
        test: "all_holds_of_a_client_are_renewed_in_one_call",
    },
];
