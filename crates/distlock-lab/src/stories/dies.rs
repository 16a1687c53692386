//! A holder dies, and so does somebody in line.

use super::{Story, clean, story};
use crate::scene::{Scene, Told};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

pub(super) const STORY: Story = Story {
    id: "holder-dies",
    title: "The holder dies, and the next in line with it",
    teaches: "A lock ends with its holder's lease, and a dead waiter does not keep the living ones \
              from their turn.",
    about: &["sqlite", "postgres", "memcached"],
    acts: &[story(4, clean, |scene| Box::pin(tell(scene)))],
};

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    scene.asks(B, &lock).await;
    scene.passes(std::time::Duration::from_millis(300)).await;
    let third = scene.asks(C, &lock).await;
    scene.kills(B).await;
    scene.kills(A).await;
    let died = scene.now();
    let within = scene.soon();
    let served = scene.is_served(C, third, within).await;
    let waited = std::time::Duration::from_nanos(scene.now() - died);
    if served.is_some() && scene.releases(C, &lock).await != "released" {
        scene.finds("C6", "the living one's lock was lost at once");
    }
    scene.goes_home().await;
    Ok(format!("the living waiter was served {waited:.1?} after holder and waiter died"))
}
