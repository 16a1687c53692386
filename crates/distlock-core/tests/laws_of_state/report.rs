//! Runs a model to its end and prints one line about it.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use distlock_core::Clock;
use stateright::{Checker, HasDiscoveries, Model};

/// A model uses both cores and up to two gigabytes by itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A model that grew past this many visits stops, and fails by its number of states.
const MOST: usize = 12_000_000;

/// Checks a model whose laws must hold, and that it has exactly so many states.
pub(crate) fn holds<M>(name: &str, model: M, states: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync,
    M::Action: Clone + PartialEq + Debug,
{
    holds_at_most(name, model, states, MOST);
}

/// The same, for a model that is given up only after so many visits.
pub(crate) fn holds_at_most<M>(name: &str, model: M, states: usize, most: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync,
    M::Action: Clone + PartialEq + Debug,
{
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let clock = Clock::system();
    let start = clock.now();
    let checker = model.checker().threads(2).target_state_count(most).spawn_bfs().join();
    let took = clock.now().since(start).as_secs_f64();
    println!(
        "model {name}: {} states, {} visits, {took:.1} s",
        checker.unique_state_count(),
        checker.state_count()
    );
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states, "{name}: the model has changed");
}

/// Checks that a model with a bug breaks this very law.
pub(crate) fn breaks<M>(name: &str, model: M, law: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync,
    M::Action: Clone + PartialEq + Debug,
{
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let clock = Clock::system();
    let start = clock.now();
    let wanted = HasDiscoveries::AnyOf([law].into());
    let checker =
        model.checker().threads(2).target_state_count(MOST).finish_when(wanted).spawn_bfs().join();
    let took = clock.now().since(start).as_secs_f64();
    let found: Vec<_> = checker.discoveries().into_iter().collect();
    let Some((_, path)) = found.iter().find(|(broken, _)| *broken == law) else {
        let others: Vec<_> = found.iter().map(|(broken, _)| *broken).collect();
        panic!("{name}: no history breaks {law:?}; broken: {others:?}");
    };
    let actions = path.clone().into_actions();
    println!("model {name}: breaks {law:?} after {} moves, {took:.1} s", actions.len());
}
