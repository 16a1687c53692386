//! Translations of the specification against it: generated sequences of moves, run on a real
//! server and on [`LockState`](distlock_core::state::LockState), must give the same answers and
//! leave the same state.
//!
//! Time is held: the subject is told what time it is. A promotion that nobody hears is taken back by
//! the translation within its own call; the specification is told so by
//! [`Op::Withdraw`](distlock_core::state::Op::Withdraw).

mod examples;
mod moves;
mod oracle;
mod run;
mod sequences;
mod subject;

pub use examples::{
    a_crowd_is_served_in_turn, a_crowd_with_exceptions, a_full_memory_drops_what_is_over_first,
    a_reader_lets_others_in, a_second_revoke_is_told_too, a_turn_with_more_to_it,
    tokens_rise_though_the_clock_falls, who_confirms_lets_its_owners_others_in,
    who_is_passed_over_keeps_its_place,
};
pub use sequences::answers_as_the_specification;
pub use subject::{Knows, Play, Subject};

/// A test for each example, at a subject that has a `new`: those that every translation can play, and
/// what it can besides.
#[macro_export]
macro_rules! differential_examples {
    ($scene:ty $(, $more:ident)*) => {
        $crate::differential_examples! { @each $scene:
            a_crowd_is_served_in_turn
            a_crowd_with_exceptions
            a_full_memory_drops_what_is_over_first
            a_reader_lets_others_in
            a_second_revoke_is_told_too
            a_turn_with_more_to_it
            tokens_rise_though_the_clock_falls
            who_confirms_lets_its_owners_others_in
            $($more)*
        }
    };
    (@each $scene:ty: $($example:ident)+) => {$(
        #[tokio::test]
        async fn $example() {
            $crate::differential::$example(<$scene>::new().await).await;
        }
    )+};
}
