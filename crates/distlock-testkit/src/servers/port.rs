//! A port that is nobody else's for as long as the value lives.
//!
//! Asking the kernel for any free port and closing it again gives the same number to two test
//! binaries sooner or later, and a killed server's port to the next connection somebody opens. So
//! ports come from below the range that the kernel hands out by itself, and are claimed among
//! tests by a name in the abstract socket namespace: it is one per network namespace, as ports
//! are, and it ends with the process however that ends.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below it sit the ports that well-known servers use.
const FIRST: u16 = 12_000;
/// Where the kernel's own range begins when the machine does not say.
const KERNELS: u16 = 32_768;

/// A claimed port of 127.0.0.1. Dropping it gives the port back.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: net::UnixDatagram,
}

impl Port {
    /// Claims a port that nobody listens on.
    ///
    /// # Errors
    /// When every port is taken.
    pub fn claim() -> io::Result<Self> {
        static TURN: AtomicU16 = AtomicU16::new(0);
        let (first, count) = range();
        // Different processes begin at different places, so that they seldom meet.
        let begin = std::process::id().wrapping_mul(97) % u32::from(count);
        for _ in 0..count {
            let turn = u32::from(TURN.fetch_add(1, Ordering::Relaxed));
            let at = (begin + turn) % u32::from(count);
            let number = first + u16::try_from(at).unwrap_or(0);
            let Ok(claim) = claim(number) else { continue };
            if is_free(number) {
                return Ok(Self { number, _claim: claim });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every port of this machine is taken"))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The address on this machine.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.number))
    }
}

fn claim(number: u16) -> io::Result<net::UnixDatagram> {
    let name = net::SocketAddr::from_abstract_name(format!("distlock-test-port-{number}"))?;
    net::UnixDatagram::bind_addr(&name)
}

fn range() -> (u16, u16) {
    let said = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let kernels = said.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(KERNELS);
    // A machine whose own range begins very low leaves nothing below; then luck must do.
    let end = if kernels < FIRST + 1000 { KERNELS } else { kernels };
    (FIRST, end - FIRST)
}

/// Whether one could listen there now.
pub(super) fn is_free(number: u16) -> bool {
    TcpListener::bind(("127.0.0.1", number)).is_ok()
}

/// Whether this very process is the one that listens there.
///
/// An answer alone does not say so: a server that did not get its port is about to end while a
/// stranger on that port answers in its place.
pub(super) fn is_listened_on_by(number: u16, pid: u32) -> bool {
    let inodes: Vec<String> = ["tcp", "tcp6"].iter().flat_map(|t| listeners(t, number)).collect();
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .any(|to| inodes.iter().any(|i| to == Path::new(&format!("socket:[{i}]"))))
}

fn listeners(table: &str, number: u16) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default();
    let port = format!(":{number:04X}");
    // Columns: slot, local, remote, state (0A listens), …, and the tenth is the inode.
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|c| c.len() > 9 && c[1].ends_with(&port) && c[3] == "0A")
        .map(|c| c[9].to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::wait::until;

    #[tokio::test]
    async fn a_claimed_port_is_given_to_nobody_else_until_it_is_dropped() {
        let ports: Vec<Port> = (0..50).map(|_| Port::claim().unwrap()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 50);
        let one = ports[0].number();
        assert!(claim(one).is_err());
        drop(ports);
        // Others may have got some of them, and a server that somebody is just starting has copies
        // of all descriptors for a moment.
        until("one is free", async || numbers.iter().any(|n| claim(*n).is_ok())).await;
    }

    #[tokio::test]
    async fn who_listens_is_told_apart() {
        let port = Port::claim().unwrap();
        let me = std::process::id();
        assert!(!is_listened_on_by(port.number(), me));
        let listener = TcpListener::bind(port.addr()).unwrap();
        assert!(is_listened_on_by(port.number(), me));
        assert!(!is_listened_on_by(port.number(), std::os::unix::process::parent_id()));
        assert!(!is_free(port.number()));
        drop(listener);
        until("it is free", async || is_free(port.number())).await;
    }
}
