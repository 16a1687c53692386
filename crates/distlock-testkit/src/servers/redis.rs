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
    use distlock_core::Kind;

    use super::super::Server;
    use super::*;

    /// On a machine without it the test holds the error to its promise instead.
    #[tokio::test]
    async fn redis_answers_or_its_package_is_named() {
        match Server::start(redis()).await {
            Ok(server) => {
                server.restart().await.expect("it starts again");
                server.wipe().await.expect("it starts empty");
            }
            Err(e) => {
                assert_eq!(e.kind(), Kind::Unsupported, "{e:?}");
                assert!(e.hint().is_some_and(|h| h.contains("redis-server")), "{e:?}");
            }
        }
    }
}
