//! The network jitters until the holder's session is lost.

use std::time::Duration;

use distlock_testkit::ProxiedRoute;

use super::{Expected, Story, story};
use crate::scene::{CUT, Scene, Told};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "session-lost",
    title: "The holder's session is lost through jitter",
    teaches: "A session ends at the server when too little of what its client says arrives; the holder \
              has given up by then, by its own clock, and a session that was lost does not come back.",
    about: &["zookeeper", "etcd"],
    acts: &[story(6, lines, |scene| Box::pin(tell(scene)))],
};

pub(super) fn lines(store: Store) -> Option<Expected> {
    let line = store.family == distlock::capability::Family::Queue;
    line.then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    scene.stand_in_line(&lock, 1).await?;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    // Late, then cut, then late again, and at last nothing arrives any more.
    for _ in 0..3 {
        let late = scene.on_the_road(A, "delay", |road| road.delay(Duration::from_millis(400)));
        scene.passes(Duration::from_millis(500)).await;
        let cut = scene.on_the_road(A, CUT, ProxiedRoute::cut);
        scene.passes(Duration::from_millis(500)).await;
        if let Some(road) = &scene.clients[A].road {
            road.heal();
        }
        late.into_iter().chain(cut).for_each(|fault| scene.over(fault));
    }
    let cut = scene.on_the_road(A, CUT, ProxiedRoute::cut);
    let why = scene.clients[A].answer(lost).await;
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
    }
    scene.heals(A, cut);
    if scene.believes(A, &lock).await {
        scene.finds("C2", "a lock that was lost came back with the connection");
    }
    scene.releases(B, &lock).await;
    // And the client goes on, with another session.
    scene.releases(A, &lock).await;
    scene.insists(A, &lock).await;
    scene.goes_home().await;
    Ok(format!("the holder gave up by itself ({why}), the next one was granted, and it came again"))
}
