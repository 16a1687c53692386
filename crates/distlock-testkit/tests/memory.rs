//! The laws over the memory store.
distlock_testkit::suite!(distlock_testkit::Suite::memory());
