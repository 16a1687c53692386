//! The first words with a server: is it a memcached that a lock may be kept on?

use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::errors;
use crate::wire::shown;

/// How long connecting and the first words may take, each.
const CONNECT: Duration = Duration::from_secs(3);
const OLDEST: (u32, u32) = (1, 6);
const MUCH: usize = 64 * 1024;

/// A connection to a server that will do.
///
/// # Errors
/// [`Kind::Unreachable`] when nobody answers; [`Kind::Store`] when something else than memcached
/// does; [`Kind::Unsupported`] for one that is too old; [`Kind::Refused`] for one without
/// compare-and-swap or without evictions; [`Kind::Credentials`] for one that wants a login.
///
/// # Cancel safety
/// Dropping it closes the connection.
pub(crate) async fn connect(address: &str, clock: &Clock) -> Result<TcpStream, Error> {
    let connected = clock.timeout(CONNECT, TcpStream::connect(address)).await;
    let slow = || Err(std::io::ErrorKind::TimedOut.into());
    let mut stream = connected.unwrap_or_else(slow).map_err(errors::unreachable)?;
    let _ = stream.set_nodelay(true);
    let answer = clock.timeout(CONNECT, greet(&mut stream)).await;
    let answer = answer.unwrap_or_else(|| Err(Error::unanswered(CONNECT)));
    // Nothing was asked for yet, so nothing can have been applied.
    answer.and_then(|answer| judge(&answer)).map_err(Error::not_applied)?;
    Ok(stream)
}

async fn greet(stream: &mut TcpStream) -> Result<String, Error> {
    let cut = |e| errors::cut(Some(e));
    stream.write_all(b"version\r\nstats settings\r\n").await.map_err(cut)?;
    let mut answer = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let n = stream.read(&mut chunk).await.map_err(cut)?;
        answer.extend_from_slice(&chunk[..n]);
        let version = answer.starts_with(&b"VERSION "[..answer.len().min(8)]);
        if n == 0 || !version || answer.len() > MUCH {
            break;
        }
        // The second answer is a table, or one line where something between does not serve it.
        let lines = answer.iter().filter(|b| **b == b'\n').count();
        let one_line = lines >= 2 && !answer.windows(6).any(|w| w == b"\nSTAT ");
        if answer.ends_with(b"END\r\n") || one_line {
            break;
        }
    }
    String::from_utf8(answer).map_err(|e| errors::garbage(&shown(e.as_bytes())))
}

fn judge(answer: &str) -> Result<(), Error> {
    let first = answer.lines().next().unwrap_or_default();
    if ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"].iter().any(|e| first.starts_with(e)) {
        return Err(errors::trouble(first));
    }
    let Some(version) = first.strip_prefix("VERSION ") else {
        return Err(errors::garbage(&shown(answer.as_bytes())));
    };
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(Error::new(Kind::Unsupported, format!("this is memcached {version}"))
            .with_hint("its meta commands are needed: version 1.6 or newer"));
    }
    let set = |what: &str| answer.lines().any(|l| l.strip_prefix("STAT ") == Some(what));
    if set("cas_enabled no") {
        return Err(Error::new(Kind::Refused, "this memcached runs without compare-and-swap")
            .with_hint("start it without -C"));
    }
    // When it is full, a meta command that finds no room deletes the item it was to replace: a
    // waiter's add would end the holder's lock.
    if set("evictions off") {
        return Err(Error::new(Kind::Refused, "this memcached fails when it is full (-M)")
            .with_hint("start it without -M: a full one would delete the locks it cannot renew"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_will_not_do_is_told_why() {
        let kind = |answer: &str| judge(answer).unwrap_err().kind();
        assert!(judge("VERSION 1.6.18\r\nSTAT cas_enabled yes\r\nEND\r\n").is_ok());
        assert!(judge("VERSION 2.0.0\r\nERROR\r\n").is_ok());
        assert_eq!(kind("VERSION 1.5.22\r\nEND\r\n"), Kind::Unsupported);
        assert_eq!(kind("VERSION 1.6.9\r\nSTAT cas_enabled no\r\nEND\r\n"), Kind::Refused);
        assert_eq!(kind("VERSION 1.6.9\r\nSTAT evictions off\r\nEND\r\n"), Kind::Refused);
        assert_eq!(kind("CLIENT_ERROR unauthenticated\r\n"), Kind::Credentials);
        assert_eq!(kind("HTTP/1.1 400 Bad Request\r\n"), Kind::Store);
        assert_eq!(kind(""), Kind::Store);
        let e = judge("VERSION 1.4.0\r\n").unwrap_err();
        assert!(e.hint().is_some_and(|h| h.contains("1.6")), "{e:?}");
    }
}
