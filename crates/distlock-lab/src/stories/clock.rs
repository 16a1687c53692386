//! Somebody sets the server's clock.

use std::time::Duration;

use super::{Expected, Story, control, story};
use crate::scene::{CLOCK_BACK, CLOCK_FORWARD, Scene, Told, Trouble};
use crate::stores::{Group, Store};

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "clock",
    title: "The server's clock is stepped",
    teaches: "Leases on a server's wall clock end early when it is stepped forward, and two may hold \
              the lock; the fence holds. Stepped back, the next one waits longer.",
    about: &["redis", "postgres", "mysql"],
    acts: &[
        story(4, one_clock, |scene| Box::pin(back(scene))),
        story(4, one_clock, |scene| Box::pin(told(scene))).called("forward, renewed"),
        control("forward", 6, two_holders, |scene| Box::pin(forward(scene))),
    ],
};

fn on_one_clock(store: Store) -> bool {
    let one = matches!(store.group, Group::Redis | Group::Mysql | Group::Postgres);
    one && store.by_wall_clock()
}

fn one_clock(store: Store) -> Option<Expected> {
    on_one_clock(store).then_some(Expected::Clean)
}

fn two_holders(store: Store) -> Option<Expected> {
    on_one_clock(store).then_some(Expected::Violates(&["C2", "C4"]))
}

async fn back(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    let older = scene.takes_once(A, &lock).await?;
    let place = scene.place.clone();
    let clock = place.clock(0).ok_or(Trouble("no clock to be moved".into()))?;
    scene.strikes(CLOCK_BACK, "server");
    clock.back(Duration::from_secs(3));
    let younger = scene.takes(B, &lock).await?;
    scene.writes(B, &lock, true).await?;
    scene.goes_home().await;
    if younger <= older {
        scene.finds("C1", format!("token {younger} after {older}"));
    }
    Ok("granted later by what the clock was set back, with a higher token".into())
}

async fn forward(scene: &mut Scene) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes_once(A, &lock).await?;
    let write = scene.is_about_to_write(A, &lock, true, Duration::from_secs(1)).await?;
    let place = scene.place.clone();
    let clock = place.clock(0).ok_or(Trouble("no clock to be moved".into()))?;
    scene.strikes(CLOCK_FORWARD, "server");
    clock.forward(Duration::from_secs(60));
    scene.takes(B, &lock).await?;
    scene.writes(B, &lock, true).await?;
    let both = scene.believes(A, &lock).await;
    // Whether it was let in after the younger one's is seen in what the resource noted.
    let taken = scene.wrote(A, write).await;
    scene.goes_home().await;
    let end = if taken { "came first" } else { "was refused" };
    Ok(format!("two holders at once: {both}; the older one's write {end}"))
}

/// The holder's next renewal finds out: two hold the lock for a lease at most.
async fn told(scene: &mut Scene) -> Told {
    // What the store promises is what counts here: two holders, but not for longer.
    scene.unplanned = true;
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let lost = scene.clients[A].begin(&format!("lost {lock}")).await;
    let place = scene.place.clone();
    let clock = place.clock(0).ok_or(Trouble("no clock to be moved".into()))?;
    let step = scene.strikes(CLOCK_FORWARD, "server");
    clock.forward(Duration::from_secs(60));
    scene.over(step);
    scene.takes(B, &lock).await?;
    scene.writes(B, &lock, true).await?;
    let answer = scene.clients[A].answer(lost);
    let why = distlock::backend::Clock::system().timeout(scene.ttl * 3, answer).await;
    if why.is_none() {
        scene.finds("C2", "the first holder was never told that it lost its lock");
    }
    scene.goes_home().await;
    Ok(format!("the first holder was told by its next renewal ({why:?})"))
}
