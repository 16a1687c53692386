//! Thousands of acquires are dropped at random moments.

use std::time::Duration;

use super::{Act, Expected, Story, clean, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Setup, Store};

const CLIENTS: usize = 3;

pub(super) const STORY: Story = Story {
    id: "drop-storm",
    title: "Acquires are dropped at any moment",
    teaches: "An acquire that nobody waits for any more leaves neither a lock nor a place in line, \
              wherever it was when it was dropped.",
    about: &["sqlite", "redis", "mysql-version"],
    acts: &[LONG, OVERTAKEN],
};

/// With a TTL that nobody waits out: what is free again was given back.
const LONG: Act = story(45, clean, |scene| Box::pin(tell(scene))).on(Setup {
    max_ttl: 60,
    quarantine: false,
    ..Setup::USUAL
});

/// A cancel that is faster than what it cancels.
const OVERTAKEN: Act = story(45, where_roads_are, |scene| Box::pin(overtaken(scene)))
    .on(Setup { max_ttl: 60, quarantine: false, ..Setup::USUAL })
    .called("overtaken");

fn where_roads_are(store: Store) -> Option<Expected> {
    (store.group != Group::Files && store.name != "sentinel").then_some(Expected::Clean)
}

async fn overtaken(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let (warm, lock) = (scene.lock("warm"), scene.lock("orders"));
    scene.takes(0, &warm).await?;
    scene.releases(0, &warm).await;
    let late = Duration::from_millis(2_500);
    for _ in 0..3 {
        let delay = scene.on_the_road(0, "delay", |road| road.delay(late));
        let asked = scene.asks(0, &lock).await;
        scene.passes(late / 8).await;
        // What is under way already stays late; what comes now does not.
        if let Some(road) = &scene.clients[0].road {
            road.heal();
        }
        // Whoever hears nothing for too long gives up, and its undoing takes another connection.
        match scene.granted(0, asked).await {
            Ok(_) => drop(scene.releases(0, &lock).await),
            Err(_) => scene.passes(late).await,
        }
        delay.into_iter().for_each(|delay| scene.over(delay));
        let asked = scene.asks(1, &lock).await;
        if scene.is_served(1, asked, Duration::from_secs(25)).await.is_none() {
            break;
        }
        scene.releases(1, &lock).await;
    }
    scene.goes_home().await;
    Ok("acquires that arrived after their cancel were granted to nobody".into())
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(CLIENTS).await?;
    let lock = scene.lock("orders");
    let each =
        if scene.place.store.family == distlock::capability::Family::Session { 160 } else { 600 };
    let ttl = scene.ttl.as_millis();
    let mut storms = Vec::new();
    for who in 0..CLIENTS {
        let line = format!("storm {each} {} {ttl} {lock}", who + 1);
        storms.push(scene.clients[who].begin(&line).await);
    }
    let mut granted = 0;
    for (who, storm) in storms.into_iter().enumerate() {
        let said = scene.clients[who].answer(storm).await;
        granted += said.strip_prefix("granted ").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    scene.is_free(Duration::from_secs(25)).await;
    // A server may still be busy with connections that were given up, and take no other.
    if scene.insists(0, &lock).await {
        scene.releases(0, &lock).await;
    }
    scene.goes_home().await;
    let all = each * CLIENTS;
    Ok(format!("{all} acquires, {granted} of them granted before they were dropped; all undone"))
}
