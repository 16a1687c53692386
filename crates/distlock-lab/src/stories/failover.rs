//! A primary dies before its replicas have heard of a lock, and one of them takes over.

use super::{Act, Expected, Story, control, story};
use crate::scene::{FAILOVER, Scene, Told};
use crate::stores::{Setup, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "failover",
    title: "The primary dies before it has replicated the lock",
    teaches: "A promoted replica does not know the lock: without a quarantine two hold it at once; with \
              one nobody is granted until the lost lease is over. The fence refuses the older holder \
              either way.",
    about: &["sentinel", "cluster", "postgres"],
    acts: &[QUARANTINE, TWO_HOLDERS, STANDBY],
};

const TTL: u64 = 12;
/// Longer than a failover takes, whatever the machine, so that the lock that was lost outlives it.
const LONG: u64 = 30;
/// The same for a standby, which is promoted by hand.
const PROMOTED: u64 = 20;

const QUARANTINE: Act = story(TTL, replicated, |scene| Box::pin(tell(scene)))
    .on(Setup { max_ttl: TTL, ..Setup::USUAL });
const TWO_HOLDERS: Act = control("no quarantine", LONG, two_holders, |scene| Box::pin(tell(scene)))
    .on(Setup { quarantine: false, max_ttl: LONG, ..Setup::USUAL });
const STANDBY: Act = control("standby", PROMOTED, standby, |scene| Box::pin(tell(scene)))
    .on(Setup { standby: true, max_ttl: PROMOTED, ..Setup::USUAL });

fn replicated(store: Store) -> Option<Expected> {
    ["sentinel", "cluster"].contains(&store.name).then_some(Expected::Clean)
}

fn two_holders(store: Store) -> Option<Expected> {
    (store.name == "sentinel").then_some(Expected::Violates(&["C2", "C4"]))
}

/// Replication to a standby is asynchronous unless one asks for more, and nothing waits.
fn standby(store: Store) -> Option<Expected> {
    ["postgres", "postgres-version"]
        .contains(&store.name)
        .then_some(Expected::Violates(&["C2", "C4"]))
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(1).await?;
    let lock = scene.lock("orders");
    let place = scene.place.clone();
    place.locks.lock(format!("{lock}-first")).await?.release().await.ok();
    // A cluster's replica may have heard of it or not: the next one waits either way.
    if place.store.name != "cluster" {
        place.cut_replicas().await?;
    }
    scene.takes_once(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    let fault = scene.strikes(FAILOVER, "primary");
    place.fail_over(&lock).await?;
    scene.over(fault);
    scene.client(None, place.standby_url().as_deref()).await?;
    scene.clients[B].ready().await;
    scene.takes(B, &lock).await?;
    let both = scene.believes(A, &lock).await;
    scene.writes(B, &lock, true).await?;
    scene.writes_late(A, &lock).await;
    scene.ends().await;
    Ok(match both {
        true => "two held the lock at once, and the older one's write was refused".into(),
        false => "the next one was granted when the lost lease was over".into(),
    })
}
