//! A way to a server on which connections fall silent, as when a firewall forgets them.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::kit::task;

/// All connections that exist when it is told so fall silent, but none that comes later.
pub(crate) struct Forgetful {
    pub(crate) addr: SocketAddr,
    forgets: watch::Sender<u32>,
}

impl Forgetful {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (addr, forgets) = (listener.local_addr().unwrap(), watch::Sender::new(0));
        let watching = forgets.clone();
        task(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut watch = watching.subscribe();
                task(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = watch.changed() => std::future::pending::<()>().await,
                    }
                });
            }
        });
        Self { addr, forgets }
    }

    pub(crate) fn forget(&self) {
        self.forgets.send_modify(|n| *n += 1);
    }
}
