//! What Redlock must live through besides the laws, on real servers.
mod redlock;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(4);
    let mut trials = Vec::new();
    macro_rules! trials {
        ($($file:ident :: $name:ident),* $(,)?) => {
            $(trials.push(Trial::test(stringify!($name), || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()?;
                runtime.block_on(redlock::$file::$name());
                Ok(())
            }));)*
        };
    }
    trials! {
        down::two_of_five_may_be_dead,
        down::with_three_of_five_dead_nobody_is_granted_and_holders_are_told,
        down::s23_of_three_that_granted_only_two_renew,
        down::a_hold_moves_through_a_rolling_restart,
        down::two_nodes_that_forget_at_once_end_the_hold,
        down::a_full_node_still_renews_and_releases,
        undo::s24_a_failed_acquire_leaves_nothing,
        undo::s24_stragglers_of_an_early_win_are_given_back,
        undo::a_slow_majority_eats_the_validity,
        undo::a_silent_connection_is_made_anew,
        undo::sixteen_contenders_finish,
        restart::s25_a_node_restarted_empty_lets_nobody_in,
        restart::without_the_quarantine_it_would,
        restart::a_clock_that_jumps_leaves_the_fence_in_order,
        entry::opening_needs_a_majority_and_names_the_rest,
        entry::a_server_has_one_vote,
        entry::each_node_may_have_its_own_login,
        entry::tls_nodes_are_entered,
        foreign::classic_clients_and_we_exclude_each_other,
        foreign::a_foreign_minority_stops_nobody,
        foreign::a_name_among_our_own_keys_is_refused,
    }
    libtest_mimic::run(&args, trials).exit_code()
}
