//! A holder is cut off from the store, and nothing says so.

use std::time::Duration;

use distlock_testkit::ProxiedRoute;

use super::{Act, Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Setup, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "cut",
    title: "The holder is cut off from the store",
    teaches: "A holder that hears nothing stops believing by its own clock, before the store can give \
              the lock to anybody else.",
    about: &["redis", "cluster", "mysql", "postgres"],
    acts: &[
        story(4, where_roads_are, |scene| Box::pin(tell(scene, false))),
        // A question answered late must not make its lease longer.
        story(4, where_roads_are, |scene| Box::pin(tell(scene, true))).called("slow answers"),
        DROPPED,
    ],
};

/// With a TTL that nobody waits out: what is free again was given back.
const DROPPED: Act = story(45, where_roads_are, |scene| Box::pin(dropped(scene)))
    .on(Setup { max_ttl: 60, quarantine: false, ..Setup::USUAL })
    .called("dropped meanwhile");

fn where_roads_are(store: Store) -> Option<Expected> {
    (store.group != Group::Files && store.name != "sentinel").then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene, slow: bool) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    let asked = if slow {
        // Once before, so that nothing is left to be set up.
        let warm = scene.lock("warm");
        scene.takes(A, &warm).await?;
        scene.releases(A, &warm).await;
        // Longer than what is given up for drifting clocks.
        let held = scene.on_the_road(A, "held answers", ProxiedRoute::hold_answers);
        let asked = scene.asks(A, &lock).await;
        scene.passes(scene.ttl / 5).await;
        if let Some(road) = &scene.clients[A].road {
            road.heal();
        }
        held.into_iter().for_each(|held| scene.over(held));
        asked
    } else {
        scene.asks(A, &lock).await
    };
    // A first question that is not answered in time is an error; one asks again then.
    if scene.granted(A, asked).await.is_err() {
        scene.takes(A, &lock).await?;
    }
    let next = scene.asks(B, &lock).await;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    let cut = scene.on_the_road(A, "cut", ProxiedRoute::cut);
    let why = scene.clients[A].answer(lost).await;
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
    }
    scene.heals(A, cut);
    let believes = scene.believes(A, &lock).await;
    if believes {
        scene.finds("C2", "a lock that was lost came back with the connection");
    }
    scene.goes_home().await;
    Ok(format!("the holder gave up by itself ({why}), then the next one was granted"))
}

/// The holder lets go of its lock while nothing it says arrives.
async fn dropped(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let cut = scene.on_the_road(A, "cut", ProxiedRoute::cut);
    scene.clients[A].ask(&format!("drop {lock}")).await;
    // Long enough for the first tries to fail.
    scene.passes(Duration::from_secs(3)).await;
    scene.heals(A, cut);
    let asked = scene.asks(B, &lock).await;
    scene.is_served(B, asked, Duration::from_secs(25)).await;
    scene.goes_home().await;
    Ok("what was dropped while cut off was given back when the road was well again".into())
}
