//! An operator takes a lock away.

use super::{Expected, Story, story};
use crate::scene::{Scene, Told, Trouble};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;
const OPERATOR: usize = 2;

pub(super) const STORY: Story = Story {
    id: "break",
    title: "An operator breaks the lock",
    teaches: "Breaking a lock revokes it: its holder is told, and nobody else is granted while the \
              holder may still believe; its renewal does not bring it back.",
    about: &["sqlite", "redis", "postgres"],
    acts: &[
        story(4, who_can, |scene| Box::pin(tell(scene))),
        story(4, who_can, |scene| Box::pin(paused(scene))).called("of a paused holder"),
    ],
};

fn who_can(store: Store) -> Option<Expected> {
    let leased = ["sqlite", "redis", "redis-volatile", "sentinel", "cluster", "mysql", "postgres"];
    let versions = ["mysql-version", "postgres-version"];
    (leased.contains(&store.name) || versions.contains(&store.name)).then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    let broken = scene.strikes("broken by an operator", "orders");
    let said = scene.clients[OPERATOR].ask(&format!("force {lock}")).await;
    if said != "Done" {
        return Err(Trouble(format!("the operator was told: {said}")));
    }
    let why = scene.clients[A].answer(lost).await;
    scene.over(broken);
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        // Longer than a lease: a renewal that brought the old hold back would show.
        scene.passes(scene.ttl / 2).await;
        scene.writes(B, &lock, true).await?;
    }
    if scene.believes(A, &lock).await {
        scene.finds("C2", "the holder still believes in a lock that was taken away");
    }
    let ends = scene.releases(B, &lock).await;
    if ends != "released" {
        scene.finds("C6", format!("the next holder's release was answered {ends}"));
    }
    scene.goes_home().await;
    Ok(format!("the holder was told ({why}), and the next one granted after it"))
}

/// The holder cannot be told: nobody is granted while it would believe.
async fn paused(scene: &mut Scene) -> Told {
    scene.clients(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    let pause = scene.pauses(A);
    let broken = scene.strikes("broken by an operator", "orders");
    let said = scene.clients[OPERATOR].ask(&format!("force {lock}")).await;
    if said != "Done" {
        return Err(Trouble(format!("the operator was told: {said}")));
    }
    scene.over(broken);
    let within = scene.soon();
    if scene.is_served(B, next, within).await.is_some() {
        scene.writes(B, &lock, true).await?;
    }
    scene.resumes(A, pause);
    if scene.believes(A, &lock).await {
        scene.finds("C2", "the holder still believes in a lock that was taken away");
    }
    scene.goes_home().await;
    Ok("the next one was granted when the paused holder's lease was over".into())
}
