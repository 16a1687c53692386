//! The laws every store must pass, over Redlock with five nodes.
mod redlock;

use distlock_testkit::suite;

suite!(redlock::laws::<5>());
