//! Somebody in line loses its lease, or what it would hear its turn by.

use distlock_testkit::ProxiedRoute;

use super::session_lost::lines;
use super::{Act, Story, story};
use crate::scene::{RESET, Scene, Told};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

pub(super) const STORY: Story = Story {
    id: "waiter-lost",
    title: "A waiter's lease or its watch is lost",
    teaches: "A place in line ends with its lease, and those behind move up; one that only lost its \
              watch looks again and misses nothing.",
    about: &["etcd", "zookeeper"],
    acts: &[story(4, lines, |scene| Box::pin(lease(scene))), WATCH],
};

/// With a TTL that nobody waits out: a turn that was missed would show.
const WATCH: Act = story(45, lines, |scene| Box::pin(watch(scene))).called("its watch");

async fn lease(scene: &mut Scene) -> Told {
    scene.clients(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let asleep = scene.asks(B, &lock).await;
    scene.stand_in_line(&lock, 1).await?;
    let last = scene.asks(C, &lock).await;
    scene.stand_in_line(&lock, 2).await?;
    let pause = scene.pauses(B);
    // Until the store itself has struck it off.
    scene.stand_in_line(&lock, 1).await?;
    scene.releases(A, &lock).await;
    let within = scene.soon();
    if scene.is_served(C, last, within).await.is_some() {
        scene.writes(C, &lock, true).await?;
    }
    scene.resumes(B, pause);
    scene.releases(C, &lock).await;
    let how = match scene.granted(B, asleep).await {
        Ok(_) => "stood in line again",
        // It was told that its place is gone, and asks again as one does.
        Err(_) => {
            scene.insists(B, &lock).await;
            "was told so, and asked again"
        }
    };
    scene.goes_home().await;
    Ok(format!("the one behind moved up, and the waiter whose lease had ended {how}"))
}

async fn watch(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    for _ in 0..3 {
        scene.takes(A, &lock).await?;
        let next = scene.asks(B, &lock).await;
        scene.stand_in_line(&lock, 1).await?;
        // Cut off while the lock becomes free: nobody can tell it.
        let cut = scene.on_the_road(B, RESET, |road| {
            road.reset();
            ProxiedRoute::cut(road);
        });
        scene.releases(A, &lock).await;
        scene.heals(B, cut);
        let within = scene.soon();
        if scene.is_served(B, next, within).await.is_none() {
            break;
        }
        scene.writes(B, &lock, true).await?;
        scene.releases(B, &lock).await;
    }
    scene.goes_home().await;
    Ok("three times the watch was lost as the lock became free, and the waiter was served".into())
}
