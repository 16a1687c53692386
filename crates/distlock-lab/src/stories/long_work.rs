//! Work that takes longer than the TTL.

use distlock::capability::Order;

use super::{Story, clean, clean_where_leases_end, story};
use crate::scene::{Scene, Told};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

pub(super) const STORY: Story = Story {
    id: "long-work",
    title: "The work takes longer than the TTL",
    teaches: "A lock that is renewed lasts as long as its work; one that is not ends, and its holder \
              is told before anybody else gets it.",
    about: &["memcached", "redis", "sqlite"],
    acts: &[
        story(6, clean, |scene| Box::pin(renewed(scene))),
        story(4, clean_where_leases_end, |scene| Box::pin(once(scene))).called("no renewal"),
    ],
};

async fn renewed(scene: &mut Scene) -> Told {
    scene.clients(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    // A second one waits where it is known who is first.
    let last = match scene.place.capability().order {
        Order::Fifo => {
            scene.stand_in_line(&lock, 1).await?;
            Some(scene.asks(C, &lock).await)
        }
        _ => None,
    };
    scene.passes(scene.ttl * 2).await;
    let kept = scene.believes(A, &lock).await;
    let wrote = kept && scene.writes(A, &lock, true).await?;
    let ends = scene.releases(A, &lock).await;
    if !wrote || ends != "released" {
        scene.finds("C6", "a lock that was renewed was lost although nothing was wrong");
    }
    let within = scene.soon();
    scene.is_served(B, next, within).await;
    scene.releases(B, &lock).await;
    if let Some(last) = last {
        scene.is_served(C, last, within).await;
    }
    scene.goes_home().await;
    Ok("the lock was kept for twice its TTL, then given back and passed on".into())
}

async fn once(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes_once(A, &lock).await?;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    scene.takes(B, &lock).await?;
    let why = scene.clients[A].answer(lost).await;
    scene.writes(B, &lock, true).await?;
    let late = scene.writes(A, &lock, true).await;
    if late.is_ok_and(|taken| taken) {
        scene.finds("C3", "the resource took a write of a lock that was lost");
    }
    scene.goes_home().await;
    Ok(format!("the first holder was told that its lock was lost ({why}), the next one got it"))
}
