//! What moves cost where thousands stand in line: the rows that the server reads for each.

use std::num::NonZeroU32;

use distlock_core::state::Pulse;
use distlock_core::{Mode, Op, Reply};

use super::scene::{START, Scene};
use super::{claim, name};
use crate::queue::COUNTED;
use crate::record::written;
use crate::sql::hex;

/// How many stand in line.
const MANY: u128 = 6_000;

/// A line of that many, of different owners, behind a holder; written down as it is, not joined.
async fn long_line(mode: Mode) -> Scene {
    let (mut scene, name) = (Scene::new().await, name());
    let tables = scene.tables();
    scene.at(START).await;
    let op = Op::Acquire { claim: claim(1, mode), wait: None };
    scene.play(&name, &[op], "").await;
    let permits = if let Mode::Permit(n) = mode { n.get() } else { 0 };
    let waiters: Vec<u128> = (2..2 + MANY).collect();
    for some in waiters.chunks(500) {
        let row = |n: &u128| {
            let claim = claim(*n, mode);
            format!(
                "('',{},{},{},{},0,{permits},{},{})",
                hex(name.name.as_str()),
                hex(claim.req.as_bytes()),
                START + u64::try_from(*n).unwrap(),
                START + 600_000_000,
                hex(claim.owner.as_str()),
                hex(written(&claim).unwrap())
            )
        };
        let rows = some.iter().map(row).collect::<Vec<_>>().join(",");
        let into = "(space,name,req,since,deadline,deaf,permits,owner,claim)";
        scene.sql(format!("INSERT INTO {} {into} VALUES {rows}", tables.wait)).await;
    }
    let lock = &tables.lock;
    scene.sql(format!("UPDATE {lock} SET nwait={MANY}; ANALYZE TABLE {}", tables.wait)).await;
    scene
}

/// Plays a move, and says how many rows were read for it.
async fn cost(scene: &mut Scene, op: Op) -> (Reply, u64) {
    let before = scene.rows_read().await;
    let reply = scene.play(&name(), &[op], "").await.remove(0);
    (reply, scene.rows_read().await - before)
}

#[tokio::test]
async fn joining_and_leaving_a_long_line_costs_no_more_than_a_short_one() {
    for mode in [Mode::Exclusive, Mode::Permit(NonZeroU32::MIN)] {
        let mut scene = long_line(mode).await;
        scene.at(START + 1_000_000).await;
        let join = Op::Acquire {
            claim: claim(9_000, mode),
            wait: Some(std::time::Duration::from_secs(300)),
        };
        let (reply, read) = cost(&mut scene, join).await;
        assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
        assert!(read < 300, "{mode:?}: {read} rows were read to join");
        let release = Op::Release { req: claim(1, mode).req };
        let (reply, read) = cost(&mut scene, release).await;
        assert!(matches!(reply, Reply::Released), "{reply:?}");
        assert!(read < 300, "{mode:?}: {read} rows were read to release");
    }
}

/// All who wait are told, the last of them only that many are ahead; a part of them costs a part.
#[tokio::test]
async fn a_heartbeat_is_not_quadratic_in_those_who_wait() {
    let mut scene = long_line(Mode::Exclusive).await;
    scene.at(START + 1_000_000).await;
    let reqs: Vec<_> = (2..2 + MANY).map(|n| claim(n, Mode::Exclusive).req).collect();
    for (place, some) in [(0, &reqs[..128]), (COUNTED, &reqs[5_000..5_128])] {
        let before = scene.rows_read().await;
        let pulses = scene.beat_all(&name(), some).await;
        let read = scene.rows_read().await - before;
        assert!(read < 4_000, "{read} rows were read for 128 of {MANY}");
        assert!(matches!(pulses[0], Pulse::Queued { ahead, .. } if ahead as usize == place));
    }
}
