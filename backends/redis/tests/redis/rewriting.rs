//! A way to a server whose words about itself are changed, as by some proxies and services.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::task;

const FIELD: &[u8] = b"run_id:";
/// How long a run id is.
const LENGTH: usize = 40;

/// Forwards to a server, and says this byte for every one of its run id.
pub(crate) async fn run_id_of(server: SocketAddr, byte: u8) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    task(async move {
        while let Ok((client, _)) = listener.accept().await {
            // While the server restarts, whoever comes is turned away.
            let Ok(server) = TcpStream::connect(server).await else { continue };
            task(async move {
                let (mut from, mut to) = client.into_split();
                let (mut replies, mut requests) = server.into_split();
                let ways = async {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(n @ 1..) = replies.read(&mut buffer).await {
                        let text = &mut buffer[..n];
                        if let Some(at) = text.windows(FIELD.len()).position(|w| w == FIELD) {
                            let at = at + FIELD.len();
                            text[at..at + LENGTH].fill(byte);
                        }
                        if to.write_all(text).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = ways => {}
                    _ = copy(&mut from, &mut requests) => {}
                }
            });
        }
    });
    addr
}
