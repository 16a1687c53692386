//! The server is killed while it grants, and started again with what it has on disk.

use std::time::Duration;

use distlock::backend::Clock;
use distlock::capability::Family;

use super::{Act, Expected, Story, story};
use crate::scene::{SERVER_KILLED, Scene, Told};
use crate::stores::{Group, Store};

const CLIENTS: usize = 5;
const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "server-dies",
    title: "The server dies between a grant and its answer",
    teaches: "What a durable server granted before it was killed stays granted; whoever did not hear \
              the answer asks again and gets the same one.",
    about: &["mysql", "mysql-row-lock", "postgres", "postgres-row-lock", "redis"],
    acts: &[story(3, who_remembers, |scene| Box::pin(tell(scene))), HELD],
};

/// With a TTL whose first renewal comes long after everything else.
const HELD: Act = story(45, sessions, |scene| Box::pin(held(scene))).called("while held");
/// Much less than that renewal.
const AT_ONCE: Duration = Duration::from_secs(10);

fn sessions(store: Store) -> Option<Expected> {
    let session = store.family == Family::Session && store.group != Group::Files;
    session.then_some(Expected::Clean)
}

fn who_remembers(store: Store) -> Option<Expected> {
    let one = matches!(store.group, Group::Redis | Group::Mysql | Group::Postgres);
    one.then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    // By what the store promises of a restart, no more and no less.
    scene.unplanned = true;
    scene.clients(CLIENTS).await?;
    let lock = scene.lock("orders");
    let works = scene.work(1, &[lock]).await?;
    for _ in 0..2 {
        scene.passes(Duration::from_millis(700)).await;
        let fault = scene.strikes(SERVER_KILLED, "server");
        let place = scene.place.clone();
        let server = place.nodes()[0];
        server.kill();
        scene.passes(Duration::from_millis(200)).await;
        server.again().await?;
        scene.over(fault);
    }
    scene.everybody_is_served(&works).await;
    scene.stops(works).await;
    scene.goes_home().await;
    Ok("killed twice while it granted, and everybody was served afterwards".into())
}

/// A lock that lives with its connection: its holder is told before the server can serve others.
async fn held(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    let fault = scene.strikes(SERVER_KILLED, "server");
    let place = scene.place.clone();
    place.nodes()[0].kill();
    let told = Clock::system().timeout(AT_ONCE, scene.clients[A].answer(lost)).await;
    if told.is_none() {
        scene.finds(
            "C2",
            format!("the holder was not told within {AT_ONCE:?} that its server died"),
        );
    }
    place.nodes()[0].again().await?;
    scene.over(fault);
    if scene.insists(B, &lock).await {
        scene.writes(B, &lock, true).await?;
    }
    scene.believes(A, &lock).await;
    scene.goes_home().await;
    Ok(format!("the holder was told ({}) before the server came back", told.unwrap_or_default()))
}
