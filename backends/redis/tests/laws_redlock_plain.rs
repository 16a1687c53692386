//! The laws every store must pass, over classic Redlock with three nodes.
mod redlock;

use distlock_testkit::suite;

suite!(redlock::laws_plain());
