//! A server is cut off from the others while its clients still reach it.

use super::{Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "follower",
    title: "A follower is cut off from its leader, and its client is not from it",
    teaches: "A connection that stands is no proof of a session: the server at its other end may have \
              lost the others. The holder there gives up by its own clock before they pass its lock on.",
    about: &["zookeeper3"],
    acts: &[story(8, ensembles, |scene| Box::pin(tell(scene)))],
};

fn ensembles(store: Store) -> Option<Expected> {
    (store.name == "zookeeper3").then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    let place = scene.place.clone();
    let Some(ensemble) = place.ensemble() else {
        return Err("this store has no servers that agree".to_owned().into());
    };
    let leader = ensemble.leader().await?;
    let follower = (leader + 1) % 3;
    let at = |n: usize| format!("zookeeper://{}", ensemble.servers()[n].addr());
    scene.client(None, Some(&at(follower))).await?;
    scene.client(None, Some(&at(leader))).await?;
    for client in &mut scene.clients {
        client.ready().await;
    }
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    let fault = scene.strikes("cut off from the leader", "a's server");
    ensemble.cut_off(follower);
    let why = scene.clients[A].answer(lost).await;
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
    }
    let late = scene.writes(A, &lock, true).await;
    if late.is_ok_and(|taken| taken) {
        scene.finds("C3", "the resource took a write of a lock that was lost");
    }
    ensemble.heal();
    scene.over(fault);
    scene.releases(B, &lock).await;
    scene.releases(A, &lock).await;
    scene.insists(A, &lock).await;
    scene.goes_home().await;
    Ok(format!("the holder gave up by itself ({why}), then the next one was granted elsewhere"))
}
