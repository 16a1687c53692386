//! What a server says about itself when we enter, and whether locks can be kept there.

use std::collections::HashMap;

use distlock_core::{Error, Kind};

use crate::errors;

/// The sections of `INFO` that matter.
pub(crate) const SECTIONS: [&str; 5] =
    ["server", "replication", "memory", "persistence", "cluster"];

/// By how much the start of one run may seem to differ, in microseconds: the server counts its uptime
/// in whole seconds, by a clock that it reads now and then.
pub(crate) const START_ERROR: u64 = 2_500_000;

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    version: (u32, u32),
    /// Which run of which server this is.
    pub(crate) run: String,
    /// The replication id it followed before it was promoted; `None` if it never was a replica.
    followed: Option<String>,
    replica: bool,
    /// Its clock, in microseconds.
    pub(crate) now: u64,
    /// When it started, in microseconds of its own clock, rounded up.
    pub(crate) boot: u64,
    policy: String,
    append_only: bool,
    cluster: bool,
    /// Everything is on disk before it is told (`appendfsync always`).
    pub(crate) durable: bool,
}

impl Facts {
    /// Reads the text of `INFO`.
    pub(crate) fn read(info: &str) -> Result<Self, Error> {
        let lines = info.lines().filter_map(|line| line.trim().split_once(':'));
        let all: HashMap<&str, &str> = lines.collect();
        let get = |key: &str| all.get(key).copied().unwrap_or_default();
        let number = |key: &str| get(key).parse::<u64>().ok();
        // Below zero where the clock was stepped back since the start: then that was a moment ago,
        // as far as anybody can know.
        let uptime = get("uptime_in_seconds").parse::<i64>().ok();
        let uptime = uptime.map(|up| u64::try_from(up).unwrap_or(0));
        let mut version = get("redis_version").split('.').map(|n| n.parse().unwrap_or(0));
        let (Some(now), Some(up)) = (number("server_time_usec"), uptime) else {
            return Err(Error::new(Kind::Unsupported, "this server does not say how long it runs")
                .with_hint("distlock needs Redis 7.0 or later, and INFO allowed to the account"));
        };
        let followed = get("master_replid2");
        let was_replica = !followed.is_empty() && followed.bytes().any(|b| b != b'0');
        Ok(Self {
            version: (version.next().unwrap_or(0), version.next().unwrap_or(0)),
            run: get("run_id").to_owned(),
            followed: was_replica.then(|| followed.to_owned()),
            replica: get("role") == "slave",
            now,
            // Whole seconds of uptime: the start may be up to a second later than they say.
            boot: now.saturating_sub(up.saturating_mul(1_000_000)) + 1_000_000,
            policy: get("maxmemory_policy").to_owned(),
            append_only: get("aof_enabled") == "1",
            cluster: get("cluster_enabled") == "1",
            durable: false,
        })
    }

    /// Whether it is worth asking how often the log reaches the disk.
    pub(crate) fn may_be_durable(&self) -> bool {
        self.append_only && self.followed.is_none()
    }

    /// Whether it was a replica before: what it has may be older than what was granted.
    pub(crate) fn promoted(&self) -> bool {
        self.followed.is_some()
    }

    /// Which very life of which server this is. A restart changes the run; a promotion changes
    /// whom it followed.
    pub(crate) fn epoch(&self) -> String {
        format!("{}/{}", self.run, self.followed.as_deref().unwrap_or("-"))
    }

    /// Whether nothing has happened since `before` that could have lost locks. Where a run id says
    /// nothing, because something in between always names the same, the time of the start does.
    pub(crate) fn same_life(&self, before: &Self) -> bool {
        self.epoch() == before.epoch() && self.boot <= before.boot + START_ERROR
    }

    /// What tells this server's channels from those of others: enough of its run.
    pub(crate) fn home(&self) -> &str {
        self.run.get(..8).unwrap_or(&self.run)
    }

    /// Whether a restart can be noticed here: some proxies and services name no run, or the same one
    /// for every server.
    pub(crate) fn names_its_run(&self) -> Result<(), Error> {
        if self.run.bytes().any(|b| b != b'0') {
            return Ok(());
        }
        Err(Error::new(Kind::Refused, "this server does not say which run it is (run_id)").with_hint(
            "without it no restart is noticed, and locks may be granted twice after one; connect to \
             the server itself, or say ?quarantine=off to accept that",
        ))
    }

    /// Whether locks can be kept here.
    pub(crate) fn judge(&self, cluster: bool) -> Result<(), Error> {
        if self.version < (7, 0) {
            let (major, minor) = self.version;
            return Err(Error::new(Kind::Unsupported, format!("this is Redis {major}.{minor}"))
                .with_hint(
                    "distlock needs 7.0 or later: only its scripts run on a server whose memory is \
                     full, and a lock that cannot be renewed then is lost",
                ));
        }
        if self.replica {
            return Err(errors::replica());
        }
        if self.policy != "noeviction" {
            return Err(Error::new(
                Kind::Refused,
                format!("this server evicts keys ({}), locks among them", self.policy),
            )
            .with_hint(
                "CONFIG SET maxmemory-policy noeviction (and in redis.conf), or keep locks on a \
                 server of their own",
            ));
        }
        match (self.cluster, cluster) {
            (true, false) => Err(errors::in_cluster()),
            (false, true) => Err(errors::not_in_cluster()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nuptime_in_seconds:5\r\n\
        server_time_usec:1000000000\r\nrole:master\r\nmaster_replid2:0000\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:0\r\ncluster_enabled:0\r\n";

    #[test]
    fn a_server_is_judged_by_what_it_says() {
        let facts = Facts::read(INFO).unwrap();
        assert!(facts.judge(false).is_ok() && !facts.promoted());
        assert_eq!(facts.boot, 996_000_000);
        let with = |from: &str, to: &str| Facts::read(&INFO.replace(from, to)).unwrap();
        let kinds = [
            (with("7.0.15", "6.2.1"), Kind::Unsupported),
            (with("role:master", "role:slave"), Kind::Refused),
            (with("noeviction", "allkeys-lru"), Kind::Refused),
            (with("cluster_enabled:0", "cluster_enabled:1"), Kind::Usage),
        ];
        for (facts, kind) in kinds {
            let e = facts.judge(false).unwrap_err();
            assert!(e.kind() == kind && e.hint().is_some(), "{e:?}");
        }
        let promoted = with("master_replid2:0000", "master_replid2:0a00");
        assert!(promoted.promoted() && promoted.epoch() != facts.epoch());
        let stepped_back = with("uptime_in_seconds:5", "uptime_in_seconds:-3600");
        assert_eq!(stepped_back.boot, 1_001_000_000);
        assert!(Facts::read("nonsense").is_err());
    }
}
