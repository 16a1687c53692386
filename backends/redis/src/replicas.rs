//! Waiting until replicas have what was granted.
//!
//! It makes the loss of a lock in a failover less likely, not impossible: the replica that is
//! promoted may be another one than those that confirmed.

use std::time::Duration;

use distlock_core::{BootInstant, Error, Kind};
use tokio::sync::Mutex;

use crate::checked_connection::CheckedConnection;
use crate::reconnect::Shared;

/// Whatever else goes over the connection waits meanwhile, and calls are bounded in time.
const LONGEST: Duration = Duration::from_secs(1);

/// The last question to the replicas over one connection. One at a time: the server would answer
/// them one after the other anyway, each after its whole time when replicas are missing. A grant
/// written before the WAIT was sent shares its reply.
#[derive(Default)]
pub(crate) struct Asked(Mutex<Option<Confirmed>>);

#[derive(Clone, Copy)]
struct Confirmed {
    sent: BootInstant,
    within: Duration,
    got: u64,
}

/// Waits until as many replicas as are wanted have everything this connection wrote; at most a
/// tenth of the TTL, and never so long that the connection would seem to be stuck.
pub(crate) async fn wait(
    link: &CheckedConnection,
    shared: &Shared,
    ttl: Duration,
) -> Result<(), Error> {
    let wanted = shared.options.replicas;
    let longest = LONGEST.min(shared.options.timeout / 2);
    let within = (ttl / 10).min(longest).max(Duration::from_millis(1));
    let wrote = shared.clock.now();
    let mut asked = link.asked.0.lock().await;
    let enough = |c: &Confirmed| c.got >= u64::from(wanted);
    let ours = asked.filter(|c| c.sent >= wrote && (enough(c) || c.within >= within));
    let answer = match ours {
        Some(answer) => answer,
        None => {
            let sent = shared.clock.now();
            let mut cmd = redis::cmd("WAIT");
            cmd.arg(wanted).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
            let answer = link.wire.send(&cmd).await.map_err(|fault| fault.told().unknown())?;
            let got = redis::from_redis_value(answer).unwrap_or(0);
            *asked.insert(Confirmed { sent, within, got })
        }
    };
    if enough(&answer) {
        return Ok(());
    }
    let got = answer.got;
    Err(Error::new(
        Kind::Unreachable,
        format!("{got} of {wanted} replicas confirmed within {within:?}"),
    )
    .unknown()
    .with_hint("see whether the replicas run and keep up; ?wait= is how many must confirm"))
}
