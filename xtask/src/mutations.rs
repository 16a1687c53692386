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
        name: "release without owner check",
        file: "crates/distlock-core/src/state/step.rs",
        old: "let Some(i) = self.hold_of(req) else {\n",
        new: "let Some(i) = self.hold_of(req).or((!self.holds.is_empty()).then_some(0)) else {\n",
        package: "distlock-core",
        target: "state",
        test: "examples::a_release_ends_only_its_own_hold",
    },
    Mutation {
        name: "deadline from the reply",
        file: "crates/distlock-core/src/leased.rs",
        old: "Grant { req: ask.req, tokens, sent, ttl: left, margin, waiters }",
        new: "Grant { req: ask.req, tokens, sent: self.moment(), ttl: left, margin, waiters }",
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
        name: "renew that resurrects",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        self.drop_ended(now.lease);\n",
        new: "        if !matches!(op, Op::Renew { .. }) {\n            self.drop_ended(now.lease);\n        }\n",
        package: "distlock-core",
        target: "state",
        test: "examples::renew_never_resurrects_even_what_nobody_took",
    },
    Mutation {
        name: "token bumped on re-entry",
        file: "crates/distlock-core/src/state/step.rs",
        old: "match self.joins(&claim) {",
        new: "match self.joins(&claim).filter(|_| false) {",
        package: "distlock-core",
        target: "state",
        test: "mode_examples::the_same_owner_enters_again_with_the_same_token",
    },
    Mutation {
        name: "token forgotten on delete",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        self.holds.remove(i);\n        self.spend(",
        new: "        self.holds.remove(i);\n        self.hi = 0;\n        self.spend(",
        package: "distlock-core",
        target: "state",
        test: "token_examples::a_token_is_the_wall_or_one_more_than_the_last",
    },
    Mutation {
        name: "barging past the queue",
        file: "crates/distlock-core/src/state/step.rs",
        old: "let nobody_ahead = self.queue.iter().all(|w| w.deaf);",
        new: "let nobody_ahead = true;",
        package: "distlock-core",
        target: "state",
        test: "line_examples::a_newcomer_waits_behind_a_head_that_is_kept_waiting",
    },
    Mutation {
        name: "no purge of dead waiters",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        self.queue.retain(|w| w.deadline > now);\n",
        new: "",
        package: "distlock-core",
        target: "state",
        test: "line_examples::all_silent_waiters_are_dropped_at_once",
    },
    Mutation {
        name: "no tombstone",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        self.spend(*req, End::Cancelled, now.lease, rules);\n",
        new: "",
        package: "distlock-core",
        target: "state",
        test: "examples::cancel_undoes_a_hold_a_place_and_what_has_not_come_yet",
    },
    Mutation {
        name: "a released request granted again",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        self.spend(*req, End::Released, now.lease, rules);\n",
        new: "",
        package: "distlock-core",
        target: "state",
        test: "examples::release_is_idempotent_and_a_released_request_never_comes_back",
    },
    Mutation {
        name: "an undo guard made after the send",
        file: "crates/distlock-core/src/lock.rs",
        old: "            let undo = Undo::new(client.clone(), ask.clone());\n            let seen = self.on_wait.as_deref();\n            let answer = tokio::select! {\n                biased;\n                () = client.closing.cancelled() => Err(client.closed()),\n                answer = client.backend.acquire(&ask, seen.map(|s| s as _)) => answer,\n            };\n",
        new: "            let seen = self.on_wait.as_deref();\n            let answer = tokio::select! {\n                biased;\n                () = client.closing.cancelled() => Err(client.closed()),\n                answer = client.backend.acquire(&ask, seen.map(|s| s as _)) => answer,\n            };\n            let undo = Undo::new(client.clone(), ask.clone());\n",
        package: "distlock-testkit",
        target: "memory",
        test: "dropped_at_every_poll_leaves_nothing",
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
        name: "a renewal after the deadline brings the guard back",
        file: "crates/distlock-core/src/hold.rs",
        old: "        if self.check(Duration::ZERO).is_err() {\n",
        new: "        if false {\n",
        package: "distlock-core",
        target: "--lib",
        test: "a_renewal_acknowledged_after_the_deadline_does_not_bring_a_hold_back",
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
    Mutation {
        name: "a lingering request granted again",
        file: "crates/distlock-core/src/state/step.rs",
        old: "                self.spend(*req, End::Released, until, rules);\n",
        new: "",
        package: "distlock-core",
        target: "state",
        test: "examples::a_lingering_request_stays_released_after_its_min_hold",
    },
    Mutation {
        name: "a revoked request granted again",
        file: "crates/distlock-core/src/state/step.rs",
        old: "            self.spend(req, End::Cancelled, end, rules);\n",
        new: "            let _ = (req, end);\n",
        package: "distlock-core",
        target: "state",
        test: "examples::revoke_tells_the_holder_and_grants_nobody_before_the_lease_ends",
    },
    Mutation {
        name: "no lock-delay after an expiry",
        file: "crates/distlock-core/src/state/step.rs",
        old: "self.delay_until = self.delay_until.max(until);",
        new: "let _ = until;",
        package: "distlock-core",
        target: "state",
        test: "examples::lock_delay_follows_an_expiry_only",
    },
    Mutation {
        name: "a missed turn costs the place",
        file: "crates/distlock-core/src/state/step.rs",
        old: "        if deadline > now {\n",
        new: "        if deadline > now && now > deadline {\n",
        package: "distlock-core",
        target: "state",
        test: "claim_examples::a_waiter_that_missed_its_turn_keeps_its_place_until_its_deadline",
    },
    Mutation {
        name: "revoking frees at once",
        file: "crates/distlock-core/src/state/step.rs",
        old: "Force::Revoke if believed => hold.phase = Phase::Revoked,",
        new: "Force::Revoke if !believed => hold.phase = Phase::Revoked,",
        package: "distlock-core",
        target: "state",
        test: "examples::revoke_tells_the_holder_and_grants_nobody_before_the_lease_ends",
    },
    Mutation {
        name: "the wall alone makes tokens",
        file: "crates/distlock-core/src/state/step.rs",
        old: "self.hi.saturating_add(1).max(wall.0)",
        new: "wall.0.max(1)",
        package: "distlock-core",
        target: "state",
        test: "token_examples::a_wall_that_steps_back_never_lowers_a_token",
    },
    Mutation {
        name: "a block runs ahead of the wall",
        file: "crates/distlock-core/src/state/step.rs",
        old: "u64::from(wish.get()).min(room)",
        new: "u64::from(wish.get()).min(room.max(u64::MAX))",
        package: "distlock-core",
        target: "state",
        test: "token_examples::a_block_is_cut_so_that_tokens_do_not_run_ahead_of_the_wall",
    },
    Mutation {
        name: "no margin for drifting clocks",
        file: "crates/distlock-core/src/seam.rs",
        old: "sent.plus(ttl).minus(margin)",
        new: "sent.plus(ttl).minus(margin.saturating_sub(margin))",
        package: "distlock-core",
        target: "state",
        test: "timed_model::model_timed_deadlines_keep_guards_apart",
    },
    Mutation {
        name: "quorum: renewal by two of five",
        file: "crates/distlock-core/src/quorum/keep.rs",
        old: "if counted < self.majority {",
        new: "if counted < 1 {",
        package: "distlock-core",
        target: "quorum",
        test: "healing::s23_acquired_on_three_of_five_and_renewed_on_two_is_lost",
    },
    Mutation {
        name: "quorum: renewal counts a minority",
        file: "crates/distlock-core/src/quorum/keep.rs",
        old: "                if held.len() < self.majority {\n",
        new: "                if held.is_empty() {\n",
        package: "distlock-core",
        target: "quorum",
        test: "dead::no_answer_is_no_loss_and_no_renewal",
    },
    Mutation {
        name: "quorum: failed bid left at the nodes",
        file: "crates/distlock-core/src/quorum/wait.rs",
        old: "        if doubtful.is_empty() {\n",
        new: "        if !doubtful.is_empty() {\n",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s24_a_failed_acquire_is_removed_from_all_nodes",
    },
    Mutation {
        name: "quorum: no tombstone at a node",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "        if rules.spent_cap > 0 {\n",
        new: "        if rules.spent_cap > usize::MAX - 1 {\n",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s24_a_failed_acquire_is_removed_from_all_nodes",
    },
    Mutation {
        name: "quorum: no quarantine at a node",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "(!left.is_zero()).then(||",
        new: "(left > Duration::MAX / 2).then(||",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s25_a_node_that_restarts_empty_lets_nobody_in",
    },
    Mutation {
        name: "quorum: validity not checked after the last answer",
        file: "crates/distlock-core/src/quorum/attempt.rs",
        old: "if tally.sent.until(left, margin).left(self.moment()).is_zero() {",
        new: "if self.clock().now() < tally.sent.boot {",
        package: "distlock-core",
        target: "quorum",
        test: "time::a_pause_that_eats_the_lease_is_no_grant",
    },
    Mutation {
        name: "quorum: proposal believed after half a lease",
        file: "crates/distlock-core/src/quorum/attempt.rs",
        old: "elapsed <= bid.ask.ttl / 2",
        new: "elapsed <= bid.ask.ttl * 2",
        package: "distlock-core",
        target: "quorum",
        test: "time::after_half_a_lease_the_token_is_written_back",
    },
    Mutation {
        name: "quorum: proposal believed over a new connection",
        file: "crates/distlock-core/src/quorum/attempt.rs",
        old: "            && granted.iter().all(same);",
        new: "            && granted.iter().all(|g| same(g) || !same(g));",
        package: "distlock-core",
        target: "quorum",
        test: "time::a_connection_made_anew_meanwhile_is_not_believed",
    },
    Mutation {
        name: "quorum: late heal revives a hold",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "map_or(!hold.healed, |g|",
        new: "map_or(true, |g|",
        package: "distlock-core",
        target: "quorum",
        test: "node::a_healed_ownership_counts_for_a_ticket_only_when_its_holder_counted_it",
    },
    Mutation {
        name: "quorum: healed nodes never counted",
        file: "crates/distlock-core/src/quorum/keep.rs",
        old: "                state.owned[i] = Some(generation);",
        new: "                let _ = generation;",
        package: "distlock-core",
        target: "quorum",
        test: "healing::healed_nodes_count_from_the_next_round_on",
    },
    Mutation {
        name: "quorum: write-back without ownership",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "== (commit.round, commit.generation, NodePhase::Held)",
        new: "== (commit.round, h.generation, NodePhase::Held)",
        package: "distlock-core",
        target: "quorum",
        test: "node::a_write_back_needs_the_very_ownership",
    },
    Mutation {
        name: "quorum: stragglers not told",
        file: "crates/distlock-core/src/quorum/debts.rs",
        old: "        !std::mem::replace(&mut owed.paying, true)",
        new: "        std::mem::replace(&mut owed.paying, true)",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s24_an_undo_that_did_not_arrive_is_repeated",
    },
    Mutation {
        name: "quorum: line by arrival",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "partition_point(|w| (w.ticket, w.who.req) < (ticket, who.req))",
        new: "partition_point(|_| true)",
        package: "distlock-core",
        target: "quorum",
        test: "node::nobody_passes_a_lower_ticket_that_is_backed",
    },
    Mutation {
        name: "quorum: unbacked ticket blocks",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "all(|w| !w.backed)",
        new: "all(|_| false)",
        package: "distlock-core",
        target: "quorum",
        test: "node::nobody_passes_a_lower_ticket_that_is_backed",
    },
    Mutation {
        name: "quorum: old ticket believed",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "if place.ticket.abs_diff(now.wall.0) > micros(rules.window) {",
        new: "if place.ticket.abs_diff(now.wall.0) > u64::MAX / 2 {",
        package: "distlock-core",
        target: "quorum",
        test: "node::a_ticket_far_from_the_clock_gets_no_place",
    },
    Mutation {
        name: "quorum: dead nodes waited for",
        file: "crates/distlock-core/src/quorum.rs",
        old: "most.min(ttl / 10).max(LEAST)",
        new: "(most * 4).min(ttl / 10).max(LEAST)",
        package: "distlock-core",
        target: "quorum",
        test: "dead::with_three_of_five_dead_nobody_is_granted",
    },
    Mutation {
        name: "quorum: ailing nodes waited for each time",
        file: "crates/distlock-core/src/quorum.rs",
        old: "        self.ailing.store(!well, Ordering::Release);",
        new: "        self.ailing.store(!well && false, Ordering::Release);",
        package: "distlock-core",
        target: "quorum",
        test: "dead::five_nodes_with_two_dead_still_lock",
    },
    Mutation {
        name: "quorum: deadline from the votes",
        file: "crates/distlock-core/src/quorum/attempt.rs",
        old: "let state = SlotState::new(owned, tally.sent, left, margin);",
        new: "let state = SlotState::new(owned, self.moment(), left, margin);",
        package: "distlock-core",
        target: "quorum",
        test: "time::deadlines_count_from_before_the_first_bid",
    },
    Mutation {
        name: "quorum: half is a majority",
        file: "crates/distlock-core/src/quorum.rs",
        old: "majority: size / 2 + 1,",
        new: "majority: size / 2,",
        package: "distlock-core",
        target: "quorum",
        test: "dead::with_three_of_five_dead_nobody_is_granted",
    },
    Mutation {
        name: "quorum: late round of an undone attempt",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "s.req == *req && round <= s.upto",
        new: "s.req == *req && round < s.upto",
        package: "distlock-core",
        target: "quorum",
        test: "node::a_cancelled_round_is_spent_and_the_next_one_is_not",
    },
    Mutation {
        name: "quorum: token not above what the node knows",
        file: "crates/distlock-core/src/quorum/step.rs",
        old: "let accepted = p > self.hi && near;",
        new: "let accepted = near;",
        package: "distlock-core",
        target: "quorum",
        test: "node::a_token_is_accepted_above_all_others_and_near_the_clock",
    },
    Mutation {
        name: "quorum: one renewal call a hold",
        file: "crates/distlock-core/src/quorum/keep.rs",
        old: "        let kept = self.renew(&mut items).await;\n        self.heal",
        new: "        let mut kept = Vec::new();\n        for item in &mut items {\n            kept.extend(self.renew(std::slice::from_mut(item)).await);\n        }\n        self.heal",
        package: "distlock-core",
        target: "quorum",
        test: "healing::one_renewal_call_a_node_for_all_holds",
    },
    Mutation {
        name: "quorum: release only where it was heard",
        file: "crates/distlock-core/src/quorum/ending.rs",
        old: "            fan.call(i, n.node.release(key));",
        new: "            if counts[i] {\n                fan.call(i, n.node.release(key));\n            } else {\n                unpaid.paid(i);\n            }",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s24_an_early_win_is_released_at_stragglers_too",
    },
    Mutation {
        name: "quorum: dropped ending forgotten",
        file: "crates/distlock-core/src/quorum/ending.rs",
        old: "            self.inner.owe(*i, self.key, self.ending, self.ttl);",
        new: "            let _ = (i, self.inner, self.key, self.ending, self.ttl);",
        package: "distlock-core",
        target: "quorum",
        test: "undo::s24_an_undo_that_did_not_arrive_is_repeated",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::root;

    /// The table of CONTRIBUTING.md.
    fn table() -> String {
        let row = |m: &Mutation| format!("| {} | `{}` | `{}` |", m.name, m.package, m.test);
        let mut lines = vec!["| mutation | package | test |".to_owned(), "|---|---|---|".to_owned()    Mutation {
                name: "the wall ignored by check",
                file: "crates/distlock-core/src/hold.rs",
                old: "if self.wall.is_some() { self.clock.moment() } else { self.clock.now().into() }",
                new: "self.clock.now().into()",
                package: "distlock-core",
                target: "--lib",
                test: "two_clocks_are_right_after_any_steps_and_never_more_lenient_than_one",
            },
            Mutation {
                name: "steps of the wall not heard",
                file: "crates/distlock-core/src/keeper.rs",
                old: "let wall = self.backend.capability().wall_witness;",
                new: "let wall = false;",
                package: "distlock-core",
                target: "--lib",
                test: "a_forward_step_past_the_deadline_loses_the_lock_and_nothing_else_has_to_happen",
            },
            Mutation {
                name: "the wall counted from the first request",
                file: "crates/distlock-core/src/hold.rs",
                old: "mine.store(nanos(wall), Ordering::Release);",
                new: "let _ = (mine, wall);",
                package: "distlock-core",
                target: "--lib",
                test: "a_renewal_starts_both_clocks_anew",
            },
        ];
        lines.extend(MUTATIONS.iter().map(row));
        lines.join("\n")
    }

    #[test]
    fn contributing_lists_the_mutations() {
        let path = root().join("CONTRIBUTING.md");
        let text = std::fs::read_to_string(&path).expect("CONTRIBUTING.md");
        let (before, rest) = text.split_once("<!-- mutations -->\n").expect("a marker");
        let (inside, after) = rest.split_once("<!-- /mutations -->").expect("its end");
        let table = format!("{}\n", table());
        if std::env::var_os("DISTLOCK_BLESS").is_some() {
            let new = format!("{before}<!-- mutations -->\n{table}<!-- /mutations -->{after}");
            std::fs::write(&path, new).expect("CONTRIBUTING.md is writable");
        } else {
            assert_eq!(inside, table, "run with DISTLOCK_BLESS=1 to write it anew");
        }
    }

    #[test]
    fn every_mutation_still_finds_its_text() {
        for m in MUTATIONS {
            let text = std::fs::read_to_string(root().join(m.file)).expect(m.file);
            assert_eq!(text.matches(m.old).count(), 1, "{}: {:?}", m.file, m.name);
        }
    }
}
