//! A redis whose disk fails, without filling one.

use std::fs;

use distlock_core::{Error, Kind};

use super::super::eventually::eventually;
use super::super::{Redis, Reply, Server, raw};

/// What a snapshot is renamed to when it is complete; it cannot replace a directory.
const SNAPSHOT: &str = "dump.rdb";

impl Redis {
    /// Makes a server's snapshots fail, as a full disk does: it answers `MISCONF` to writes from
    /// now on. The server must ask for no password.
    ///
    /// # Errors
    /// When the server cannot be asked, or has a snapshot already.
    ///
    /// # Cancel safety
    /// It may be broken.
    pub async fn break_disk(server: &Server) -> Result<(), Error> {
        let obstacle = server.dir().join(SNAPSHOT).join("in the way");
        fs::create_dir_all(obstacle).map_err(|e| trouble().because(e))?;
        // A server that is to keep nothing does not mind that it cannot.
        tell(server, &["CONFIG", "SET", "save", "86400 1"]).await?;
        snapshot(server, "err").await
    }

    /// Ends [`Redis::break_disk`].
    ///
    /// # Errors
    /// When the server cannot be asked.
    ///
    /// # Cancel safety
    /// It may be mended.
    pub async fn mend_disk(server: &Server) -> Result<(), Error> {
        let path = server.dir().join(SNAPSHOT);
        fs::remove_dir_all(path).map_err(|e| trouble().because(e))?;
        snapshot(server, "ok").await
    }
}

async fn snapshot(server: &Server, outcome: &str) -> Result<(), Error> {
    tell(server, &["BGSAVE"]).await?;
    eventually("a snapshot ends", async || {
        let info = raw(server.addr(), &["INFO", "persistence"]).await;
        let info = info.map_err(|e| e.to_string())?.to_string();
        let done = info.contains(&format!("rdb_last_bgsave_status:{outcome}"))
            && info.contains("rdb_bgsave_in_progress:0");
        done.then_some(()).ok_or(info)
    })
    .await
}

async fn tell(server: &Server, command: &[&str]) -> Result<(), Error> {
    let said = raw(server.addr(), command).await.and_then(Reply::ok);
    said.map(drop).map_err(|e| trouble().because(e))
}

fn trouble() -> Error {
    Error::new(Kind::Store, "the disk of a test server could not be broken or mended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_broken_disk_refuses_writes_until_it_is_mended() {
        let server = Redis::new().start().await.unwrap();
        let write = async || raw(server.addr(), &["SET", "k", "v"]).await.unwrap().to_string();
        assert_eq!(write().await, "OK");
        Redis::break_disk(&server).await.unwrap();
        assert!(write().await.starts_with("-MISCONF"));
        let read = raw(server.addr(), &["GET", "k"]).await.unwrap();
        assert_eq!(read.to_string(), "v");
        Redis::mend_disk(&server).await.unwrap();
        assert_eq!(write().await, "OK");
    }
}
