//! How a private redis-server starts.

use super::Program;

/// A redis-server that keeps nothing on disk, on a free port.
#[must_use]
pub fn redis() -> Program {
    Program {
        binary: "redis-server",
        package: "redis-server",
        args: |port, dir| {
            let (port, dir) = (port.to_string(), dir.display().to_string());
            [
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                &dir,
            ]
            .map(str::to_owned)
            .to_vec()
        },
        probe: Some((b"PING\r\n", b"+PONG")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use distlock_core::Clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::super::Server;
    use super::*;
    use crate::proxy::{Proxy, Way};

    /// One command and the first line of its answer; `None` when none comes in time.
    async fn ask(addr: SocketAddr, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
        let mut buffer = [0; 256];
        let read = stream.read(&mut buffer);
        let n = Clock::system().timeout(Duration::from_millis(500), read).await?.ok()?;
        let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
        text.lines().next().map(str::to_owned)
    }

    async fn says(addr: SocketAddr, command: &str, answer: &str) {
        assert_eq!(ask(addr, command).await.as_deref(), Some(answer), "{command}");
    }

    #[tokio::test]
    async fn a_real_redis_is_paused_killed_and_wiped() {
        let server = Server::start(redis()).await.expect("`cargo xtask setup` installs redis");
        says(server.addr(), "SET k v", "+OK").await;
        server.pause();
        assert_eq!(ask(server.addr(), "EXISTS k").await, None);
        server.resume();
        says(server.addr(), "EXISTS k", ":1").await;
        server.kill();
        assert_eq!(ask(server.addr(), "PING").await, None);
        server.wipe().await.expect("it starts empty");
        says(server.addr(), "EXISTS k", ":0").await;
    }

    #[tokio::test]
    async fn a_real_redis_behind_a_proxy_loses_answers_and_hears_twice() {
        let server = Server::start(redis()).await.expect("`cargo xtask setup` installs redis");
        let proxy = Proxy::to(server.addr()).await.expect("a free port");
        says(proxy.addr(), "INCR n", ":1").await;
        proxy.drop_replies();
        assert_eq!(ask(proxy.addr(), "INCR n").await, None);
        says(server.addr(), "GET n", "$1").await;
        proxy.heal();
        says(proxy.addr(), "INCR n", ":3").await; // the one without an answer took effect
        proxy.duplicate(Way::Requests);
        says(proxy.addr(), "INCR n", ":4").await;
        says(proxy.addr(), "INCR n", ":6").await;
        proxy.cut_both();
        assert_eq!(ask(proxy.addr(), "PING").await, None);
    }
}
