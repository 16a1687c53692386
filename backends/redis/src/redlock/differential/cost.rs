//! What the usual case costs the server.

use std::time::Duration;

use distlock_core::quorum::Vote;
use distlock_core::{Clock, Released};
use redis::Value;

use super::super::{replies, script_calls};
use super::limits::{ask, bid};
use super::scene::Scene;
use crate::quarantine::Agreed;

/// How many commands the scripts of one cycle may run: take, and give back.
const MOST: i64 = 12;
const WAIT: Duration = Duration::from_secs(10);

async fn commands(scene: &mut Scene) -> i64 {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut scene.link).await.unwrap();
    let inner = [
        "cmdstat_get:",
        "cmdstat_set:",
        "cmdstat_time:",
        "cmdstat_h",
        "cmdstat_z",
        "cmdstat_p",
        "cmdstat_del",
    ];
    let calls = info.lines().filter(|l| inner.iter().any(|c| l.starts_with(c)));
    let count = |l: &str| l.split("calls=").nth(1)?.split(',').next()?.parse::<i64>().ok();
    calls.filter_map(count).sum()
}

/// A free lock that nobody waits for, asked for by somebody who would wait.
#[tokio::test]
async fn a_free_lock_is_one_cheap_step() {
    let mut scene = Scene::new().await;
    let clock = Clock::system();
    let mut worst = 0;
    for _ in 0..20 {
        let ask = ask("a", WAIT);
        let bid = bid(&ask, clock.wall_micros(), Some(WAIT));
        let before = commands(&mut scene).await;
        let taken: Value = scene
            .run(script_calls::propose(&bid, "via-1", Duration::ZERO, &Agreed::NONE).by_sha())
            .await;
        let (vote, _) = replies::vote(&taken, "").unwrap();
        assert!(matches!(vote, Vote::Granted { accepted: true, waiters: 0, .. }), "{vote:?}");
        let given = scene.run(script_calls::release(&ask.key()).by_sha()).await;
        assert_eq!(replies::released(&given).unwrap(), Released::Released);
        worst = worst.max(commands(&mut scene).await - before);
    }
    assert!(worst <= MOST, "{worst} commands for one cycle");
}
