//! Sixteen contenders on one lock.

use std::time::Duration;

use distlock::capability::Order;

use super::{Story, clean, story};
use crate::scene::{Scene, Told};

const CONTENDERS: usize = 16;

pub(super) const STORY: Story = Story {
    id: "starvation",
    title: "Sixteen contenders on one lock",
    teaches: "Where there is a line everybody gets its share; where there is none, some get most.",
    about: &["redis", "redis-plain", "sqlite", "mysql"],
    acts: &[story(6, clean, |scene| Box::pin(tell(scene)))],
};

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(CONTENDERS).await?;
    let lock = scene.lock("orders");
    let (ttl, mut races) = (scene.ttl.as_millis(), Vec::new());
    for who in 0..CONTENDERS {
        races.push(scene.clients[who].begin(&format!("race {lock} {ttl} 2")).await);
    }
    scene.passes(Duration::from_secs(4)).await;
    for client in &mut scene.clients {
        client.begin("stop").await;
    }
    let mut grants = Vec::new();
    for (who, race) in races.into_iter().enumerate() {
        let said = scene.clients[who].answer(race).await;
        grants.push(said.split(' ').nth(1).and_then(|n| n.parse::<u32>().ok()).unwrap_or(0));
    }
    scene.goes_home().await;
    let (least, most) = (grants.iter().min().copied(), grants.iter().max().copied());
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
    // Everybody in line is served once before anybody is served twice; starting takes its time.
    if scene.place.capability().order == Order::Fifo && most > 2 * least + 4 {
        scene.finds("C8", format!("one contender was granted {least} times, another {most} times"));
    }
    Ok(format!("between {least} and {most} grants each"))
}
