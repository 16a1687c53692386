//! What is said against Redlock: a node that forgets, a clock that jumps, a majority that is slow.

use std::time::Duration;

use super::{Act, Expected, Story, control, story};
use crate::scene::{CLOCK_FORWARD, SERVER_KILLED, Scene, Told, Trouble};
use crate::stores::{Group, Setup, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "redlock",
    title: "Is Redlock safe?",
    teaches: "A node that restarts empty, a clock that jumps and answers that come late do no harm as \
              long as a majority of those who granted the lock is well and forgetful nodes keep a \
              quarantine; without it, or with so many clocks stepped that no majority is left (one, \
              where it was bare), two hold the lock. The fence holds in every case.",
    about: &["redlock3", "redlock5"],
    acts: &[FORGETS, FORGETS_AT_ONCE, ONE_CLOCK, TWO_CLOCKS, BARE, SLOW],
};

const FORGETS: Act =
    story(4, quorum, |scene| Box::pin(forgets(scene))).on(Setup::VOLATILE).called("a node forgets");
const FORGETS_AT_ONCE: Act =
    control("a node forgets, no quarantine", 20, two_holders, |scene| Box::pin(forgets(scene)))
        .on(Setup { quarantine: false, max_ttl: 20, ..Setup::VOLATILE });
const ONE_CLOCK: Act =
    story(6, quorum, |scene| Box::pin(clocks(scene, false))).called("a minority of clocks jumps");
const TWO_CLOCKS: Act =
    control("a majority of clocks jumps", 6, two_holders, |scene| Box::pin(clocks(scene, true)));
const BARE: Act =
    control("one clock of a bare majority jumps", 6, two_holders, |scene| Box::pin(bare(scene)));
const SLOW: Act = story(4, quorum, |scene| Box::pin(slow(scene))).called("a slow majority");

fn quorum(store: Store) -> Option<Expected> {
    (store.group == Group::Redlock).then_some(Expected::Clean)
}

fn two_holders(store: Store) -> Option<Expected> {
    (store.group == Group::Redlock).then_some(Expected::Violates(&["C2", "C4"]))
}

/// The first holder has a bare majority; one of it restarts, and may be empty.
async fn forgets(scene: &mut Scene) -> Told {
    let (lock, cut, few) = bare_majority(scene).await?;
    let forgotten = scene.strikes(SERVER_KILLED, "a node");
    let place = scene.place.clone();
    let node = place.nodes()[few];
    node.kill();
    node.again().await?;
    scene.over(forgotten);
    scene.takes(B, &lock).await?;
    let both = both_write(scene, &lock, cut).await?;
    Ok(match both {
        true => {
            "the node forgot its vote, and two held the lock; the older one's write was refused"
        }
        false => "the node kept silent until every lease it may have forgotten was over",
    }
    .into())
}

/// The first holder has a bare majority, and a lease of it ends early.
async fn bare(scene: &mut Scene) -> Told {
    let (lock, cut, few) = bare_majority(scene).await?;
    scene.strikes(CLOCK_FORWARD, "a node");
    let place = scene.place.clone();
    let clock = place.clock(few).ok_or(Trouble("no clock to be moved".into()))?;
    clock.forward(Duration::from_secs(60));
    scene.takes(B, &lock).await?;
    let both = both_write(scene, &lock, cut).await?;
    Ok(format!("one clock jumped; two held the lock at once: {both}"))
}

/// The first holder cannot reach the first few nodes: the lock, the cut, and the first node that
/// granted it.
async fn bare_majority(scene: &mut Scene) -> Result<(String, usize, usize), Trouble> {
    let place = scene.place.clone();
    let all = place.nodes().len();
    let road = place.road().await?.ok_or(Trouble("no road".into()))?.minority();
    road.cut();
    scene.client(Some(road), None).await?;
    scene.clients[A].ready().await;
    scene.clients(1).await?;
    let lock = scene.lock("orders");
    let cut = scene.strikes("cut", "a from some nodes");
    // A renewal would find out, perhaps before the second one is let in.
    scene.takes_once(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    Ok((lock, cut, all - (all / 2 + 1)))
}

/// The second holder writes, then the first: whether both believed in their lock.
async fn both_write(scene: &mut Scene, lock: &str, cut: usize) -> Result<bool, Trouble> {
    let both = scene.believes(A, lock).await;
    scene.writes(B, lock, true).await?;
    scene.writes_late(A, lock).await;
    scene.over(cut);
    scene.goes_home().await;
    Ok(both)
}

async fn clocks(scene: &mut Scene, most: bool) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    if most {
        // A renewal would find out, perhaps before the second one is let in.
        scene.takes_once(A, &lock).await?;
    } else {
        scene.takes(A, &lock).await?;
        // A node that was too slow to grant it has been asked again by then: all have.
        scene.passes(scene.ttl / 2).await;
    }
    scene.writes(A, &lock, true).await?;
    let place = scene.place.clone();
    let majority = place.clocks() / 2 + 1;
    let moved = if most { majority } else { place.clocks() - majority };
    scene.strikes(CLOCK_FORWARD, &format!("{moved} of {} nodes", place.clocks()));
    for node in 0..moved {
        let clock = place.clock(node).ok_or(Trouble("no clock to be moved".into()))?;
        clock.forward(Duration::from_secs(60));
    }
    let patience = if most { scene.ttl * 2 } else { Duration::from_secs(2) };
    let (second, _) = scene.tries(B, &lock, patience).await;
    let both = second && scene.believes(A, &lock).await;
    if second {
        scene.writes(B, &lock, true).await?;
        if scene.writes(A, &lock, true).await.is_ok_and(|taken| taken) {
            scene.finds("C3", "the older holder's write was taken after the younger one's");
        }
    } else if !scene.believes(A, &lock).await {
        scene.finds("C6", "a minority of clocks made the holder lose its lock");
    }
    scene.goes_home().await;
    Ok(format!("{moved} clocks jumped; a second holder: {second}, both at once: {both}"))
}

/// Answers take so long that little of the lease is left when they are there.
async fn slow(scene: &mut Scene) -> Told {
    let place = scene.place.clone();
    let road = place.road().await?.ok_or(Trouble("no road".into()))?.majority();
    scene.client(Some(road), None).await?;
    scene.clients[A].ready().await;
    scene.clients(1).await?;
    let lock = scene.lock("orders");
    let late = scene.ttl / 3;
    let delay = scene.on_the_road(A, "delay", |road| road.delay(late));
    let (granted, said) = scene.tries(A, &lock, scene.ttl).await;
    let asked = scene.asks(B, &lock).await;
    let within = scene.soon();
    if scene.is_served(B, asked, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
        scene.releases(B, &lock).await;
    }
    scene.heals(A, delay);
    scene.goes_home().await;
    let said: String = said.chars().take(60).collect();
    Ok(format!("asked through a slow majority: granted {granted} ({said}); nothing was left of it"))
}
