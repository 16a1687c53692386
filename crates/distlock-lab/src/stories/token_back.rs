//! The one declared case in which tokens go back.

use std::time::Duration;

use super::{Act, Expected, Story, control};
use crate::scene::{CLOCK_BACK, SERVER_KILLED, Scene, Told, Trouble};
use crate::stores::{Setup, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "token-back",
    title: "A server loses its data and an hour of its clock",
    teaches: "Tokens of a store without durable data rise as long as its clock is right; a server that \
              forgets everything and wakes up in the past gives out lower ones. A durable fence is the \
              remedy.",
    about: &["redis-volatile"],
    acts: &[FORGETFUL],
};

const FORGETFUL: Act = control("", 2, forgets, |scene| Box::pin(tell(scene)))
    .on(Setup { quarantine: false, ..Setup::VOLATILE });

fn forgets(store: Store) -> Option<Expected> {
    (store.name == "redis-volatile").then_some(Expected::Violates(&["C1", "C4"]))
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    let older = scene.takes(A, &lock).await?;
    scene.writes(A, &lock, true).await?;
    scene.releases(A, &lock).await;
    let place = scene.place.clone();
    let server = place.nodes()[0];
    let fault = scene.strikes(SERVER_KILLED, "server");
    server.kill();
    let clock = place.clock(0).ok_or(Trouble("no clock to be moved".into()))?;
    scene.strikes(CLOCK_BACK, "server");
    clock.back(Duration::from_secs(3600));
    server.again().await?;
    scene.over(fault);
    let younger = loop {
        let (granted, said) = scene.tries(B, &lock, Duration::from_secs(5)).await;
        if granted {
            break said;
        }
    };
    let taken = scene.writes(B, &lock, true).await.unwrap_or(false);
    scene.goes_home().await;
    if taken {
        scene.finds("C3", "the resource took a write under a token lower than one it knew");
    }
    Ok(format!("token {older}, and after the loss {younger}; the resource refused the new holder"))
}
