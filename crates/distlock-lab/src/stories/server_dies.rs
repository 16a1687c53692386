//! The server is killed while it grants, and started again with what it has on disk.

use std::time::Duration;

use super::{Expected, Story, story};
use crate::scene::{SERVER_KILLED, Scene, Told};
use crate::stores::{Group, Store};

const CLIENTS: usize = 5;

pub(super) const STORY: Story = Story {
    id: "server-dies",
    title: "The server dies between a grant and its answer",
    teaches: "What a durable server granted before it was killed stays granted; whoever did not hear \
              the answer asks again and gets the same one.",
    about: &["mysql", "mysql-version", "postgres", "postgres-version", "redis"],
    acts: &[story(3, who_remembers, |scene| Box::pin(tell(scene)))],
};

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
