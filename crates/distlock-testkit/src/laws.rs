//! The laws every store must pass: plain async functions over a [`StoreUnderTest`](crate::StoreUnderTest), each listed
//! for a store only where its capability says that it applies.
//!
//! A law named `sNN_…` is a bug that another lock library shipped. A law that does not hold panics.

#![allow(clippy::missing_panics_doc)] // said once, above

pub mod basic;
pub mod crash;
pub mod crowd;
pub mod ending;
pub mod faults;
pub mod fence;
pub mod handover;
pub mod line;
pub mod loss;
pub mod modes;
pub mod names;
pub mod operator;
pub mod processes;
pub mod reentry;
pub mod replay;
pub mod road;
pub mod span;
pub mod storm;
pub mod ticket;

use distlock_core::capability::{Family, Fence, Reentry};

use crate::law::{Law, law};

/// Every law there is.
#[must_use]
pub fn all() -> Vec<Law> {
    let mut all = one_process();
    all.extend(several_processes());
    all.extend(misbehaving());
    all.extend(on_a_bad_road());
    all
}

fn one_process() -> Vec<Law> {
    vec![
        law!(basic::exclusion),
        law!(basic::exclusion_under_contention),
        law!(basic::parallel_names),
        law!(basic::try_timed_and_blocking_acquires),
        law!(basic::busy_names_the_holder),
        law!(basic::the_blocking_api_inside_and_outside_a_runtime),
        law!(basic::bad_input_is_refused_with_a_hint),
        law!(names::a_name_and_its_prefix_are_two_locks),
        law!(names::awkward_names_are_distinct_locks),
        law!(names::a_namespace_keeps_clients_apart),
        law!(line::first_come_first_served).when(|t| t.line()),
        law!(line::no_barging_past_the_line).when(|t| t.line()),
        law!(line::a_waiter_hears_its_place).when(|t| t.line()),
        law!(line::s18_a_release_while_joining_still_wakes),
        law!(line::s20_a_waiter_that_gives_up_leaves_the_line).when(|t| t.line()),
        law!(line::dropped_at_every_poll_leaves_nothing),
        law!(loss::renewal_outlasts_many_ttls).when(|t| t.expires()),
        law!(loss::without_renewal_it_runs_out).when(|t| t.expires()),
        law!(loss::loss_is_told_and_latches).when(|t| t.expires()),
        law!(loss::work_is_cancelled_by_loss).when(|t| t.expires()),
        law!(loss::s07_a_deleted_record_is_found_out).when(|t| t.lose),
        law!(loss::s09_a_blocked_executor_is_still_renewed),
        law!(loss::s13_a_release_after_loss_is_quick).when(|t| t.expires()),
        law!(span::s10_max_hold_ends_the_hold),
        law!(span::min_hold_outlasts_the_release),
        law!(span::lock_delay_follows_an_expiry_only)
            .when(|t| t.capability.lock_delay && t.expires()),
        law!(fence::tokens_rise_over_clients_and_expiry),
        // Alone: laws may share a server.
        law!(fence::tokens_survive_a_restart).when(|t| t.restart).alone(),
        law!(fence::tokens_survive_disuse),
        law!(reentry::s27_the_owner_enters_again_with_the_same_token)
            .when(|t| t.capability.reentry != Reentry::None),
        law!(reentry::another_client_of_the_owner_enters)
            .when(|t| t.capability.reentry == Reentry::Anywhere),
        law!(reentry::a_waiting_reentry_does_not_deadlock)
            .when(|t| t.capability.reentry != Reentry::None),
        law!(reentry::two_waiters_of_an_owner_leave_nothing)
            .when(|t| t.capability.reentry != Reentry::None),
        law!(ticket::detach_and_resume).when(|t| t.capability.detach),
        law!(ticket::a_ticket_of_nothing_is_refused).when(|t| t.capability.detach),
        law!(ticket::detach_is_refused_where_it_cannot_be).when(|t| !t.capability.detach),
        law!(operator::revoking_tells_the_holder_and_waits_out_the_lease)
            .when(|t| t.capability.force && t.expires()),
        law!(operator::forcing_now_frees_at_once).when(|t| t.capability.force),
        law!(operator::force_with_a_token_meets_only_that_grant).when(|t| t.capability.force),
        law!(operator::inspection_shows_holds_and_waiters),
        law!(operator::listing_pages_over_many_locks),
        law!(ending::s14_a_guard_dropped_anywhere_is_released),
        law!(ending::s15_a_release_that_is_not_awaited_is_still_sent),
        law!(ending::a_leaving_client_delays_nobody),
        law!(ending::close_gives_everything_back),
        law!(handover::a_crowd_hands_over_in_order_with_rising_tokens)
            .when(|t| t.capability.handover),
        law!(handover::a_crowd_here_keeps_nobody_elsewhere_waiting).when(|t| t.capability.handover),
        law!(handover::an_offer_that_nobody_polls_passes_on).when(|t| t.capability.handover),
        law!(handover::a_lost_lease_is_handed_to_nobody)
            .when(|t| t.capability.handover && t.capability.force),
        law!(handover::a_token_of_an_earlier_holder_takes_the_lease_away)
            .when(|t| t.capability.handover && t.capability.force),
        law!(handover::closing_in_a_crowd_leaves_nothing).when(|t| t.capability.handover),
        law!(handover::a_lingering_lease_goes_to_whoever_waits).when(|t| t.capability.linger),
        law!(handover::a_ticket_leaves_the_crowd)
            .when(|t| t.capability.handover && t.capability.detach && t.line()),
        law!(modes::shared_holders_share_and_writers_do_not).when(|t| t.capability.shared),
        law!(modes::permits_are_counted).when(|t| t.capability.permits),
        law!(modes::an_unserved_mode_is_refused)
            .when(|t| !t.capability.shared || !t.capability.permits),
        law!(replay::a_repeated_ask_is_the_same_grant),
        law!(replay::a_repeated_wait_is_one_place_in_line)
            .when(|t| t.line() && t.capability.family == Family::Lease),
        law!(replay::a_replayed_grant_counts_from_the_first).when(|t| t.leases()),
        law!(replay::a_released_request_never_comes_back),
        law!(replay::a_cancelled_request_never_comes_back),
        law!(replay::only_the_holder_releases),
        law!(replay::renewing_never_brings_back).when(|t| t.leases()),
        law!(replay::an_unheard_waiter_is_dropped).when(|t| t.line() && t.leases()),
        law!(crowd::a_thousand_waiters_cost_little)
            .when(|t| t.calls_up() && !t.connection_each())
            .alone(),
        law!(crowd::s42_ten_thousand_names_leave_nothing).alone(),
    ]
}

