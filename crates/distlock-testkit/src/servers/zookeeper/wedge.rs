//! Detects a server of an ensemble that has stopped committing writes, without any client library.
//!
//! After a paused leader, ZooKeeper 3.8.0 can stand still for ever (ZOOKEEPER-4541,
//! ZOOKEEPER-4712): every server reports its role, a `SyncThread` of an earlier role still runs
//! beside the new one, requests pile up, and the zxid never moves again.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use distlock_core::{Clock, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Server, four_letters};

/// A write that takes longer is lost: an ensemble commits one within milliseconds, and elects a
/// leader within seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// The session that the probe opens expires after this many milliseconds.
const SESSION_MILLIS: i32 = 2_000;

/// What `srvr` says about a server's role and its progress.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Status {
    mode: String,
    zxid: String,
    outstanding: u64,
}

impl Status {
    async fn ask(server: SocketAddr) -> Result<Option<Self>, Error> {
        Ok(Self::parse(&four_letters(server, "srvr").await?))
    }

    /// `None` for a server that serves nobody, as during an election.
    fn parse(srvr: &str) -> Option<Self> {
        let field = |name: &str| srvr.lines().find_map(|line| line.strip_prefix(name));
        Some(Self {
            mode: field("Mode: ")?.to_owned(),
            zxid: field("Zxid: ")?.to_owned(),
            outstanding: field("Outstanding: ")?.parse().ok()?,
        })
    }
}

/// Whether a server is wedged that left a write unanswered between these two answers to `srvr`: it
/// kept its role, has requests outstanding, and committed nothing, neither ours nor another's.
fn is_wedged(before: &Status, after: &Status) -> bool {
    before.mode == after.mode && before.zxid == after.zxid && after.outstanding > 0
}

/// What proves that a server is wedged, if it is. A server that does not answer is not.
pub(super) async fn wedge(server: &Server) -> Option<String> {
    let at = server.addr();
    let before = Status::ask(at).await.ok()??;
    let clock = Clock::system();
    // A server drops a connection that has had no session for ten seconds: then once more.
    let committed = async {
        while open_session(at).await.is_err() {
            clock.sleep(Duration::from_millis(100)).await;
        }
    };
    if clock.timeout(PATIENCE, committed).await.is_some() {
        return None;
    }
    let after = Status::ask(at).await.ok()??;
    is_wedged(&before, &after).then(|| {
        let Status { mode, zxid, outstanding } = after;
        let threads = sync_threads(server);
        format!(
            "{mode} {at}: no commit for {PATIENCE:?}, zxid {zxid}, {outstanding} requests \
             outstanding, {threads} SyncThreads"
        )
    })
}

/// How many `SyncThread`s a server runs: one, unless one of an earlier role did not end.
fn sync_threads(server: &Server) -> usize {
    let Some(pid) = server.pid() else { return 0 };
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let names =
        tasks.into_iter().flatten().flatten().map(|t| fs::read_to_string(t.path().join("comm")));
    names.flatten().filter(|name| name.starts_with("SyncThread")).count()
}

/// Opens a session and closes it again. The answer comes when the ensemble has committed it: a new
/// session is a write.
async fn open_session(server: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    // Protocol version, last zxid seen, timeout, session id, password, read-only; each message
    // begins with its length.
    let mut connect = 45_i32.to_be_bytes().to_vec();
    connect.extend(0_i32.to_be_bytes());
    connect.extend(0_i64.to_be_bytes());
    connect.extend(SESSION_MILLIS.to_be_bytes());
    connect.extend(0_i64.to_be_bytes());
    connect.extend(16_i32.to_be_bytes());
    connect.extend([0; 17]);
    stream.write_all(&connect).await?;
    stream.read_i32().await?;
    // Length, transaction id, and the type of a close.
    let close = [8_i32, 1, -11].map(i32::to_be_bytes);
    stream.write_all(close.as_flattened()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Ensemble;

    fn srvr(mode: &str, zxid: &str, outstanding: u64) -> String {
        format!(
            "Zookeeper version: 3.8.0-${{mvngit.commit.id}}, built on 2022-12-18 19:15 UTC\n\
             Latency min/avg/max: 0/1.2/38\nReceived: 900\nSent: 870\nConnections: 5\n\
             Outstanding: {outstanding}\nZxid: {zxid}\nMode: {mode}\nNode count: 12\n"
        )
    }

    #[test]
    fn only_a_server_that_keeps_its_role_and_commits_nothing_is_wedged() {
        let status =
            |mode, zxid, outstanding| Status::parse(&srvr(mode, zxid, outstanding)).unwrap();
        let before = status("leader", "0x300000085", 0);
        assert!(is_wedged(&before, &status("leader", "0x300000085", 316)));
        // Nothing to commit; a slow one that committed something; an election meanwhile.
        assert!(!is_wedged(&before, &status("leader", "0x300000085", 0)));
        assert!(!is_wedged(&before, &status("leader", "0x300000086", 316)));
        assert!(!is_wedged(&before, &status("follower", "0x300000085", 316)));
        assert_eq!(
            Status::parse("This ZooKeeper instance is not currently serving requests\n"),
            None
        );
    }

    #[tokio::test]
    async fn an_ensemble_that_commits_or_elects_is_not_wedged() {
        let ensemble = Ensemble::start().await.unwrap();
        let leader = ensemble.leader().await.unwrap();
        assert_eq!(ensemble.wedged().await, None);
        let leader = &ensemble.servers()[leader];
        open_session(leader.addr()).await.expect("a session");
        // More than one where an election during the start left one behind.
        assert!(sync_threads(leader) >= 1);
        // Alone it leads nobody.
        let others = ensemble.servers().iter().filter(|s| s.addr() != leader.addr());
        others.for_each(Server::pause);
        assert_eq!(wedge(leader).await, None);
    }
}
