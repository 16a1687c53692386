//! The same owner enters a lock that it holds.

use std::time::Duration;

use super::{Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "reentry",
    title: "The holder enters its own lock again",
    teaches: "The same owner is let in with the same token, and the lock is free only when it has left \
              as often as it entered.",
    about: &["mysql", "redis", "sqlite"],
    acts: &[story(6, who_lets_in, |scene| Box::pin(tell(scene)))],
};

fn who_lets_in(store: Store) -> Option<Expected> {
    (store.name != "redis-plain").then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    let outer = scene.takes(A, &lock).await?;
    let inner = scene.enters(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    scene.releases(A, &lock).await;
    let (stolen, _) = scene.tries(B, &lock, Duration::from_millis(300)).await;
    if stolen {
        scene.finds("C2", "another got in while the owner had one of two holds left");
    }
    let second = format!("{lock}#2");
    let ends = scene.releases(A, &second).await;
    let next = scene.asks(B, &lock).await;
    let within = scene.soon();
    let younger = scene.is_served(B, next, within).await;
    scene.goes_home().await;
    if ends != "released" {
        scene.finds("C6", format!("the second hold was answered {ends}"));
    }
    Ok(format!("token {outer}, entered again with {inner}, then the next one with {younger:?}"))
}
