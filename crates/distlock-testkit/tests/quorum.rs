//! The laws over a quorum of five nodes in memory.

mod quorums;

use std::time::Duration;

use distlock_core::Clock;
use distlock_core::quorum::{NodeRules, QuorumNode};
use distlock_testkit::doubles::MemoryNode;
use distlock_testkit::{Made, Suite, suite};

fn node(i: usize) -> MemoryNode {
    // Five servers' tombstones are in this process's memory, which one law weighs.
    let rules = NodeRules { tombstone: Duration::from_millis(20), ..NodeRules::default() };
    MemoryNode::new(format!("node{i}"), Clock::system()).with_rules(rules)
}

fn store() -> Suite {
    let capability = node(0).info().capability.clone();
    Suite::in_process(
        capability,
        |dir| {
            let name = dir.display().to_string();
            Box::pin(async move { Ok(Made::at(name)) })
        },
        |url| {
            let locks = quorums::connect(url, node);
            Box::pin(async move { locks })
        },
    )
    .lose(|site, lock| Box::pin(async move { quorums::wipe(site.url(), lock) }))
}

suite!(store());
