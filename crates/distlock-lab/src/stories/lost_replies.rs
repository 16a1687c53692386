//! Requests arrive and are carried out, and their answers are lost.

use std::time::Duration;

use distlock_testkit::ProxiedRoute;

use super::{Act, Expected, Story, story};
use crate::client::Pending;
use crate::scene::{Scene, Told};
use crate::stores::{Group, Setup, Store};

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
        story(6, where_roads_are, |scene| Box::pin(then_cut(scene))).called("then cut off"),
        IN_LINE,
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
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
    let asked = scene.asks(A, &lock).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    if scene.granted(A, asked).await.is_err() {
        said.push("asked again".to_owned());
        scene.insists(A, &lock).await;
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
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
    scene.passes(scene.ttl / 2).await;
    scene.heals(A, loss);
    let kept = scene.believes(A, &lock).await;
    said.push(if kept { "renewed in the end" } else { "not renewed in time" }.to_owned());
    scene.releases(A, &lock).await;

    // A release.
    let lock = scene.lock("release");
    scene.takes(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
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
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
    scene.clients[A].ask(&format!("cancel {lock}")).await;
    scene.passes(moment).await;
    scene.heals(A, loss);
    scene.releases(B, &lock).await;
    scene.takes(B, &lock).await?;
    scene.releases(B, &lock).await;

    scene.goes_home().await;
    Ok(format!("all requests were repeated or undone: {}", said.join(", ")))
}

/// Of one who waits: it asks when the lease before it ends, the answer is lost, and it asks again.
/// With a TTL that nobody waits out, so that a hold that was forgotten would show.
const IN_LINE: Act = story(45, where_roads_are, |scene| Box::pin(in_line(scene)))
    .on(Setup { max_ttl: 60, quarantine: false, ..Setup::USUAL })
    .called("in line");

async fn in_line(scene: &mut Scene) -> Told {
    scene.clients_by_road(3).await?;
    let lock = scene.lock("orders");
    scene.takes_for(B, &lock, 6).await?;
    let asked = scene.asks(A, &lock).await;
    scene.passes(Duration::from_millis(4_500)).await;
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
    scene.passes(Duration::from_millis(2_800)).await;
    scene.heals(A, loss);
    let how = told_or_asked(scene, asked, &lock).await;
    let ends = scene.releases(A, &lock).await;
    if ends != "released" {
        scene.finds("C6", format!("the release was answered {ends}"));
    }
    scene.is_free(Duration::from_secs(20)).await;
    scene.goes_home().await;
    Ok(format!("the grant whose answer was lost was {how}, and nothing was left of it"))
}

/// The grant is told again, with what is left of it, and its holder is then cut off: it must not
/// believe in more.
async fn then_cut(scene: &mut Scene) -> Told {
    scene.clients_by_road(3).await?;
    let lock = scene.lock("orders");
    scene.takes_once(B, &lock).await?;
    let asked = scene.asks(A, &lock).await;
    scene.passes(scene.ttl * 3 / 4).await;
    let loss = scene.on_the_road(A, "lost answers", ProxiedRoute::drop_answers);
    scene.passes(scene.ttl / 4 + Duration::from_millis(1_400)).await;
    scene.heals(A, loss);
    let how = told_or_asked(scene, asked, &lock).await;
    let cut = scene.on_the_road(A, "cut", ProxiedRoute::cut);
    scene.takes(C, &lock).await?;
    scene.writes(C, &lock, true).await?;
    scene.heals(A, cut);
    scene.goes_home().await;
    Ok(format!("{how}; its holder believed in what was left of the lease, no longer"))
}

/// Where nobody stands in line an unanswered question is an error, and its caller asks again.
async fn told_or_asked(scene: &mut Scene, asked: Pending, lock: &str) -> &'static str {
    if scene.granted(A, asked).await.is_ok() {
        return "told again";
    }
    scene.insists(A, lock).await;
    "asked for again"
}
