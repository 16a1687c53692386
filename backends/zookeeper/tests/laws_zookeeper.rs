//! The laws every store must pass, over one server.
//!
//! A server is a Java machine that takes a second to start, so all laws share one, and each has a
//! path of its own.

mod shared;

use distlock_testkit::servers::{Server, zookeeper};

shared::laws!("one", Server, || Server::start(zookeeper()), |server: &Server| server
    .addr()
    .to_string());
