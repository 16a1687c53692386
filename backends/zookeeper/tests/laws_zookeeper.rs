//! The laws every store must pass, over one server.
//!
//! A server is a Java machine that takes a second to start, so all laws share one, and each has a
//! path of its own.

mod shared;

use distlock_testkit::servers::zookeeper;

shared::laws!("one", Server, || Server::start(zookeeper()), std::slice::from_ref);
