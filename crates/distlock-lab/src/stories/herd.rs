//! Two hundred wait for one lock.

use super::{Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Store};

const PROCESSES: usize = 4;
const EACH: usize = 50;

pub(super) const STORY: Story = Story {
    id: "herd",
    title: "Two hundred wait for one lock",
    teaches: "Whoever waits watches only the one before it: a release wakes one, not the whole herd.",
    about: &["etcd", "zookeeper"],
    acts: &[story(45, who_counts, |scene| Box::pin(tell(scene)))],
};

/// Where servers count what they tell; of three each counts its own, and one is enough to see it.
fn who_counts(store: Store) -> Option<Expected> {
    let counts = matches!(store.group, Group::Etcd | Group::Zookeeper) && !store.is_ensemble();
    counts.then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(PROCESSES + 1).await?;
    let lock = scene.lock("orders");
    let place = scene.place.clone();
    scene.takes(PROCESSES, &lock).await?;
    let (ttl, mut crowds) = (scene.ttl.as_millis(), Vec::new());
    for who in 0..PROCESSES {
        crowds.push(scene.clients[who].begin(&format!("crowd {EACH} {ttl} {lock}")).await);
    }
    scene.stand_in_line(&lock, PROCESSES * EACH).await?;
    let before = place.notices().await?.unwrap_or_default();
    scene.releases(PROCESSES, &lock).await;
    for (who, crowd) in crowds.into_iter().enumerate() {
        let said = scene.clients[who].answer(crowd).await;
        if said != format!("served {EACH}") {
            scene.finds("C6", format!("of {EACH} in one process: {said}"));
        }
    }
    let told = place.notices().await?.unwrap_or_default() - before;
    let releases = (PROCESSES * EACH + 1) as u64;
    // A herd would be woken as a whole by each release: a hundred times as many.
    if told > releases * 3 {
        scene.finds("C8", format!("{told} notices for {releases} releases"));
    }
    scene.goes_home().await;
    Ok(format!("{releases} releases, and the server told {told} times that something changed"))
}
