//! Requests arrive and are carried out, and their answers are lost.

use std::time::Duration;

use distlock_testkit::Road;

use super::{Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Store};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

pub(super) const STORY: Story = Story {
    id: "lost-replies",
    title: "Every kind of answer is lost",
    teaches: "Every request can be repeated: an acquire, a renewal, a release or a cancel whose answer \
              was lost does nothing twice and leaves nothing behind.",
    about: &["redis", "redis-plain", "memcached", "mysql", "postgres"],
    acts: &[
        story(6, where_roads_are, |scene| Box::pin(tell(scene))),
        story(4, where_roads_are, |scene| Box::pin(in_line(scene, false))).called("in line"),
        story(4, where_roads_are, |scene| Box::pin(in_line(scene, true))).called("then cut off"),
    ],
};

fn where_roads_are(store: Store) -> Option<Expected> {
    (store.group != Group::Files && store.name != "sentinel").then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let mut said = Vec::new();
    let moment = Duration::from_millis(500);

    // An acquire: its caller is told that it may or may not have it, and asks again.
    let lock = scene.lock("acquire");
    let within = scene.soon();
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    let asked = scene.asks(A, &lock).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    if scene.granted(A, asked).await.is_err() {
        said.push("asked again".to_owned());
        let asked = scene.asks(A, &lock).await;
        scene.is_served(A, asked, within).await;
    }
    scene.writes(A, &lock, true).await?;
    said.push(format!("release {}", scene.releases(A, &lock).await));
    let next = scene.asks(B, &lock).await;
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
        scene.releases(B, &lock).await;
    }

    // A renewal.
    let lock = scene.lock("renewal");
    scene.takes(A, &lock).await?;
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    scene.passes(scene.ttl / 2).await;
    scene.heals(A, loss);
    let kept = scene.believes(A, &lock).await;
    said.push(if kept { "renewed in the end" } else { "not renewed in time" }.to_owned());
    scene.releases(A, &lock).await;

    // A release.
    let lock = scene.lock("release");
    scene.takes(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    let release = scene.clients[A].begin(&format!("release {lock}")).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    let answer = scene.clients[A].answer(release).await;
    said.push(format!("release {}", answer.split(' ').next().unwrap_or_default()));
    let next = scene.asks(B, &lock).await;
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
        scene.releases(B, &lock).await;
    }

    // A cancel.
    let lock = scene.lock("cancel");
    scene.takes(B, &lock).await?;
    scene.asks(A, &lock).await;
    scene.passes(moment).await;
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    scene.clients[A].ask(&format!("cancel {lock}")).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    scene.releases(B, &lock).await;
    scene.takes(B, &lock).await?;
    scene.releases(B, &lock).await;

    scene.goes_home().await;
    Ok(format!("all requests were repeated or undone: {}", said.join(", ")))
}

/// Of one who waits: the grant whose answer was lost is told again, with what is left of it. Its
/// holder may then be cut off, and must not believe in more.
async fn in_line(scene: &mut Scene, then_cut: bool) -> Told {
    scene.clients_by_road(3).await?;
    let lock = scene.lock("orders");
    scene.takes_once(B, &lock).await?;
    let asked = scene.asks(A, &lock).await;
    scene.passes(scene.ttl * 3 / 4).await;
    // It asks when the lease before it ends, and does not hear the answer.
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    scene.passes(scene.ttl * 5 / 8).await;
    scene.heals(A, loss);
    let within = scene.soon();
    let mut how = "told again";
    let granted = match scene.granted(A, asked).await {
        Ok(_) => true,
        // Where nobody stands in line, or too long without a word: told so, it asks again.
        Err(_) => {
            how = "asked for again";
            let asked = scene.asks(A, &lock).await;
            scene.is_served(A, asked, within).await.is_some()
        }
    };
    if then_cut {
        let cut = scene.on_the_road(A, "cut", Road::cut);
        scene.takes(C, &lock).await?;
        scene.writes(C, &lock, true).await?;
        scene.heals(A, cut);
        scene.goes_home().await;
        return Ok(format!("{how}; its holder believed in what was left of the lease, no longer"));
    }
    scene.passes(scene.ttl / 2).await;
    let ends = scene.releases(A, &lock).await;
    if !granted || ends != "released" {
        scene.finds("C6", format!("what was granted was lost, and the release answered {ends}"));
    }
    scene.goes_home().await;
    Ok(format!("the grant whose answer was lost was {how}, and kept"))
}
