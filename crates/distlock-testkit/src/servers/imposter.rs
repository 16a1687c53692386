//! Things on a port that are not the server one hoped for.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::wait::task;

/// Not RESP, not the memcached protocol, not UTF-8, and longer than a line.
const GARBAGE: &[u8] = b"\xff\xfe<html>\r\nthis is not the server you are looking for\0\r\n\r\n";

/// Something that listens and does not serve. Dropping it closes its port and connections.
#[derive(Debug)]
pub struct Imposter {
    addr: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Imposter {
    /// Answers whatever it is sent with bytes that mean nothing.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn garbage() -> io::Result<Self> {
        Self::start(Some(GARBAGE)).await
    }

    /// Accepts every connection, reads what is sent, and never answers.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn silent() -> io::Result<Self> {
        Self::start(None).await
    }

    /// Answers whatever it is sent with these bytes.
    ///
    /// # Errors
    /// When no port is free.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn saying(answer: &'static [u8]) -> io::Result<Self> {
        Self::start(Some(answer)).await
    }

    async fn start(answer: Option<&'static [u8]>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let accepting = task(async move {
            let mut clients = JoinSet::new(); // they end with it
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(serve(client, answer));
            }
        });
        Ok(Self { addr, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Imposter {
    /// Takes effect as soon as its runtime runs: the port and every connection are closed.
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut client: TcpStream, answer: Option<&'static [u8]>) {
    let mut chunk = [0; 4096];
    while client.read(&mut chunk).await.is_ok_and(|n| n > 0) {
        if let Some(answer) = answer
            && client.write_all(answer).await.is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::Clock;

    use super::super::{Wire, raw};
    use super::*;
    use crate::wait::{soon, until};

    #[tokio::test]
    async fn garbage_is_no_answer() {
        let imposter = Imposter::garbage().await.unwrap();
        let e = raw(imposter.addr(), &["PING"]).await.unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData, "{e}");
        let imposter = Imposter::saying(b"+PONG\r\n").await.unwrap();
        assert_eq!(raw(imposter.addr(), &["PING"]).await.unwrap().to_string(), "PONG");
    }

    #[tokio::test]
    async fn the_silent_one_keeps_the_connection_and_says_nothing_until_it_is_dropped() {
        let imposter = Imposter::silent().await.unwrap();
        let mut wire = Wire::to(imposter.addr()).await.unwrap();
        let call = wire.call(&["PING"]);
        assert!(Clock::system().timeout(Duration::from_millis(100), call).await.is_none());
        let addr = imposter.addr();
        drop(imposter);
        let e = soon("the end", wire.next()).await.unwrap_err();
        assert_ne!(e.kind(), io::ErrorKind::TimedOut, "{e}");
        until("the port closes", async || TcpStream::connect(addr).await.is_err()).await;
    }
}
