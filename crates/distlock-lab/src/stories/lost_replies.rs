//! Requests arrive and are carried out, and their answers are lost.

use std::time::Duration;

use distlock_testkit::Road;

use super::{Act, Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Setup, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "lost-replies",
    title: "Every kind of answer is lost",
    teaches: "Every request can be repeated: an acquire, a renewal, a release or a cancel whose answer \
              was lost does nothing twice and leaves nothing behind.",
    about: &["redis", "redis-plain", "memcached", "mysql", "postgres"],
    acts: &[
        story(6, where_roads_are, |scene| Box::pin(tell(scene))),
        story(4, where_roads_are, |scene| Box::pin(then_cut(scene))).called("then cut off"),
        LONG,
    ],
};

/// With a TTL that nobody waits out: who is served was not in its own way.
const LONG: Act = story(45, where_roads_are, |scene| Box::pin(long(scene)))
    .on(Setup { max_ttl: 60, ..Setup::USUAL })
    .called("a long lease");

fn where_roads_are(store: Store) -> Option<Expected> {
    (store.group != Group::Files && store.name != "sentinel").then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let mut said = Vec::new();
    let moment = Duration::from_millis(500);

    // An acquire.
    let lock = scene.lock("acquire");
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    let asked = scene.asks(A, &lock).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    let within = scene.soon();
    if scene.is_served(A, asked, within).await.is_some() {
        scene.writes(A, &lock, true).await?;
        said.push(format!("release {}", scene.releases(A, &lock).await));
    }
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

/// A grant whose answer was lost is told again later, with what is left of it, and its holder is
/// then cut off.
async fn then_cut(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    let asked = scene.asks(A, &lock).await;
    scene.passes(scene.ttl / 2).await;
    scene.heals(A, loss);
    scene.granted(A, asked).await?;
    let cut = scene.on_the_road(A, "cut", Road::cut);
    scene.takes(B, &lock).await?;
    scene.writes(B, &lock, true).await?;
    scene.heals(A, cut);
    scene.goes_home().await;
    Ok("the holder believed in what was left of its lease, and no longer".into())
}

async fn long(scene: &mut Scene) -> Told {
    scene.clients_by_road(2).await?;
    let lock = scene.lock("orders");
    let loss = scene.on_the_road(A, "lost answers", Road::drop_answers);
    let asked = scene.asks(A, &lock).await;
    scene.passes(Duration::from_secs(2)).await;
    scene.heals(A, loss);
    let within = Duration::from_secs(25);
    if scene.is_served(A, asked, within).await.is_some() {
        let ends = scene.releases(A, &lock).await;
        if ends != "released" {
            scene.finds("C6", format!("the release was answered {ends}"));
        }
    }
    let next = scene.asks(B, &lock).await;
    scene.is_served(B, next, within).await;
    scene.goes_home().await;
    Ok("the grant whose answer was lost was recognised, not waited for".into())
}
