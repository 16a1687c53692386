//! The laws every store must pass, over an ensemble of three.

mod shared;

use distlock_testkit::servers::Ensemble;

shared::laws!("three", Ensemble, Ensemble::start, Ensemble::servers);