fn several_processes() -> Vec<Law> {
    vec![
        law!(processes::a_killed_holder_is_followed).when(|t| t.processes).alone(),
        law!(processes::s06_a_stopped_holder_finds_out)
            .when(|t| t.processes && t.expires())
            .alone(),
        law!(processes::s28_a_paused_holder_is_refused_by_the_resource)
            .when(|t| t.processes && t.expires() && t.capability.fence > Fence::Unordered)
            .alone(),
        law!(crash::a_kill_leaves_no_key_without_an_end).when(|t| t.processes && t.leaves).alone(),
        law!(processes::s19_killed_waiters_are_passed_over)
            .when(|t| t.processes && t.line())
            .alone(),
        law!(processes::sixteen_open_an_empty_store_at_once).when(|t| t.processes).alone(),
        law!(processes::the_owner_enters_in_another_process)
            .when(|t| t.processes && t.capability.reentry == Reentry::Anywhere),
        law!(processes::another_process_ends_a_detached_hold)
            .when(|t| t.processes && t.capability.detach),
        law!(processes::a_counter_comes_out_right).when(|t| t.processes).alone(),
        law!(storm::a_storm_of_kills_and_stops_breaks_nothing).when(|t| t.processes).alone(),
    ]
}

fn misbehaving() -> Vec<Law> {
    vec![
        law!(faults::s01_a_late_grant_of_a_dropped_acquire_is_never_renewed).when(|t| t.memory),
        law!(faults::s02_dropped_between_grant_and_reply).when(|t| t.memory),
        law!(faults::dropped_at_every_poll_of_a_slow_store).when(|t| t.memory),
        law!(faults::s04_silence_ends_a_hold_before_its_lease).when(|t| t.memory),
        law!(faults::s05_a_late_renewal_does_not_revive).when(|t| t.memory),
        law!(faults::deadlines_count_from_before_the_question).when(|t| t.memory),
        law!(faults::s11_a_release_without_answer_can_be_repeated).when(|t| t.memory),
        law!(faults::s17_a_silent_waiter_loses_its_place).when(|t| t.memory),
        law!(faults::s22_a_lost_reply_is_not_a_second_entry).when(|t| t.memory),
        law!(faults::trouble_in_line_is_waited_out).when(|t| t.memory),
        law!(faults::a_stolen_lock_is_found_out).when(|t| t.memory),
        law!(faults::s42_old_names_are_forgotten).when(|t| t.memory),
    ]
}

fn on_a_bad_road() -> Vec<Law> {
    vec![
        law!(road::s01_s02_an_acquire_dropped_before_its_answer_holds_nothing)
            .when(|t| t.road && !t.reads_first),
        law!(road::s02_an_acquire_dropped_and_cut_off_is_over_with_its_ttl)
            .when(|t| t.road && !t.reads_first && t.expires()),
        law!(road::s04_silence_is_a_loss_before_the_lease_passes_on)
            .when(|t| t.road && t.expires()),
        law!(road::s05_a_late_renewal_brings_nothing_back).when(|t| t.road && t.expires()),
        law!(road::s11_a_release_without_an_answer_is_unknown_and_can_be_repeated)
            .when(|t| t.road && !t.reads_first),
        law!(road::s11_a_release_cancelled_midway_is_finished).when(|t| t.road),
        law!(road::s17_a_waiter_cut_off_is_told_and_never_granted).when(|t| t.road),
        law!(road::s22_a_lost_answer_leaves_no_ghost).when(|t| t.road && !t.reads_first),
        law!(road::s22_a_request_asked_again_is_known)
            .when(|t| t.road && !t.reads_first && t.capability.family == Family::Lease),
        law!(road::s22_a_turn_that_was_not_heard_of_is_found)
            .when(|t| t.road && t.line() && t.capability.family == Family::Lease),
        law!(road::a_minority_without_answers_stops_nobody)
            .when(|t| t.road && t.capability.family == Family::Quorum),
        law!(road::a_minority_that_missed_a_release_is_told_again)
            .when(|t| t.road && t.capability.family == Family::Quorum),
    ]
}
