//! Waiting until replicas have what was granted.
//!
//! It makes the loss of a lock in a failover less likely, not impossible: the replica that is
//! promoted may be another one than those that confirmed.

use std::time::Duration;

use distlock_core::{Error, Kind};

use crate::link::Link;

/// Whatever else goes over the connection waits meanwhile, and calls are bounded in time.
const LONGEST: Duration = Duration::from_secs(1);

/// Waits until `wanted` replicas have everything this connection wrote; at most a tenth of the TTL.
pub(crate) async fn wait(link: &Link, wanted: u8, ttl: Duration) -> Result<(), Error> {
    if wanted == 0 {
        return Ok(());
    }
    let within = (ttl / 10).clamp(Duration::from_millis(1), LONGEST);
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(wanted).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    let answer = link.wire.send(&cmd).await.map_err(|fault| fault.told().unknown())?;
    let got: u64 = redis::from_redis_value(answer).unwrap_or(0);
    if got >= u64::from(wanted) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Unreachable,
        format!("{got} of {wanted} replicas confirmed within {within:?}"),
    )
    .unknown()
    .with_hint("see whether the replicas run and keep up; ?wait= is how many must confirm"))
}
