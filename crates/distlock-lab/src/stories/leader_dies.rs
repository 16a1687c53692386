//! The leader of three servers is killed while a lock is held and waited for.

use super::{Expected, Story, story};
use crate::scene::{FAILOVER, Scene, Told};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "leader-dies",
    title: "The leader is killed",
    teaches: "What a majority wrote down outlives its leader: the holder keeps its lock, whoever waits \
              keeps its place.",
    about: &["etcd3", "zookeeper3"],
    // Until clients have found the new leader some seconds pass.
    acts: &[story(45, ensembles, |scene| Box::pin(tell(scene)))],
};

fn ensembles(store: Store) -> Option<Expected> {
    store.is_ensemble().then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    scene.stand_in_line(&lock, 1).await?;
    let place = scene.place.clone();
    let fault = scene.strikes(FAILOVER, "the leader");
    place.fail_over(&lock).await?;
    let kept = scene.believes(A, &lock).await;
    scene.over(fault);
    scene.writes(A, &lock, true).await.ok();
    scene.releases(A, &lock).await;
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
    }
    place.mend().await?;
    if !kept {
        scene.finds("C6", "a lock that was kept up was lost with the leader");
    }
    scene.goes_home().await;
    Ok("another server took over, the holder kept its lock, and the next one was served".into())
}
