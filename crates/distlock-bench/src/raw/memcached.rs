//! `add` and `delete`, pipelined on one connection: what waits is sent together, as ours is.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;

use distlock::Error;
use distlock::backend::engine;
use tokio::sync::oneshot;

use super::fail;

type Job = (usize, oneshot::Sender<()>);

/// Starts the thread that owns the connection.
pub(super) fn worker(server: SocketAddr, names: usize) -> Result<mpsc::Sender<Job>, Error> {
    let mut stream = TcpStream::connect(server).map_err(fail)?;
    stream.set_nodelay(true).map_err(fail)?;
    let mut answers = BufReader::new(stream.try_clone().map_err(fail)?);
    let (tx, rx) = mpsc::channel::<Job>();
    let value = "x".repeat(300);
    engine::thread("raw", move || {
        let mut held = vec![false; names];
        while let Ok(first) = rx.recv() {
            let (mut commands, mut waiting) = (Vec::new(), Vec::new());
            for (name, done) in std::iter::once(first).chain(rx.try_iter()) {
                let _ = match held[name] {
                    false => write!(commands, "add raw{name} 0 60 300\r\n{value}\r\n"),
                    true => write!(commands, "delete raw{name}\r\n"),
                };
                held[name] = !held[name];
                waiting.push(done);
            }
            let mut line = String::new();
            let sent = stream.write_all(&commands);
            for done in waiting {
                line.clear();
                let heard = answers.read_line(&mut line);
                debug_assert!(sent.is_ok() && heard.is_ok());
                let _ = done.send(());
            }
        }
    })
    .map_err(fail)?;
    Ok(tx)
}
