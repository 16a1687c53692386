//! How a private memcached starts.

use super::Program;

/// A memcached of 64 MB, on a free port.
#[must_use]
pub fn memcached() -> Program {
    program(|port, _| arguments(port, "64", &[]))
}

/// A memcached of 2 MB, which evicts before long.
#[must_use]
pub fn tiny_memcached() -> Program {
    program(|port, _| arguments(port, "2", &[]))
}

/// A memcached that fails when it is full (`-M`).
#[must_use]
pub fn full_memcached() -> Program {
    program(|port, _| arguments(port, "64", &["-M"]))
}

/// A memcached that does not list its keys (`-X`).
#[must_use]
pub fn silent_memcached() -> Program {
    program(|port, _| arguments(port, "64", &["-X"]))
}

fn program(args: fn(u16, &std::path::Path) -> Vec<String>) -> Program {
    Program::new("memcached", "memcached", args).probe(b"version\r\n", &[b"VERSION "])
}

fn arguments(port: u16, megabytes: &str, more: &[&str]) -> Vec<String> {
    let port = port.to_string();
    let mut args = vec!["-l", "127.0.0.1", "-p", &port, "-U", "0", "-m", megabytes, "-t", "1"];
    // It refuses to run as root unless told so.
    if rustix::process::geteuid().is_root() {
        args.extend(["-u", "root"]);
    }
    args.extend(more);
    args.into_iter().map(str::to_owned).collect()
}
