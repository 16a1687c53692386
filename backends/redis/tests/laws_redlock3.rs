//! The laws every store must pass, over Redlock with three nodes.
mod redlock;

use distlock_testkit::suite;

suite!(redlock::laws::<3>());
