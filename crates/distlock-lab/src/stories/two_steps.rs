//! Clients are killed in the middle of taking a lock, at every moment that chance finds.

use std::time::Duration;

use super::{Story, clean, story};
use crate::dice::Dice;
use crate::scene::{Scene, Told};

const VICTIMS: usize = 8;

pub(super) const STORY: Story = Story {
    id: "two-steps",
    title: "Killed between taking a lock and giving it an end",
    teaches: "Setting a lock and its expiry must be one step: a crash between two would leave a lock \
              that never ends.",
    about: &["redis-plain", "redis", "memcached", "mysql-version"],
    acts: &[story(2, clean, |scene| Box::pin(tell(scene)))],
};

async fn tell(scene: &mut Scene) -> Told {
    let lock = scene.lock("orders");
    let mut dice = Dice::of(7, scene.place.store.name);
    scene.clients(VICTIMS + 1).await?;
    for victim in 0..VICTIMS {
        scene.asks(victim, &lock).await;
        let moment = Duration::from_micros(dice.below(20_000));
        scene.passes(moment).await;
        scene.kills(victim).await;
    }
    let within = scene.soon() + scene.ttl;
    let asked = scene.asks(VICTIMS, &lock).await;
    if scene.is_served(VICTIMS, asked, within).await.is_some() {
        scene.releases(VICTIMS, &lock).await;
    }
    scene.goes_home().await;
    for left in scene.place.clone().endless().await? {
        scene.finds("C7", format!("{left} was left and never ends"));
    }
    Ok(format!("{VICTIMS} clients killed while they took the lock, and it was free again"))
}
