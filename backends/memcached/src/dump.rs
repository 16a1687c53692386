//! The keys of a server, by `lru_crawler metadump`: the only list memcached has. On a connection of
//! its own, because it takes long and may be refused.

use std::time::Duration;

use distlock_core::{Clock, Error, Kind, engine};
use percent_encoding::percent_decode;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;

use crate::errors;
use crate::handshake;
use crate::wire::shown;

/// How long a whole list may take.
const LIST: Duration = Duration::from_secs(8);
/// Another list is being made: the server makes one at a time.
const BUSY: Duration = Duration::from_millis(20);

/// The keys that begin with `prefix`.
///
/// # Errors
/// [`Kind::Unsupported`] where the server does not list its keys, and what keeps it from answering.
///
/// # Cancel safety
/// Reads only.
pub(crate) async fn keys(address: &str, clock: &Clock, prefix: &str) -> Result<Vec<String>, Error> {
    let (tx, rx) = oneshot::channel();
    let (address, clock, prefix) = (address.to_owned(), clock.clone(), prefix.to_owned());
    engine::spawn(async move {
        let listed = clock.timeout(LIST, list(&address, &clock, &prefix)).await;
        let _ = tx.send(listed.unwrap_or_else(|| Err(Error::unanswered(LIST))));
    });
    rx.await.unwrap_or_else(|_| Err(errors::closed()))
}

async fn list(address: &str, clock: &Clock, prefix: &str) -> Result<Vec<String>, Error> {
    let mut stream = BufReader::new(handshake::connect(address, clock).await?);
    let cut = |e| errors::cut(Some(e));
    // By the hash table: a walk by age misses what moves from one list of ages to another meanwhile.
    let mut by = "hash";
    'again: loop {
        let mut keys = Vec::new();
        let command = format!("lru_crawler metadump {by}\r\n");
        stream.write_all(command.as_bytes()).await.map_err(cut)?;
        loop {
            let mut line = Vec::new();
            if stream.read_until(b'\n', &mut line).await.map_err(cut)? == 0 {
                return Err(errors::cut(None));
            }
            if line.starts_with(b"BUSY") {
                clock.sleep(BUSY).await;
                continue 'again;
            }
            // An older server knows only the walk by age.
            if line.starts_with(b"BADCLASS") && by == "hash" {
                by = "all";
                continue 'again;
            }
            if line.starts_with(b"END") {
                return Ok(keys);
            }
            let Some(rest) = line.strip_prefix(b"key=") else { return Err(refused(&line)) };
            let key = rest.split(|b| *b == b' ').next().unwrap_or_default();
            let key = percent_decode(key).decode_utf8_lossy().into_owned();
            if key.starts_with(prefix) {
                keys.push(key);
            }
        }
    }
}

fn refused(line: &[u8]) -> Error {
    let said = shown(line);
    Error::new(Kind::Unsupported, format!("this memcached does not list its keys: \"{said}\""))
        .with_hint(
            "start it without -X and with its LRU crawler on, or look at one lock by its name",
        )
}
